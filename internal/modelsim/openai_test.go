package modelsim_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/weirproxy/weir/internal/modelsim"
)

func TestPromptTokens(t *testing.T) {
	tests := []struct {
		path, body string
		want       int64
	}{
		{chatPath, `{"messages":[{"role":"system","content":"abcd"},{"role":"user","content":"abcdefgh"}]}`, 3 + 3 + 3},
		{chatPath, `{"messages":[{"role":"user","content":[{"type":"text","text":"abcd"},{"type":"image_url","image_url":{"url":"x"}}]}]}`, 1 + 3},
		{chatPath, `{"messages":[{"role":"assistant","content":null}]}`, 3},
		{"/v1/completions", `{"prompt":"abcde"}`, 2},
		{"/v1/completions", `{"prompt":["abcd","abcdefgh"]}`, 3},
		{"/v1/completions", `{"prompt":[1,2,3]}`, 3},
		{"/v1/completions", `{"prompt":[[1,2,3],[4]]}`, 4},
		{"/v1/embeddings", `{"input":"abcde"}`, 2},
		{"/v1/embeddings", `{"input":["abcd","ab"]}`, 2},
	}
	for _, tt := range tests {
		r := start(t, modelsim.Config{})
		resp, body := r.must(tt.path, tt.body)
		var got struct {
			Usage struct {
				Prompt int64 `json:"prompt_tokens"`
			}
		}
		if err := json.Unmarshal([]byte(body), &got); err != nil || resp.StatusCode != 200 {
			t.Errorf("%s %s: status %d, %v, %s", tt.path, tt.body, resp.StatusCode, err, body)
		}
		if n := r.Totals().Prompt; got.Usage.Prompt != tt.want || n != tt.want {
			t.Errorf("%s %s: usage says %d, totals say %d, want %d", tt.path, tt.body, got.Usage.Prompt, n, tt.want)
		}
	}
}

func TestChoices(t *testing.T) {
	r := start(t, modelsim.Config{})
	_, body := r.must(chatPath, `{`+hello+`,"max_tokens":4,"n":3}`)
	if n := strings.Count(body, `"finish_reason":"length"`); n != 3 || !strings.Contains(body, `"completion_tokens":12`) {
		t.Errorf("body = %s, want 3 choices and 12 tokens", body)
	}
	_, body = r.must("/v1/completions", `{"prompt":["a","b"],"max_tokens":2,"n":2,"stream":true}`)
	if n := strings.Count(body, `"text":"`); n != 4*2+4 {
		t.Errorf("%d texts, want 2 for each of 4 choices and their ends: %s", n, body)
	}
	if c := r.Totals(); c.Output != 12+8 || c.Delivered != 12+8 || c.Finished != 2 {
		t.Errorf("totals = %+v", c.Count)
	}
}

func TestLengthOfAnswers(t *testing.T) {
	tests := []struct {
		body, natural string
		output        int64
		finish        string
	}{
		{`{` + hello + `}`, "", 16, "stop"},
		{`{` + hello + `,"max_tokens":40}`, "", 40, "length"},
		{`{` + hello + `,"max_tokens":40,"max_completion_tokens":4}`, "", 4, "length"},
		{`{` + hello + `,"max_tokens":40}`, "7", 7, "stop"},
		{`{` + hello + `,"max_tokens":4}`, "7", 4, "length"},
		{`{` + hello + `}`, "7", 7, "stop"},
	}
	for _, tt := range tests {
		r := start(t, modelsim.Config{})
		_, body := r.must(chatPath, tt.body, modelsim.OutputHeader, tt.natural)
		if !strings.Contains(body, fmt.Sprintf(`"finish_reason":%q`, tt.finish)) || r.Totals().Output != tt.output {
			t.Errorf("%s natural %q: output %d, want %d, %s: %s", tt.body, tt.natural, r.Totals().Output, tt.output, tt.finish, body)
		}
	}
}

func TestContinuousUsage(t *testing.T) {
	r := start(t, modelsim.Config{})
	_, body := r.must(chatPath, `{`+hello+`,"max_tokens":3,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`)
	list := events(body)
	for i := range 3 {
		if want := fmt.Sprintf(`"completion_tokens":%d,`, i+1); !strings.Contains(list[i], want) {
			t.Errorf("event %d = %s, want %s", i, list[i], want)
		}
	}
}

