package body

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirproxy/weir/policy"
)

func mustParse(t *testing.T, kind policy.Kind, data string) *Body {
	t.Helper()
	b, err := Parse(kind, []byte(data))
	if err != nil {
		t.Fatalf("Parse(%s): %v", data, err)
	}
	return b
}

// The facts of every request fixture.
func TestParseFixtures(t *testing.T) {
	const chat, compl, embed, other = policy.OpenAIChat, policy.OpenAICompletions, policy.OpenAIEmbeddings, policy.JSON
	type facts struct {
		model           string
		stream          bool
		usage           UsageAsk
		bytes, tokens   int64
		media           int64
		choices, maxOut int64
	}
	const seven, seventy, base, embedder = "lantern-7b", "lantern-70b", "lantern-base", "lantern-embed"
	tests := []struct {
		file string
		kind policy.Kind
		want facts
	}{
		{"chat_basic.json", chat, facts{model: seven, bytes: 24 + 17, choices: 1, maxOut: 64}},
		{"chat_cjk.json", chat, facts{model: seven, stream: true, bytes: 24*3 + 4, choices: 1, maxOut: 200}},
		{"chat_multimodal.json", chat, facts{model: "lantern-vision", bytes: 24, media: 1, choices: 1, maxOut: 50}},
		{"chat_n3.json", chat, facts{model: seven, bytes: 24, choices: 3, maxOut: 60}},
		{"chat_no_max_tokens.json", chat, facts{model: seven, stream: true, bytes: 47, choices: 1}},
		{"chat_stream_include_usage.json", chat, facts{model: seven, stream: true, usage: UsageAsked, bytes: 14, choices: 1, maxOut: 32}},
		{"chat_stream_include_usage_false.json", chat, facts{model: seven, stream: true, usage: UsageDeclined, bytes: 14, choices: 1, maxOut: 32}},
		{"chat_stream_no_options.json", chat, facts{model: seven, stream: true, bytes: 14, choices: 1, maxOut: 32}},
		// the question, and the tool's schema: names, strings, and one for each member
		{"chat_tools.json", chat, facts{model: seventy, stream: true, usage: UsageAsked, bytes: 42 + 121 + 12, choices: 1, maxOut: 128}},
		{"chat_stream_vllm_continuous.json", chat, facts{model: seven, stream: true, usage: UsageAsked, bytes: 14, choices: 1, maxOut: 32}},
		{"completions_best_of.json", compl, facts{model: base, bytes: 19 + 19, choices: 8, maxOut: 128}},
		{"completions_token_prompt.json", compl, facts{model: base, tokens: 5, choices: 1, maxOut: 16}},
		{"embeddings_string.json", embed, facts{model: embedder, bytes: 20, choices: 1}},
		{"embeddings_string_array.json", embed, facts{model: embedder, bytes: 20 + 5 + 51, choices: 3}},
		{"embeddings_token_array.json", embed, facts{model: embedder, tokens: 4, choices: 1}},
		{"embeddings_token_arrays.json", embed, facts{model: embedder, tokens: 8, choices: 2}},
		{"triton_generate.json", other, facts{stream: true, bytes: 18, choices: 1}},
		{"anthropic_count_tokens.json", other, facts{model: "lantern-claude-like", bytes: 4 + 20, choices: 1}},
	}
	for _, tt := range tests {
		t.Run(tt.file, func(t *testing.T) {
			data, err := os.ReadFile(filepath.Join("testdata", tt.file))
			if err != nil {
				t.Fatal(err)
			}
			b := mustParse(t, tt.kind, string(data))
			got := facts{b.Model, b.Stream, b.Usage, b.PromptBytes, b.PromptTokens, b.Media, b.Choices, b.MaxOut}
			if got != tt.want {
				t.Errorf("got  %+v\nwant %+v", got, tt.want)
			}
		})
	}
}

