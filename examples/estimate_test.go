package examples_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/envoytest"
)

// tightSeats has a pool of few tokens, and limits that nobody reaches.
const tightSeats = `
pools: [{name: chat-fp16, variant: fp16, seats: {requests: 500, tokens: 8000}}]
models: [{name: deepseek-v4, pools: [chat-fp16]}]
quotas:
  - {name: many, match: {tenant: "many*"}, by: [tenant], limits: [{tokens: 100000000, per: 1h}]}
  - {name: long, match: {tenant: "long*"}, by: [tenant], limits: [{tokens: 10000, per: 1m}]}
`

// T8: what is reserved for a call with choices is of the size of what it is
// charged, and short prompts of one tenant make no long one too large.
func TestEstimates(t *testing.T) {
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		w := newWorld(t, b, setup{example: formOf(b), envoy: unhurried, policy: patience + tightSeats, sim: steady(2 * time.Millisecond), pools: []string{"chat-fp16"}})
		ask := func(token, body string, header ...string) answer {
			return w.do(w.request(t.Context(), http.MethodPost, "/v1/chat/completions", body, append(header, "Authorization", "Bearer "+token)...))
		}
		manyChoices(t, w, ask)
		short := strings.Replace(chatBody(1, false), "What is a weir good for?", "hi", 1)
		for range 100 {
			if a := ask(w.token(claims{"tenant": "short"}), short); a.code != http.StatusOK {
				t.Fatalf("%d %s", a.code, a.body)
			}
		}
		long := strings.Replace(short, `"hi"`, `"`+strings.Repeat("long text ", 1200)+`"`, 1)
		for _, tenant := range []string{"long-b", "short"} {
			if a := ask(w.token(claims{"tenant": tenant}), long); a.code != http.StatusOK {
				t.Errorf("a prompt of 12,000 bytes of %s: %d %s", tenant, a.code, a.body)
			}
		}
		w.idle(5 * time.Second)
	})
}

func manyChoices(t *testing.T, w *world, ask func(token, body string, header ...string) answer) {
	token, body := w.token(claims{"tenant": "many"}), strings.Replace(chatBody(40, false), `"stream"`, `"n":128,"stream"`, 1)
	before := int64(0)
	for range 3 {
		done := make(chan answer, 1)
		go func() { done <- ask(token, body, "X-Sim-Fault", "late-headers=500ms") }()
		held := int64(0)
		envoytest.Eventually(t, 10*time.Second, "it is reserved", func() bool {
			held = w.used("many")["tokens"] - before
			return held > 0
		})
		if a := <-done; a.code != http.StatusOK {
			t.Fatalf("%d %s", a.code, a.body)
		}
		made := w.sims["chat-fp16"].Totals().Tenants["many"]
		envoytest.Eventually(t, 5*time.Second, "what the model counted is charged", func() bool { return w.used("many")["tokens"] == made.Prompt+made.Output })
		charged := made.Prompt + made.Output - before
		before += charged
		if charged < 128*40 || held < charged/2 || held > 2*charged {
			t.Errorf("128 choices held %d and were charged %d", held, charged)
		}
	}
}
