package examples_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/envoytest"
)

// TestTrailers: requests that end with trailers. One without a body is refused
// before any pool has seen it; one with a body is judged as any other, also
// after a wait.
func TestTrailers(t *testing.T) {
	for _, example := range []string{"one-filter.yaml", "two-filters.yaml"} {
		t.Run(example, func(t *testing.T) { envoytest.EachEnvoy(t, trailers(example)) })
	}
}

func trailers(example string) func(t *testing.T, b envoytest.Binary) {
	return func(t *testing.T, b envoytest.Binary) {
		w := newWorld(t, b, setup{example: example, policy: trailing, pools: []string{"chat-fp16"}})
		protocols := new(http.Protocols)
		protocols.SetUnencryptedHTTP2(true) // HTTP/1.1 trailers are dropped at the listener
		w.client = &http.Client{Transport: &http.Transport{Protocols: protocols}, Timeout: 60 * time.Second}
		t.Cleanup(w.client.CloseIdleConnections)
		token := w.token(nil)
		for _, delay := range []time.Duration{0, 50 * time.Millisecond} {
			if a := w.trailed(token, "", delay); a.code != http.StatusBadRequest || a.errorCode() != "missing_body" {
				t.Errorf("no body: %d %s %v, want 400", a.code, a.body, a.err)
			}
		}
		for name, sim := range w.sims {
			if n := sim.Totals().Started; n != 0 {
				t.Errorf("%s has seen %d requests that nobody judged", name, n)
			}
		}
		if a := w.trailed(token, chatBody(3, false), 0); a.code != http.StatusOK {
			t.Errorf("with a body: %d %s %v", a.code, a.body, a.err)
		}
		leave := w.occupy("standard")
		held := make(chan answer, 1)
		go func() { held <- w.trailed(token, chatBody(3, false), 20*time.Millisecond) }()
		w.sees("it waits", func(q queue) bool { return q.Waiting == 1 })
		leave()
		if a := <-held; a.code != http.StatusOK {
			t.Errorf("held: %d %s %v", a.code, a.body, a.err)
		}
		w.idle(10 * time.Second)
		if n := w.metric("weir_faults_total"); n != 0 {
			t.Errorf("%v faults", n)
		}
	}
}

// trailing has somebody wait.
const trailing = `
pools: [{name: chat-fp16, variant: fp16, seats: {requests: 1}}]
models: [{name: deepseek-v4, pools: [chat-fp16]}]
classes: [{name: standard, maxWait: 8s, onExpiry: drop}]
`

// trailed sends a chat call that ends with trailers, delay after its body.
func (w *world) trailed(token, body string, delay time.Duration) answer {
	w.t.Helper()
	ctx, stop := context.WithTimeout(w.t.Context(), time.Minute)
	defer stop()
	r := w.request(ctx, http.MethodPost, "/v1/chat/completions", "x", "Authorization", "Bearer "+token)
	r.Body, r.ContentLength = io.NopCloser(io.MultiReader(strings.NewReader(body), after(ctx, delay))), -1
	r.Trailer = http.Header{"X-Weir-Tenant": {"other"}, "X-Sum": {"1"}}
	return w.do(r)
}

// after is an empty body that ends after some time.
func after(ctx context.Context, delay time.Duration) io.Reader {
	r, w := io.Pipe()
	go func() {
		select {
		case <-ctx.Done():
		case <-time.After(delay):
		}
		w.Close()
	}()
	return r
}