// A caller's mistake is a 400 or 404 in the shape of the API.
func TestBadInput(t *testing.T) {
	tests := []struct {
		path, body string
		status     int
		want       string
	}{
		{chatPath, `{`, 400, "no valid request"},
		{chatPath, `[]`, 400, "no valid request"},
		{chatPath, `{"messages":[]}`, 400, "messages must not be empty"},
		{chatPath, `{"messages":[{"content":5}]}`, 400, "messages[0].content"},
		{chatPath, `{` + hello + `,"max_tokens":0}`, 400, "max_tokens must be at least 1, got 0"},
		{chatPath, `{` + hello + `,"n":0}`, 400, "n must be in 1..128, got 0"},
		{chatPath, `{` + hello + `,"n":1000}`, 400, "n must be in 1..128, got 1000"},
		{chatPath, `{` + hello + `,"max_tokens":400000}`, 400, "maximum context length is 400000 tokens, the request needs 400005"},
		{chatPath, `{` + hello + `,"model":"other"}`, 404, `the model \"other\" does not exist`},
		{"/v1/completions", `{}`, 400, "prompt must be"},
		{"/v1/completions", `{"prompt":[]}`, 400, "prompt must be"},
		{"/v1/completions", `{"prompt":[{}]}`, 400, "prompt[0]"},
		{"/v1/embeddings", `{"input":7}`, 400, "input must be"},
	}
	r := start(t, modelsim.Config{Models: []string{"m"}})
	for _, tt := range tests {
		resp, body := r.must(tt.path, tt.body)
		if resp.StatusCode != tt.status || !strings.Contains(body, tt.want) || !strings.Contains(body, `"type":"invalid_request_error"`) {
			t.Errorf("%s %s: status %d, %s; want %d, %s", tt.path, tt.body, resp.StatusCode, body, tt.status, tt.want)
		}
	}
	if c := r.idle(); c.Failed != int64(len(tests)) || c.Output != 0 {
		t.Errorf("totals = %+v", c.Count)
	}
}

func (r *rig) get(path string) (*http.Response, string) {
	r.t.Helper()
	q, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, r.url+path, http.NoBody)
	if err != nil {
		r.t.Fatal(err)
	}
	resp, err := r.client.Do(q)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp, string(b)
}

func TestModels(t *testing.T) {
	r := start(t, modelsim.Config{Models: []string{"a", "b"}})
	if _, body := r.get("/v1/models"); !strings.Contains(body, `"id":"a"`) || !strings.Contains(body, `"id":"b"`) {
		t.Errorf("models = %s", body)
	}
	if _, body := r.must(chatPath, `{`+hello+`}`); !strings.Contains(body, `"model":"a"`) {
		t.Errorf("without a model: %s, want the first one", body)
	}
}

// Totals are exact under load, for each tenant and in the sum.
func TestTotalsUnderLoad(t *testing.T) {
	r := start(t, modelsim.Config{Speed: 200})
	var work sync.WaitGroup
	for i := range 200 {
		work.Go(func() {
			body := fmt.Sprintf(`{%s,"max_tokens":%d,"stream":%v}`, hello, i%7+1, i%2 == 0)
			resp, text := r.must(chatPath, body, modelsim.TenantHeader, fmt.Sprint("t", i%4))
			if resp.StatusCode != 200 || text == "" {
				t.Errorf("status %d", resp.StatusCode)
			}
		})
	}
	work.Wait()
	var want int64
	for i := range 200 {
		want += int64(i%7 + 1)
	}
	got := r.Totals()
	sum := modelsim.Count{Started: 200, Finished: 200, Prompt: 200 * helloTokens, Output: want, Delivered: want}
	if got.Count != sum || got.InFlight != 0 {
		t.Errorf("totals = %+v, want %+v", got.Count, sum)
	}
	var tenants modelsim.Count
	for _, c := range got.Tenants {
		if c.Finished != 50 {
			t.Errorf("tenants = %+v, want 50 each", got.Tenants)
		}
		tenants.Prompt += c.Prompt
		tenants.Output += c.Output
	}
	if tenants.Output != want || tenants.Prompt != sum.Prompt {
		t.Errorf("tenants sum to %+v, want %+v", tenants, sum)
	}
	_, stats := r.get("/sim/stats")
	var shown struct{ Totals modelsim.Totals }
	if err := json.Unmarshal([]byte(stats), &shown); err != nil || shown.Totals.Count != sum {
		t.Errorf("stats = %s, %v", stats, err)
	}
}
