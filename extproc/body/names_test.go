package body

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/weirproxy/weir/identity"
	"github.com/weirproxy/weir/policy"
)

func scopes(t testing.TB, list ...string) []identity.Param {
	t.Helper()
	_, params, err := identity.ParseScopes(list)
	if err != nil {
		t.Fatal(err)
	}
	return params
}

// K1: a limit is not passed beside any name, spelling or place that an engine
// reads it from.
func TestScopeBindsEveryName(t *testing.T) {
	params := scopes(t, "max_tokens<=100", "n=1", "temperature<=1", "top_p<=0.9")
	var attacks []string
	for _, names := range []struct {
		list []string
		over string
	}{{capNames, "5000"}, {minNames, "5000"}, {choiceNames, "8"}, {[]string{"temperature"}, "1.5"}, {[]string{"top_p", "topP"}, "1"}} {
		for _, name := range names.list {
			member := fmt.Sprintf(`"%s":%s`, name, names.over)
			attacks = append(attacks, member)
			for _, at := range containerNames {
				attacks = append(attacks, fmt.Sprintf(`"%s":{%s}`, at, member))
			}
			attacks = append(attacks, `"unheard_of":{`+member+`}`, `"extra_body":{"sampling_params":{`+member+`}}`, `"a":[{"b":{`+member+`}}]`)
		}
	}
	attacks = append(attacks,
		`"max-tokens":5000`, `"MaxTokens":5000`, `"MAX_NEW_TOKENS":5000`, `"maxcompletiontokens":1`, `"max__tokens":5000`, `"max.tokens":5000`, `"max_to\u212aens":5000`,
		`"extra_body":{"Max_Tokens":5000}`, `"options":{"NUM_PREDICT":5000}`, `"generationConfig":{"CandidateCount":8}`, `"N":8`, `"extra_body":{"N":8}`,
		`"num-beams":8`, `"bestOf":8`, `"Temperature":1.5`, `"sampling_params":{"Top_P":1}`,
		`"max_tokens":50,"max_completion_tokens":5000`, `"max_tokens":50,"extra_body":{"max_tokens":101}`, `"max_tokens":50,"min_tokens":101`,
		`"max_new_tokens":"50"`, `"max_new_tokens":[5000]`, `"max_new_tokens":{"a":1}`, `"max_new_tokens":-1`, `"n_predict":0`, `"options":{"num_predict":1e9}`, `"num_return_sequences":1.5`,
	)
	for _, kind := range []policy.Kind{policy.OpenAIChat, policy.OpenAICompletions, policy.JSON} {
		for _, attack := range attacks {
			data := `{"model":"m","messages":[],` + attack + `}`
			b, err := Parse(kind, []byte(data))
			if err == nil {
				_, err = b.CheckParams(params, true, policy.RefuseUnknown)
			}
			if err == nil {
				t.Errorf("%s: %s passes", kind, data)
			} else if err.Field == "" || err.Status != 403 && err.Status != 400 {
				t.Errorf("%s: %s: %+v", kind, data, err)
			}
		}
	}
}

// What complies passes, under any name; the API's own name is set where it was
// not sent.
func TestScopeLetsComplyingNamesPass(t *testing.T) {
	params := scopes(t, "max_tokens<=100", "n=1")
	for _, c := range []struct{ rest, edits string }{
		{`"max_tokens":100`, ""},
		{`"max_completion_tokens":1,"max_tokens":100,"n":1,"best_of":1`, ""},
		{`"max_new_tokens":50`, "max_tokens=100"},
		{`"extra_body":{"max_tokens":50,"num_beams":1}`, "max_tokens=100"},
		{`"max_tokens":100,"min_tokens":100,"sampling_params":{"min_new_tokens":3}`, ""},
		{`"max_tokens":100,"tools":[{"function":{"parameters":{"properties":{"n":{"type":"integer"},"max_tokens":{}}}}}]`, ""},
		{`"max_tokens":100,"response_format":{"json_schema":{"schema":{"n":5}}},"metadata":{"N":"9","max_tokens":"many"},"logit_bias":{"5":1}`, ""},
		{`"max_tokens":100,"extra_body":{"guided_json":{"n":5}},"stop":["n"],"stream_options":{"include_usage":true}`, ""},
		{`"max_tokens":100,"user":"max_tokens","name":{"k":1}`, ""},
	} {
		data := `{"model":"m","messages":[{"content":"n","max_tokens":9000}],` + c.rest + `}`
		b := mustParse(t, policy.OpenAIChat, data)
		edits, err := b.CheckParams(params, true, policy.RefuseUnknown)
		if err != nil {
			t.Errorf("%s: %v", data, err)
			continue
		}
		var got []string
		for _, e := range edits {
			got = append(got, e.Field()+"="+e.Value())
		}
		if g := strings.Join(got, " "); g != c.edits {
			t.Errorf("%s: edits %q, want %q", data, g, c.edits)
		}
	}
}