// Bodies that are refused: with 400, naming the field, the value, the bound.
func TestParseRefuses(t *testing.T) {
	const chat, compl, embed, other = policy.OpenAIChat, policy.OpenAICompletions, policy.OpenAIEmbeddings, policy.JSON
	chatWith := func(rest string) string {
		return `{"model":"m","messages":[{"role":"user","content":"hi"}],` + rest + `}`
	}
	tests := []struct {
		kind        policy.Kind
		data        string
		code, field string
		msg         string // a part of the message
	}{
		{chat, "", CodeInvalidJSON, "", "the body is empty"},
		{chat, " \n", CodeInvalidJSON, "", "the body is empty"},
		{chat, "[]", CodeInvalidJSON, "", "not a JSON object"},
		{other, `"x"`, CodeInvalidJSON, "", "not a JSON object"},
		{chat, "\xef\xbb\xbf{}", CodeInvalidJSON, "", "not a JSON object"},
		{chat, `{"model":"m"`, CodeInvalidJSON, "", "at byte 12 of 12"},
		{chat, `{"model":"m","messages":[]} x`, CodeInvalidJSON, "", "0x78 where the end of the body is expected"},
		{chat, chatWith(`"x":tru`), CodeInvalidJSON, "", "true, false or null"},
		{chat, chatWith(`"x":01`), CodeInvalidJSON, "", ""},
		{chat, chatWith(`"x":1.`), CodeInvalidJSON, "", "a digit"},
		{chat, chatWith(`"x":NaN`), CodeInvalidJSON, "", "a value"},
		{chat, chatWith(`"x":[1,]`), CodeInvalidJSON, "", "a value"},
		{chat, chatWith(`"x":{"a":1,}`), CodeInvalidJSON, "", "a name in quotes"},
		{chat, chatWith("\"x\":\"\xff\""), CodeInvalidJSON, "", "invalid UTF-8"},
		{chat, chatWith("\"x\":\"a\nb\""), CodeInvalidJSON, "", "control character"},
		{chat, chatWith(`"x":"\ud800"`), CodeInvalidJSON, "", "escape that is not valid"},
		{chat, chatWith(`"x":` + strings.Repeat("[", 64) + strings.Repeat("]", 64)), CodeInvalidJSON, "", "more than 64 nested levels"},
		{other, `{"a":1,"a":2}`, CodeDuplicate, "a", `"a" appears twice`},
		{chat, chatWith(`"model":"n"`), CodeDuplicate, "model", `"model" appears twice`},
		{chat, chatWith(`"\u006dodel":"n"`), CodeDuplicate, "model", `"model" appears twice`},
		{chat, chatWith(`"x":[{"y":{"k":1,"\u006b":2}}]`), CodeDuplicate, "k", `"k" appears twice`},
		{chat, `{"model":"m","messages":[{"content":"a","content":"b"}]}`, CodeDuplicate, "content", "twice"},
		{chat, chatWith(`"Model":"n"`), CodeDuplicate, "model", `"Model" differs from "model" only by case`},
		{chat, chatWith(`"MAX_TOKENS":9`), CodeDuplicate, "max_tokens", "only by case"},
		{chat, chatWith(`"\u004dodel":"n"`), CodeDuplicate, "model", "only by case"},
		{chat, chatWith(`"ſtream":true`), CodeDuplicate, "stream", "only by case"},
		{chat, chatWith(`"max_toKens":9`), CodeDuplicate, "max_tokens", "only by case"}, // the Kelvin sign
		{chat, chatWith(`"stream_options":{"Include_Usage":true}`), CodeDuplicate, "include_usage", "only by case"},
		{other, `{"MODEL":"x"}`, CodeDuplicate, "model", "only by case"},
		{chat, `{"messages":[]}`, CodeMissing, "model", `"model" is missing`},
		{chat, `{"model":"m"}`, CodeMissing, "messages", `"messages" is missing`},
		{embed, `{"input":"x"}`, CodeMissing, "model", `"model" is missing`},
		{chat, chatWith(`"max_tokens":"10"`), CodeInvalid, "max_tokens", `a whole number from 1 to 2147483647, not the string "10"`},
		{chat, chatWith(`"max_tokens":1.5`), CodeInvalid, "max_tokens", "from 1 to 2147483647, not 1.5"},
		{chat, chatWith(`"max_tokens":-3`), CodeInvalid, "max_tokens", "not -3"},
		{chat, chatWith(`"max_tokens":0`), CodeInvalid, "max_tokens", "not 0"},
		{chat, chatWith(`"max_tokens":1e30`), CodeInvalid, "max_tokens", "not 1e30"},
		{chat, chatWith(`"max_tokens":1e999`), CodeInvalid, "max_tokens", "not 1e999"},
		{chat, chatWith(`"max_tokens":9223372036854775808`), CodeInvalid, "max_tokens", "not 9223372036854775808"},
		{chat, chatWith(`"max_tokens":{}`), CodeInvalid, "max_tokens", "not an object"},
		{chat, chatWith(`"max_completion_tokens":true`), CodeInvalid, "max_completion_tokens", "not true"},
		{chat, chatWith(`"n":0`), CodeInvalid, "n", "from 1 to 1024, not 0"},
		{chat, chatWith(`"n":1025`), CodeInvalid, "n", "not 1025"},
		{compl, `{"model":"m","best_of":-1}`, CodeInvalid, "best_of", "not -1"},
		{chat, chatWith(`"stream":"true"`), CodeInvalid, "stream", `true or false, not the string "true"`},
		{chat, chatWith(`"stream":1`), CodeInvalid, "stream", "not 1"},
		{chat, chatWith(`"stream_options":[]`), CodeInvalid, "stream_options", "an object, not an array"},
		{chat, chatWith(`"stream_options":{"include_usage":1}`), CodeInvalid, "stream_options.include_usage", "not 1"},
		{chat, `{"model":7,"messages":[]}`, CodeInvalid, "model", "a string, not 7"},
		{chat, `{"model":"","messages":[]}`, CodeInvalid, "model", "is empty"},
		{chat, `{"model":" m","messages":[]}`, CodeInvalid, "model", `white space: " m"`},
		{chat, `{"model":"m\u00a0","messages":[]}`, CodeInvalid, "model", "white space"},
		{chat, `{"model":"m\u0000","messages":[]}`, CodeInvalid, "model", "do not print"},
		{chat, `{"model":"a\u200bb","messages":[]}`, CodeInvalid, "model", "do not print"},
		{chat, `{"model":"` + strings.Repeat("m", 257) + `","messages":[]}`, CodeInvalid, "model", "257 bytes; at most 256"},
		{chat, `{"model":"m","messages":"secret words"}`, CodeInvalid, "messages", "not a string"},
		{chat, `{"model":"m","messages":["secret words"]}`, CodeInvalid, "messages[0]", "not a string"},
		{chat, `{"model":"m","messages":[{},{"content":7}]}`, CodeInvalid, "messages[1].content", "not a number"},
		{chat, `{"model":"m","messages":[{"content":[1]}]}`, CodeInvalid, "messages[0].content[0]", "not a number"},
		{compl, `{"model":"m","prompt":{"a":1}}`, CodeInvalid, "prompt", "not an object"},
		{compl, `{"model":"m","prompt":["secret",1]}`, CodeInvalid, "prompt[1]", "not a number"},
		{embed, `{"model":"m","input":[1,-2]}`, CodeInvalid, "input", "whole numbers from 0, not -2"},
		{embed, `{"model":"m","input":[[1,"x"]]}`, CodeInvalid, "input", "not a string"},
	}
	for _, tt := range tests {
		b, err := Parse(tt.kind, []byte(tt.data))
		if err == nil {
			t.Errorf("%.80s: accepted as %+v", tt.data, b)
			continue
		}
		if err.Status != 400 || err.Code != tt.code || err.Field != tt.field || !strings.Contains(err.Msg, tt.msg) {
			t.Errorf("%.80s:\ngot  %d %s %q %q\nwant 400 %s %q %q", tt.data, err.Status, err.Code, err.Field, err.Msg, tt.code, tt.field, tt.msg)
		}
		if strings.Contains(err.Msg, "secret") {
			t.Errorf("%s: the message quotes the prompt: %s", tt.data, err.Msg)
		}
	}
	for _, file := range []string{"chat_duplicate_model_key.json", "chat_padded_model.json", "chat_odd_types.json", "chat_broken_json.json.txt"} {
		data, _ := os.ReadFile(filepath.Join("testdata", file))
		if _, err := Parse(chat, data); err == nil || err.Status != 400 {
			t.Errorf("%s: got %v, want a 400", file, err)
		}
	}
}

