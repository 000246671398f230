package examples_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/envoytest"
)

// eachForm runs fn for every release and both example files.
func eachForm(t *testing.T, s setup, fn func(t *testing.T, w *world)) {
	t.Helper()
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		for _, example := range []string{"two-filters.yaml", "one-filter.yaml"} {
			t.Run(example, func(t *testing.T) {
				s := s
				s.example = example
				fn(t, newWorld(t, b, s))
			})
		}
	})
}

func TestAuthorisedCall(t *testing.T) {
	eachForm(t, setup{}, func(t *testing.T, w *world) {
		token := w.token(nil)
		plain := w.chat(token, 12, false)
		if plain.code != http.StatusOK || !strings.Contains(plain.body, `"completion_tokens":12`) {
			t.Fatalf("JSON answer: %d %v %s", plain.code, plain.err, plain.body)
		}
		stream := w.chat(token, 12, true)
		if stream.code != http.StatusOK || !stream.done() {
			t.Fatalf("SSE answer: %d %v %s", stream.code, stream.err, stream.body)
		}
		if strings.Contains(stream.body, `"usage":{`) {
			t.Errorf("the caller did not ask for usage and got it: %s", stream.body)
		}
		for name, want := range map[string]string{"x-weir-variant": "fp16-dyn", "x-weir-reason": "admitted"} {
			if got := plain.header.Get(name); got != want {
				t.Errorf("%s is %q, want %q (V1: standard runs on fp16-dyn)", name, got, want)
			}
		}
		w.idle(time.Second)
		if n := w.sims["chat-dyn"].Totals().Finished; n != 2 {
			t.Errorf("chat-dyn finished %d requests, want 2", n)
		}
	})
}