// Where the API is not known, any known name counts as sent.
func TestScopeOnOtherAPIs(t *testing.T) {
	params := scopes(t, "max_tokens<=100", "n=1")
	for _, rest := range []string{`"parameters":{"max_new_tokens":50}`, `"sampling_params":{"max_new_tokens":50,"n":1}`, `"options":{"num_predict":9}`, `"generationConfig":{"maxOutputTokens":9}`, `"max_output_tokens":7`} {
		b := mustParse(t, policy.JSON, `{"inputs":"n",`+rest+`}`)
		if edits, err := b.CheckParams(params, true, policy.RefuseUnknown); err != nil || len(edits) != 0 {
			t.Errorf("%s: %v %v", rest, edits, err)
		}
	}
}

// Unknown names may be allowed: known ones are bound all the same.
func TestUnknownNamesByPolicy(t *testing.T) {
	params := scopes(t, "max_tokens<=100")
	for rest, passes := range map[string]bool{
		`"max-tokens":5000`:                       true,
		`"vendor":{"max_tokens":5000}`:            true,
		`"max_new_tokens":5000`:                   false,
		`"parameters":{"max_tokens":5000}`:        false,
		`"Max_Tokens":5`:                          false, // read in place of max_tokens by who ignores case
		`"vendor":{"options":{"max_tokens":500}}`: true,
	} {
		b, err := Parse(policy.OpenAIChat, []byte(`{"model":"m","messages":[],`+rest+`}`))
		if err == nil {
			_, err = b.CheckParams(params, true, policy.AllowUnknown)
		}
		if (err == nil) != passes {
			t.Errorf("%s: %v, want passed = %v", rest, err, passes)
		}
	}
}