// What is odd but means one thing to every reader is accepted.
func TestParseAccepts(t *testing.T) {
	b := mustParse(t, policy.OpenAIChat, " {\"\\u006dodel\" : \"a\\u002fb\", \"messages\":[{\"content\":null},{\"content\":[\"x\"]}], "+
		"\"max_tokens\":64.0,\"max_completion_tokens\":1e2,\"n\":null,\"stream\":null,\"stream_options\":null,\"temperature\":null}\r\n")
	if b.Model != "a/b" || b.MaxOut != 100 || b.Stream || b.Usage != UsageNotSet || b.PromptBytes != 1 {
		t.Errorf("got %+v", b)
	}
	// The larger of the two caps is reserved, whichever comes first.
	b = mustParse(t, policy.OpenAIChat, `{"model":"m","messages":[],"max_completion_tokens":10,"max_tokens":500,"n":2,"best_of":3}`)
	if b.MaxOut != 1500 {
		t.Errorf("MaxOut = %d, want 500 x 3", b.MaxOut)
	}
	// A product that does not fit stays at the largest value.
	prompts := strings.Repeat(`"p",`, 9_999) + `"p"`
	b = mustParse(t, policy.OpenAICompletions, `{"model":"m","prompt":[`+prompts+`],"max_tokens":2147483647,"n":1024}`)
	if want := int64(2147483647 * 1024 * 10_000); b.MaxOut != want {
		t.Errorf("MaxOut = %d, want %d", b.MaxOut, want)
	}
	if got := mul(1<<62, 4); got != 1<<63-1 {
		t.Errorf("mul wraps to %d", got)
	}
	// Scoring calls of completions send a cap of 0.
	if b = mustParse(t, policy.OpenAICompletions, `{"model":"m","prompt":"p","max_tokens":0,"echo":true}`); b.MaxOut != 0 {
		t.Errorf("MaxOut = %d, want 0 (no cap)", b.MaxOut)
	}
	// 63 levels inside the object are the limit.
	mustParse(t, policy.JSON, `{"x":`+strings.Repeat("[", 63)+strings.Repeat("]", 63)+`}`)
}

