package modelsim_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/modelsim"
)

// rig is a simulator on loopback and a client of it.
type rig struct {
	*modelsim.Sim
	t      *testing.T
	url    string
	client *http.Client
}

func start(t *testing.T, cfg modelsim.Config) *rig {
	t.Helper()
	if cfg.Speed == 0 {
		cfg.Speed = 50
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	sim := modelsim.New(cfg)
	served := make(chan error, 1)
	go func() { served <- sim.Serve(l) }()
	transport := &http.Transport{DisableCompression: true}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		if err := sim.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return &rig{Sim: sim, t: t, url: "http://" + l.Addr().String(), client: &http.Client{Transport: transport}}
}

// post sends a call; headers are name, value pairs.
func (r *rig) post(ctx context.Context, path, body string, headers ...string) (*http.Response, error) {
	r.t.Helper()
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	q.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		q.Header.Set(headers[i], headers[i+1])
	}
	return r.client.Do(q)
}

// must is post for calls that are answered; it reads the whole body.
func (r *rig) must(path, body string, headers ...string) (*http.Response, string) {
	r.t.Helper()
	resp, err := r.post(r.t.Context(), path, body, headers...)
	if err != nil {
		r.t.Fatalf("POST %s: %v", path, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatalf("POST %s: body: %v", path, err)
	}
	return resp, string(b)
}

// idle waits until the simulator has no request and returns its counts.
func (r *rig) idle() modelsim.Totals {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 10*time.Second)
	defer cancel()
	if err := r.WaitIdle(ctx); err != nil {
		r.t.Fatalf("simulator is not idle: %v, %+v", err, r.Totals())
	}
	return r.Totals()
}

// events are the data lines of a stream.
func events(body string) (list []string) {
	s := bufio.NewScanner(strings.NewReader(body))
	for s.Scan() {
		if data, ok := strings.CutPrefix(s.Text(), "data: "); ok {
			list = append(list, data)
		}
	}
	return list
}

// hello is 5 bytes: 2 tokens, and 3 for the message.
const (
	hello       = `"messages":[{"role":"user","content":"hello"}]`
	helloTokens = 5
)

func TestChatJSON(t *testing.T) {
	r := start(t, modelsim.Config{Text: "one two three"})
	resp, body := r.must("/v1/chat/completions", `{"model":"m",`+hello+`,"max_tokens":4}`, modelsim.TenantHeader, "acme")
	var got struct {
		Object  string
		Model   string
		Choices []struct {
			Message struct{ Role, Content string }
			Finish  string `json:"finish_reason"`
		}
		Usage map[string]int
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	if resp.StatusCode != 200 || got.Object != "chat.completion" || got.Model != "m" || len(got.Choices) != 1 {
		t.Fatalf("status %d, body %s", resp.StatusCode, body)
	}
	if c := got.Choices[0]; c.Message.Content != "one two three one " || c.Message.Role != "assistant" || c.Finish != "length" {
		t.Errorf("choice = %+v", c)
	}
	if u := got.Usage; u["prompt_tokens"] != helloTokens || u["completion_tokens"] != 4 || u["total_tokens"] != helloTokens+4 {
		t.Errorf("usage = %v", u)
	}
	want := modelsim.Count{Started: 1, Finished: 1, Prompt: helloTokens, Output: 4, Delivered: 4}
	if got := r.Totals(); got.Count != want || got.Tenants["acme"] != want {
		t.Errorf("totals = %+v, want %+v for the sum and for acme", got, want)
	}
}

func TestChatStream(t *testing.T) {
	tests := []struct {
		name, options string
		usage         string // of the last chunk
		null          bool   // usage: null before it
	}{
		{"no options", ``, "", false},
		{"usage asked for", `,"stream_options":{"include_usage":true}`, `{"prompt_tokens":5,"completion_tokens":3,"total_tokens":8}`, true},
		{"usage refused", `,"stream_options":{"include_usage":false}`, "", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := start(t, modelsim.Config{})
			resp, body := r.must("/v1/chat/completions", `{"model":"m",`+hello+`,"max_tokens":3,"stream":true`+tt.options+`}`)
			if ct := resp.Header.Get("Content-Type"); !strings.HasPrefix(ct, "text/event-stream") {
				t.Errorf("content-type = %q", ct)
			}
			list := events(body)
			if list[len(list)-1] != "[DONE]" {
				t.Fatalf("stream does not end with [DONE]: %s", body)
			}
			want := 5 // three tokens, finish, [DONE]
			if tt.usage != "" {
				want++
				last := list[len(list)-2]
				if !strings.Contains(last, `"choices":[]`) || !strings.Contains(last, `"usage":`+tt.usage) {
					t.Errorf("usage chunk = %s", last)
				}
			}
			if len(list) != want {
				t.Errorf("%d events, want %d: %s", len(list), want, body)
			}
			if got := strings.Contains(list[0], `"usage":null`); got != tt.null {
				t.Errorf("usage null in the first chunk: %v, want %v: %s", got, tt.null, list[0])
			}
			count := modelsim.Count{Started: 1, Finished: 1, Prompt: helloTokens, Output: 3, Delivered: 3}
			if got := r.Totals(); got.Count != count {
				t.Errorf("totals = %+v, want %+v", got.Count, count)
			}
		})
	}
}

// A client that goes away ends the making of tokens; what it got is counted.
func TestClientAbort(t *testing.T) {
	r := start(t, modelsim.Config{Speed: 1})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	resp, err := r.post(ctx, "/v1/chat/completions", `{"model":"m",`+hello+`,"max_tokens":100000,"stream":true}`)
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for s := bufio.NewScanner(resp.Body); seen < 3 && s.Scan(); {
		if strings.HasPrefix(s.Text(), "data: ") {
			seen++
		}
	}
	cancel()
	_ = resp.Body.Close()
	got := r.idle()
	if got.Aborted != 1 || got.Finished != 0 || got.Prompt != helloTokens {
		t.Errorf("totals = %+v", got.Count)
	}
	if got.Delivered < 3 || got.Delivered > got.Output || got.Output > 1000 {
		t.Errorf("delivered %d, output %d: want at least the 3 seen, and an end soon after", got.Delivered, got.Output)
	}
	if l := r.Load(); l.Running != 0 || l.Waiting != 0 || l.KVUsed != 0 {
		t.Errorf("load after an abort = %+v", l)
	}
}