// The work of a body under any name; what engines cannot take is refused by
// name.
func TestWork(t *testing.T) {
	const chat, compl, embed = policy.OpenAIChat, policy.OpenAICompletions, policy.OpenAIEmbeddings
	for _, c := range []struct {
		kind             policy.Kind
		rest             string
		prompts, choices int64
		maxOut, minOut   int64
	}{
		{chat, ``, 1, 1, 0, 0},
		{chat, `"n":128`, 1, 128, 0, 0},
		{chat, `"n":128,"max_tokens":10`, 1, 128, 1280, 0},
		{chat, `"n":2,"num_beams":4`, 1, 4, 0, 0},
		{chat, `"extra_body":{"n":7}`, 1, 7, 0, 0},
		{chat, `"parameters":{"best_of":6},"sampling_params":{"n":5}`, 1, 6, 0, 0},
		{chat, `"generationConfig":{"candidateCount":3}`, 1, 3, 0, 0},
		{chat, `"use_beam_search":true,"n":5`, 1, 5, 0, 0},
		{chat, `"num_return_sequences":9`, 1, 9, 0, 0},
		{chat, `"extra_body":{"sampling_params":{"num_return_sequences":9}}`, 1, 9, 0, 0},
		{chat, `"vendor":{"n":9}`, 1, 1, 0, 0},
		{chat, `"max_new_tokens":10`, 1, 1, 0, 0}, // the engine may not know it: no cap
		{chat, `"max_tokens":10,"max_new_tokens":500`, 1, 1, 500, 0},
		{chat, `"max_tokens":10,"options":{"num_predict":-1}`, 1, 1, 0, 0},
		{chat, `"max_tokens":50,"min_tokens":20,"n":3`, 1, 3, 150, 60},
		{chat, `"n":5,"n_cmpl":6`, 1, 6, 0, 0},
		{chat, `"sampling_params":[{"n":2},{"n":7}]`, 1, 7, 0, 0},
		{chat, `"n":1e1,"max_tokens":1.0`, 1, 10, 10, 0},
		{compl, `"prompt":["a","b","c"],"input":["x"],"max_tokens":5`, 3, 3, 15, 0},
		{compl, `"input":["x"],"prompt":["a","b","c"],"max_tokens":5`, 3, 3, 15, 0},
		{embed, `"input":["a","b","c"],"prompt_embeds":"QQ=="`, 4, 4, 0, 0},
		{embed, `"input":["a","b","c"],"prompt":["x"]`, 3, 3, 0, 0},
		{embed, `"content":["a","b","c"]`, 3, 3, 0, 0},
		{chat, `"min_tokens":20`, 1, 1, 0, 20},
		{compl, `"prompt":["a","b","c"],"n":2,"best_of":4,"max_tokens":5`, 3, 12, 60, 0},
		{compl, `"prompt":[[1,2],[3]],"n":2`, 2, 4, 0, 0},
		{compl, `"prompt":[1,2,3],"n":2`, 1, 2, 0, 0},
		{compl, `"prompt":null,"prompt_embeds":["QQ==","QQ=="],"n":2`, 3, 6, 0, 0},
		{compl, `"prompt_embeds":["QQ==","QQ=="],"n":2`, 2, 4, 0, 0},
		{embed, `"input":["a","b"],"n":9,"max_length":512`, 2, 2, 0, 0},
	} {
		data := `{"model":"m","messages":[]`
		if c.rest != "" {
			data += "," + c.rest
		}
		b := mustParse(t, c.kind, data+`}`)
		if b.Prompts != c.prompts || b.Choices != c.choices || b.MaxOut != c.maxOut || b.MinOut != c.minOut {
			t.Errorf("%s: %d prompts, %d choices, at most %d, at least %d; want %+v", data, b.Prompts, b.Choices, b.MaxOut, b.MinOut, c)
		}
	}
	for _, name := range slices.Concat(choiceNames, capNames, minNames) {
		for _, value := range []string{`-2`, `1.5`, `"3"`, `1e12`, `true`, `[3]`, `{}`, `1e999`} {
			for _, form := range []string{`"%s":%s`, `"sampling_params":{"%s":%s}`} {
				member := fmt.Sprintf(form, name, value)
				_, err := Parse(chat, []byte(`{"model":"m","messages":[],`+member+`}`))
				if err == nil || err.Status != 400 || !strings.HasSuffix(err.Field, name) || !strings.Contains(err.Msg, "must be a whole number from") {
					t.Errorf("%s: %v, want a 400 that names field, value and bound", member, err)
				}
			}
		}
		mustParse(t, chat, fmt.Sprintf(`{"model":"m","messages":[],"%s":null,"options":{"%[1]s":null}}`, name))
	}
}

// Choices and prompts are bounded by policy, also those that a scope sets.
func TestCheckBounds(t *testing.T) {
	p := &policy.Body{MaxChoices: 16, MaxPrompts: 3}
	for _, c := range []struct {
		kind policy.Kind
		rest string
		want string
	}{
		{policy.OpenAIChat, `"n":16`, ""},
		{policy.OpenAIChat, `"n":17`, `"n" must be at most 16, not 17`},
		{policy.OpenAIChat, `"best_of":20,"n":3`, `"best_of" must be at most 16, not 20`},
		{policy.OpenAIChat, `"parameters":{"num_beams":64}`, `"parameters.num_beams" must be at most 16, not 64`},
		{policy.OpenAICompletions, `"prompt":["a","b","c"],"n":16`, ""},
		{policy.OpenAICompletions, `"prompt":["a","b","c","d"]`, `"prompt" must have at most 3 elements, not 4`},
		{policy.OpenAIEmbeddings, `"input":[[1],[2],[3],[4],[5]]`, `"input" must have at most 3 elements, not 5`},
		{policy.OpenAIEmbeddings, `"input":[1,2,3,4,5]`, ""},
	} {
		b := mustParse(t, c.kind, `{"model":"m","messages":[],`+c.rest+`}`)
		err := b.CheckBounds(nil, p)
		if c.want == "" && err != nil || c.want != "" && (err == nil || err.Status != 400 || err.Msg != c.want) {
			t.Errorf("%s: %v, want %q", c.rest, err, c.want)
		}
	}
	b := mustParse(t, policy.OpenAIChat, `{"model":"m","messages":[]}`)
	if err := b.CheckBounds([]Edit{SetInt("n", 40)}, p); err == nil {
		t.Error("a scope sets n beyond the bound")
	}
}