// A CJK character is worth at least half a token at the coldest ratio, with
// or without escapes.
func TestPromptCJK(t *testing.T) {
	plain := mustParse(t, policy.OpenAIChat, `{"model":"m","messages":[{"content":"`+strings.Repeat("港", 3000)+`"}]}`)
	escaped := mustParse(t, policy.OpenAIChat, `{"model":"m","messages":[{"content":"`+strings.Repeat(`\u6e2f`, 3000)+`"}]}`)
	for _, b := range []*Body{plain, escaped} {
		if b.PromptBytes != 9000 {
			t.Errorf("got bytes %d, want 9000", b.PromptBytes)
		}
	}
	b := mustParse(t, policy.OpenAIChat, `{"model":"m","messages":[{"content":"é\u00e9🚢\ud83d\udea2\n"}]}`)
	if b.PromptBytes != 2+2+4+4+1 {
		t.Errorf("got bytes %d, want 13", b.PromptBytes)
	}
}

// An object of many names costs linear time and is bounded.
func TestParseManyNames(t *testing.T) {
	var w strings.Builder
	for i := range MaxMembers {
		fmt.Fprintf(&w, `,"k%d":0`, i)
	}
	mustParse(t, policy.JSON, `{"x":{`+w.String()[1:]+`}}`)
	if _, err := Parse(policy.JSON, []byte(`{"x":{`+w.String()[1:]+`,"k77":0}}`)); err == nil {
		t.Error("accepted one name too many")
	}
	if _, err := Parse(policy.JSON, []byte(`{"x":{`+w.String()[1:2000]+`":0,"k77":0}}`)); err == nil || err.Code != CodeDuplicate {
		t.Errorf("got %v, want a duplicate", err)
	}
}

