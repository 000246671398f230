package body

import (
	"testing"

	"github.com/weirproxy/weir/policy"
)

func TestRewrite(t *testing.T) {
	const chat = policy.OpenAIChat
	tests := []struct {
		data  string
		edits []Edit
		want  string
	}{
		{`{"model":"a","messages":[]}`, nil, `{"model":"a","messages":[]}`},
		{`{"model":"a","messages":[]}`, []Edit{SetString("model", `b"é`)}, `{"model":"b\"é","messages":[]}`},
		{`{ "\u006dodel" : "a" , "messages":[] }`, []Edit{SetString("model", "b")}, `{ "\u006dodel" : "b" , "messages":[] }`},
		{`{"model":"a","messages":[] }`, []Edit{SetInt("max_tokens", 9)}, `{"model":"a","messages":[],"max_tokens":9 }`},
		{`{"max_tokens":50,"model":"a","messages":[]}`, []Edit{SetInt("max_tokens", 9), SetBool("stream", false)},
			`{"max_tokens":9,"model":"a","messages":[],"stream":false}`},
		{`{"model":"a","messages":[]}`, []Edit{SetInt("n", 5), SetInt("n", 1)}, `{"model":"a","messages":[],"n":1}`},
		{`{"model":"a","messages":[]}`, []Edit{IncludeUsage()}, `{"model":"a","messages":[],"stream_options":{"include_usage":true}}`},
		{`{"stream_options":null,"model":"a","messages":[]}`, []Edit{IncludeUsage()}, `{"stream_options":{"include_usage":true},"model":"a","messages":[]}`},
		{`{"stream_options":{ },"model":"a","messages":[]}`, []Edit{IncludeUsage()}, `{"stream_options":{"include_usage":true },"model":"a","messages":[]}`},
		{`{"stream_options":{"x":1},"model":"a","messages":[]}`, []Edit{IncludeUsage(), SetNumber("temperature", 0.5)},
			`{"stream_options":{"x":1,"include_usage":true},"model":"a","messages":[],"temperature":0.5}`},
		{`{"stream_options":{"include_usage":false,"x":1},"model":"a","messages":[]}`, []Edit{IncludeUsage()},
			`{"stream_options":{"include_usage":true,"x":1},"model":"a","messages":[]}`},
		{`{"messages":[],"model":"a","stream_options":{"x":1}}`, []Edit{IncludeUsage(), SetInt("n", 2)},
			`{"messages":[],"model":"a","stream_options":{"x":1,"include_usage":true},"n":2}`},
	}
	for _, tt := range tests {
		b := mustParse(t, chat, tt.data)
		got := string(b.Rewrite(tt.edits...))
		if got != tt.want {
			t.Errorf("%s\ngot  %s\nwant %s", tt.data, got, tt.want)
		}
		mustParse(t, chat, got)
	}
	empty := mustParse(t, policy.JSON, `{ }`)
	if got := string(empty.Rewrite(SetInt("a", 1), SetInt("b", 2))); got != `{"a":1,"b":2 }` {
		t.Errorf("empty object: %s", got)
	}
	if got := string(empty.Rewrite()); got != `{ }` {
		t.Errorf("no edits: %s", got)
	}
}