// A caller's priority is taken out wherever engines look, and nothing else is.
func TestWithoutPriority(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{`{"model":"m","messages":[]}`, `{"model":"m","messages":[]}`},
		{`{"priority":-9,"model":"m","messages":[]}`, `{"model":"m","messages":[]}`},
		{`{"model":"m", "priority" : -9 , "messages":[]}`, `{"model":"m" , "messages":[]}`},
		{`{"model":"m","messages":[],"priority":{"a":[1]}}`, `{"model":"m","messages":[]}`},
		{`{ "\u0070riority":1 , "model":"m","messages":[]}`, `{ "model":"m","messages":[]}`},
		{`{"model":"m","messages":[],"extra_body":{"priority":1}}`, `{"model":"m","messages":[],"extra_body":{}}`},
		{`{"model":"m","messages":[],"nvext":{"a":1,"priority":1,"b":2},"priority":3}`, `{"model":"m","messages":[],"nvext":{"a":1,"b":2}}`},
		{`{"model":"m","messages":[],"extra_body":{"options":{"priority":1,"b":2}}}`, `{"model":"m","messages":[],"extra_body":{"options":{"b":2}}}`},
		{`{"model":"m","messages":[{"priority":1}],"metadata":{"priority":1},"x":{"priority":1}}`, `{"model":"m","messages":[{"priority":1}],"metadata":{"priority":1},"x":{"priority":1}}`},
	} {
		b := mustParse(t, policy.OpenAIChat, c.in)
		edits, err := b.WithoutPriority()
		if err != nil {
			t.Errorf("%s: %v", c.in, err)
			continue
		}
		got := strings.ReplaceAll(string(b.Rewrite(edits...)), "{ ", "{")
		if got != strings.ReplaceAll(c.want, "{ ", "{") {
			t.Errorf("%s\nbecame %s\nwant   %s", c.in, got, c.want)
		}
		for _, more := range [][]Edit{{SetInt("n", 2)}, {SetInt("n", 2), IncludeUsage()}} {
			again := mustParse(t, policy.OpenAIChat, string(b.Rewrite(append(more, edits...)...)))
			if len(again.fields) != len(b.fields)+len(more)-topCuts(edits) {
				t.Errorf("%s with more edits: %s", c.in, again.data)
			}
		}
	}
	alone := mustParse(t, policy.JSON, `{ "priority" : 5 }`)
	edits, err := alone.WithoutPriority()
	if err != nil {
		t.Fatal(err)
	}
	for want, more := range map[string][]Edit{`{ }`: nil, `{"a":1 }`: {SetInt("a", 1)}, `{"a":1,"b":2 }`: {SetInt("a", 1), SetInt("b", 2)}} {
		if got := string(alone.Rewrite(append(more, edits...)...)); got != want {
			t.Errorf("became %s, want %s", got, want)
		}
	}
	if _, err := mustParse(t, policy.OpenAIChat, `{"model":"m","messages":[],"Priority":1}`).WithoutPriority(); err == nil || err.Status != 400 {
		t.Errorf("%v, want a 400: the name differs by case", err)
	}
}

func topCuts(edits []Edit) (n int) {
	for _, e := range edits {
		if e.CutsTop() {
			n++
		}
	}
	return n
}

// The reference lists every name and object that is bound.
func TestNamesAreDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/policy.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Concat(capNames, minNames, choiceNames, containerNames) {
		if !strings.Contains(string(doc), "`"+name+"`") {
			t.Errorf("docs/policy.md does not name %s", name)
		}
	}
}

// FuzzWork: no name lets a body ask for less by asking for more, and nothing
// overflows.
func FuzzWork(f *testing.F) {
	f.Add("n", "best_of", int64(3), int64(4), int64(100))
	f.Add("num_beams", "max_new_tokens", int64(1024), int64(1<<31-1), int64(1<<31-1))
	f.Fuzz(func(t *testing.T, name, other string, v, w, limit int64) {
		work := func(v int64) (Work, bool) {
			data := fmt.Sprintf(`{"model":"m","messages":[],%s:%d,"options":{%s:%d},"max_tokens":%d}`, quote(name), v, quote(other), w, limit)
			b, err := Parse(policy.OpenAIChat, []byte(data))
			if err != nil {
				return Work{}, false
			}
			return b.WorkAfter(nil), true
		}
		a, ok := work(v)
		if !ok || v <= 0 || v > 1<<40 {
			return
		}
		b, ok := work(v + 1)
		if !ok {
			return
		}
		if a.Choices < 1 || a.MaxOut < 0 || a.MinOut < 0 || b.Choices < a.Choices || b.MaxOut < a.MaxOut || b.MinOut < a.MinOut {
			t.Fatalf("%q %q: %+v became %+v", name, other, a, b)
		}
	})
}