func TestCheckHeaders(t *testing.T) {
	tests := []struct {
		contentType, encoding string
		code                  string
	}{
		{"", "", ""},
		{"application/json", "", ""},
		{"Application/JSON; charset=UTF-8", "identity", ""},
		{"application/vnd.api+json", " , identity", ""},
		{"multipart/form-data; boundary=x", "", CodeMediaType},
		{"text/plain", "", CodeMediaType},
		{"application/x-www-form-urlencoded", "", ""},
		{"application/x-www-form-urlencoded; charset=utf-16", "", CodeMediaType},
		{"application/x-www-form-urlencoded, text/plain", "", CodeMediaType},
		{"application/json, text/plain", "", CodeMediaType},
		{"application/json; charset=utf-16", "", CodeMediaType},
		{"application/+json", "", CodeMediaType},
		{"application/json", "gzip", CodeEncoding},
		{"application/json", "identity, GZIP", CodeEncoding},
		{"application/json", "br", CodeEncoding},
	}
	for _, tt := range tests {
		err := CheckHeaders(tt.contentType, tt.encoding)
		if (err == nil) != (tt.code == "") || err != nil && (err.Code != tt.code || err.Status != 415) {
			t.Errorf("CheckHeaders(%q, %q) = %v, want %q", tt.contentType, tt.encoding, err, tt.code)
		}
	}
}

// Whatever becomes part of a prompt counts, in whichever place it stands.
func TestPromptAnywhere(t *testing.T) {
	long := strings.Repeat("word ", 200)
	numbers := strings.Repeat("12345,", 199) + "12345"
	for _, rest := range []string{
		`"messages":[{"role":"` + long + `","content":"c"}]`,
		`"messages":[{"role":"assistant","tool_calls":[{"function":{"arguments":{"` + long + `":1}}}]}]`,
		`"messages":[{"role":"assistant","tool_calls":[{"function":{"arguments":{"a":[` + numbers + `]}}}]}]`,
		`"messages":[{"content":[{"type":"` + long + `","text":"c"}]}]`,
		`"messages":[],"tools":[{"enum":[` + numbers + `]}]`,
		`"messages":[],"tools":[{"enum":[` + strings.Repeat("[],{},", 499) + `[]]}]`,
		`"messages":[],"tools":[{"enum":[` + strings.Repeat("true,null,", 199) + `[]]}]`,
		`"messages":[],"chat_template":"` + long + `"`,
		`"messages":[],"chat_template_kwargs":{"a":["` + long + `"]}`,
		`"messages":[],"documents":[{"` + long + `":1}]`,
	} {
		b := mustParse(t, policy.OpenAIChat, `{"model":"m",`+rest+`}`)
		if b.PromptBytes < 900 || b.PromptBytes > 2000 {
			t.Errorf("%.80s: %d bytes of prompt", rest, b.PromptBytes)
		}
	}
	b := mustParse(t, policy.OpenAIChat, `{"model":"m","messages":[{"role":"assistant","content":"c"},{"role":"developer","content":[{"type":"text","text":"d"}]}]}`)
	if b.PromptBytes != 2 {
		t.Errorf("roles and types count: %d bytes", b.PromptBytes)
	}
}

// What is no text is not taken for text, whatever the engine calls it: its bytes
// tell nothing of its tokens.
func TestPartsThatAreNoText(t *testing.T) {
	for _, name := range mediaParts {
		b := mustParse(t, policy.OpenAIChat, `{"model":"m","messages":[{"content":[{"type":"`+name+`","`+name+`":{"data":"`+strings.Repeat("QUJD", 500)+`"}},{"type":"text","text":"hi"}]}]}`)
		if b.Media != 1 || b.PromptBytes > 40 {
			t.Errorf("%s: %d parts that are not text, %d bytes of text", name, b.Media, b.PromptBytes)
		}
	}
}
