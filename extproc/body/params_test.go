package body

import (
	"math"
	"strings"
	"testing"

	"github.com/weirproxy/weir/identity"
	"github.com/weirproxy/weir/policy"
)

// K1, third level: parameter scopes.
func TestCheckParams(t *testing.T) {
	atMost := func(f string, b float64) identity.Param {
		return identity.Param{Field: f, Op: identity.AtMost, Bound: b}
	}
	atLeast := func(f string, b float64) identity.Param {
		return identity.Param{Field: f, Op: identity.AtLeast, Bound: b}
	}
	equal := func(f string, b float64) identity.Param {
		return identity.Param{Field: f, Op: identity.Equal, Bound: b}
	}
	oneOf := func(f string, e ...string) identity.Param {
		return identity.Param{Field: f, Op: identity.Equal, Enum: e}
	}
	const chat, compl = policy.OpenAIChat, policy.OpenAICompletions
	tests := []struct {
		kind   policy.Kind
		rest   string // members after model and messages
		params []identity.Param
		clamp  bool
		edits  string // "field=value ..." or
		err    string // a part of the message of a 403 (400 for a twin)
	}{
		{kind: chat, rest: `,"max_tokens":1024`, params: []identity.Param{atMost("max_tokens", 1024)}},
		{kind: chat, rest: `,"max_tokens":1025`, params: []identity.Param{atMost("max_tokens", 1024)}, clamp: true,
			err: `"max_tokens" is 1025; your key allows at most 1024`},
		{kind: chat, rest: `,"max_completion_tokens":1025`, params: []identity.Param{atMost("max_tokens", 1024)}, clamp: true,
			err: `"max_completion_tokens" is 1025; your key allows at most 1024`},
		{kind: chat, rest: `,"max_completion_tokens":10`, params: []identity.Param{atMost("max_tokens", 1024)}},
		{kind: chat, rest: `,"max_tokens":5,"max_completion_tokens":9999`, params: []identity.Param{atMost("max_tokens", 1024)}, err: "is 9999"},
		{kind: chat, rest: ``, params: []identity.Param{atMost("max_tokens", 1024)}, clamp: true, edits: "max_tokens=1024"},
		{kind: chat, rest: `,"max_tokens":null`, params: []identity.Param{atMost("max_tokens", 1024)}, clamp: true, edits: "max_tokens=1024"},
		{kind: chat, rest: ``, params: []identity.Param{atMost("max_tokens", 1024)}, err: `"max_tokens" is not sent; your key allows at most 1024`},
		{kind: chat, rest: ``, params: []identity.Param{atMost("max_completion_tokens", 10.7)}, clamp: true, edits: "max_completion_tokens=10"},
		{kind: compl, rest: ``, params: []identity.Param{atMost("max_completion_tokens", 10)}, clamp: true, edits: "max_tokens=10"},
		{kind: compl, rest: `,"max_tokens":0`, params: []identity.Param{atMost("max_tokens", 10)}, clamp: true, err: "is 0"},
		{kind: chat, rest: ``, params: []identity.Param{atMost("max_tokens", 0)}, clamp: true, err: "is not sent"},
		{kind: chat, rest: ``, params: []identity.Param{atMost("max_tokens", math.NaN())}, clamp: true, err: "is not sent"},
		{kind: chat, rest: ``, params: []identity.Param{atMost("max_tokens", math.Inf(1))}, clamp: true, err: "is not sent"},
		{kind: chat, rest: ``, params: []identity.Param{atMost("max_tokens", 1e12)}, clamp: true, edits: "max_tokens=2147483647"},
		{kind: chat, rest: ``, params: []identity.Param{oneOf("max_tokens", "100")}, clamp: true, edits: "max_tokens=100"},
		{kind: chat, rest: ``, params: []identity.Param{atMost("max_output_tokens", 9)}, clamp: true, edits: "max_tokens=9"},
		{kind: policy.JSON, rest: `,"max_output_tokens":11`, params: []identity.Param{atMost("max_tokens", 10)}, clamp: true, err: "is 11"},
		{kind: policy.OpenAIEmbeddings, rest: ``, params: []identity.Param{atMost("max_tokens", 10), atMost("temperature", 0.5)}},
		{kind: chat, rest: ``, params: []identity.Param{atMost("max_tokens", 100), atMost("max_tokens", 50)}, clamp: true, edits: "max_tokens=50"},
		{kind: chat, rest: ``, params: []identity.Param{atMost("max_tokens", 50), atMost("max_tokens", 100)}, clamp: true, edits: "max_tokens=50"},
		// n and best_of
		{kind: chat, rest: ``, params: []identity.Param{equal("n", 1)}},
		{kind: chat, rest: `,"n":1`, params: []identity.Param{equal("n", 1)}},
		{kind: chat, rest: `,"n":2`, params: []identity.Param{equal("n", 1)}, err: `"n" is 2; your key allows only 1`},
		{kind: compl, rest: `,"n":1,"best_of":8`, params: []identity.Param{atMost("n", 2)}, err: `"best_of" is 8`},
		{kind: compl, rest: `,"n":8`, params: []identity.Param{atMost("best_of", 2)}, err: `"n" is 8`},
		// any numeric field
		{kind: chat, rest: ``, params: []identity.Param{atLeast("temperature", 0)}, clamp: true},
		{kind: chat, rest: ``, params: []identity.Param{atMost("temperature", 0.5)}, clamp: true, edits: "temperature=0.5"},
		{kind: chat, rest: ``, params: []identity.Param{atMost("temperature", 0.5)}, err: "is not sent"},
		{kind: chat, rest: `,"temperature":0.2`, params: []identity.Param{atLeast("temperature", 0.3)}, err: "is 0.2; your key allows at least 0.3"},
		{kind: chat, rest: `,"temperature":"0.4"`, params: []identity.Param{atMost("temperature", 1)}, err: `is the string "0.4"`},
		{kind: chat, rest: `,"temperature":1e999`, params: []identity.Param{atLeast("temperature", 0)}, err: "is 1e999"},
		{kind: chat, rest: `,"top_k":{}`, params: []identity.Param{atMost("top_k", 4)}, err: "is an object"},
		{kind: chat, rest: ``, params: []identity.Param{atMost("temperature", 0.5), atLeast("temperature", 0.6)}, clamp: true, err: "at most 0.5 and at least 0.6"},
		{kind: chat, rest: `,"Temperature":9`, params: []identity.Param{atMost("temperature", 1)}, clamp: true, err: "only by case"},
		{kind: chat, rest: `,"\u0074emperature":9`, params: []identity.Param{atMost("temperature", 1)}, clamp: true, err: "is 9"},
		// enums
		{kind: chat, rest: ``, params: []identity.Param{oneOf("model", "a", "m")}},
		{kind: chat, rest: ``, params: []identity.Param{oneOf("model", "a", "b")}, err: `"model" is the string "m"; your key allows only a or b`},
		{kind: chat, rest: `,"reasoning_effort":"l\u006fw"`, params: []identity.Param{oneOf("reasoning_effort", "low")}},
		{kind: chat, rest: `,"seed":1.0`, params: []identity.Param{oneOf("seed", "low", "1")}},
		{kind: chat, rest: `,"seed":[1]`, params: []identity.Param{oneOf("seed", "1")}, err: "is an array"},
		{kind: chat, rest: ``, params: []identity.Param{oneOf("reasoning_effort", "low", "high")}, clamp: true, err: "is not sent"},
		{kind: chat, rest: ``, params: []identity.Param{oneOf("reasoning_effort", "low")}, err: "is not sent"},
		{kind: chat, rest: ``, params: []identity.Param{oneOf("reasoning_effort", "low")}, clamp: true, edits: "reasoning_effort=\"low\""},
		{kind: chat, rest: ``, params: []identity.Param{oneOf("store", "false")}, clamp: true, edits: "store=false"},
		{kind: chat, rest: ``, params: []identity.Param{oneOf("seed", "inf")}, clamp: true, edits: "seed=\"inf\""},
		{kind: chat, rest: `,"stream":true`, params: []identity.Param{oneOf("stream", "false")}, err: "is true"},
		{kind: chat, rest: ``, params: []identity.Param{oneOf("stream", "false")}},
	}
	for _, tt := range tests {
		data := `{"model":"m","messages":[]` + tt.rest + `}`
		b := mustParse(t, tt.kind, data)
		edits, err := b.CheckParams(tt.params, tt.clamp, policy.RefuseUnknown)
		if tt.err != "" {
			status := 403
			if strings.Contains(tt.err, "only by case") {
				status = 400
			}
			if err == nil || err.Status != status || !strings.Contains(err.Msg, tt.err) {
				t.Errorf("%s %v: got %v, want %d %q", data, tt.params, err, status, tt.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s %v: %v", data, tt.params, err)
			continue
		}
		var got []string
		for _, e := range edits {
			got = append(got, e.Field()+"="+e.Value())
		}
		if g := strings.Join(got, " "); g != tt.edits {
			t.Errorf("%s %v: edits %q, want %q", data, tt.params, g, tt.edits)
		}
		again := mustParse(t, tt.kind, string(b.Rewrite(edits...)))
		if more, err := again.CheckParams(tt.params, tt.clamp, policy.RefuseUnknown); err != nil || len(more) != 0 {
			t.Errorf("%s %v: after the edits: %v %v", data, tt.params, more, err)
		}
		if again.MaxOut != b.WorkAfter(edits).MaxOut {
			t.Errorf("%s: WorkAfter = %d, parsed %d", data, b.WorkAfter(edits).MaxOut, again.MaxOut)
		}
	}
}