// A model that does not stop before its cap is known by whatever engines take
// for true; how long its answers are is no demand: a stop string may end them.
func TestWorkToTheEnd(t *testing.T) {
	for rest, want := range map[string]bool{
		`"ignore_eos":true`: true, `"ignore_eos":1`: true, `"ignore_eos":"yes"`: true, `"ignore_eos":0`: true, `"\u0069gnore_eos":true`: true,
		`"nvext":{"ignore_eos":true}`: true, `"debug_config":{"ignore_eos":true}`: true, `"ban_eos_token":true`: true,
		`"ignore_eos":false`: false, `"ignore_eos":null`: false, `"metadata":{"ignore_eos":true}`: false,
	} {
		w := mustParse(t, policy.OpenAIChat, `{"model":"m","messages":[],`+rest+`}`).WorkAfter(nil)
		if w.ToTheEnd != want || w.MinOut != 0 {
			t.Errorf("%s: %+v, want to the end = %v", rest, w, want)
		}
	}
}

// What a scope sets counts under any name.
func TestWorkAfterEdits(t *testing.T) {
	b := mustParse(t, policy.OpenAIChat, `{"model":"m","messages":[],"max_tokens":10}`)
	for scope, want := range map[string]Work{
		"num_beams=4":        {Choices: 4, MaxOut: 40},
		"n>=3":               {Choices: 3, MaxOut: 30},
		"best_of=2":          {Choices: 2, MaxOut: 20},
		"min_new_tokens>=7":  {Choices: 1, MaxOut: 10, MinOut: 7},
		"ignore_eos=true":    {Choices: 1, MaxOut: 10, ToTheEnd: true},
		"temperature=0.5":    {Choices: 1, MaxOut: 10},
		"max_new_tokens<=50": {Choices: 1, MaxOut: 10},
	} {
		edits, err := b.CheckParams(scopes(t, scope), true, policy.RefuseUnknown)
		if got := b.WorkAfter(edits); err != nil || got != want {
			t.Errorf("%s: %+v %v, want %+v", scope, got, err, want)
		}
		// A body that says so itself asks for as much.
		if again := mustParse(t, policy.OpenAIChat, string(b.Rewrite(edits...))); again.WorkAfter(nil) != want {
			t.Errorf("%s: the body asks for %+v, want %+v", scope, again.WorkAfter(nil), want)
		}
	}
}

// APIs that wrap a call in "input", and lists of parameters, are bound where
// unknown names are allowed, too; a list's member speaks for its part alone.
func TestScopeInsideInput(t *testing.T) {
	params := scopes(t, "max_tokens<=100")
	for rest, passes := range map[string]bool{
		`"input":{"prompt":"p","max_new_tokens":5000}`:                      false,
		`"input":{"sampling_params":{"max_tokens":5000}}`:                   false,
		`"inputs":{"parameters":{"max_new_tokens":5000}}`:                   false,
		`"input":{"prompt":"p","max_tokens":100}`:                           true,
		`"sampling_params":[{"max_new_tokens":1},{"max_new_tokens":5000}]`:  false,
		`"max_tokens":1,"sampling_params":[[{"max_new_tokens":5000}]]`:      false,
		`"max_tokens":1,"input":[{"content":[{"max_tokens":5000}]}]`:        true,
		`"max_tokens":1,"sampling_params":[{"max_new_tokens":1},{"top":2}]`: true,
	} {
		for _, unknown := range []policy.UnknownNames{policy.RefuseUnknown, policy.AllowUnknown} {
			b := mustParse(t, policy.JSON, `{`+rest+`}`)
			edits, err := b.CheckParams(params, true, unknown)
			if (err == nil) != passes || len(edits) > 0 {
				t.Errorf("%s: %v %v, want passed = %v", rest, edits, err, passes)
			}
		}
	}
	b := mustParse(t, policy.JSON, `{"sampling_params":[{},{"max_new_tokens":1}]}`)
	if edits, err := b.CheckParams(params, false, policy.AllowUnknown); err == nil {
		t.Errorf("one member of a list speaks for all: %v", edits)
	}
	cuts, err := mustParse(t, policy.JSON, `{"input":{"priority":1,"a":2}}`).WithoutPriority()
	if err != nil || len(cuts) != 1 {
		t.Errorf("%d priorities inside of an input, %v", len(cuts), err)
	}
}
