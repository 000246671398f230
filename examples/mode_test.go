package examples_test

import (
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/envoytest"
)

// tight refuses the second request of a tenant within the hour, and has one
// seat in each chat pool.
const tight = `
quotas: [{name: one, match: {tenant: "*"}, by: [tenant], limits: [{requests: 1, per: 1h}]}]
queue: {length: {max: 0}}
profiles:
  trial: {mode: shadow}
  off: {mode: pass}
`

// reload changes weir's policy file and waits until it is in force.
func (w *world) reload(change func(policy string) string) {
	w.t.Helper()
	raw, err := os.ReadFile(w.weir.Config)
	if err != nil {
		w.t.Fatal(err)
	}
	before := w.metric("weir_policy_reloads_total", `result="applied"`)
	if err := os.WriteFile(w.weir.Config, []byte(change(string(raw))), 0o600); err != nil {
		w.t.Fatal(err)
	}
	envoytest.Eventually(w.t, 20*time.Second, "the new policy is in force", func() bool {
		return w.metric("weir_policy_reloads_total", `result="applied"`) > before
	})
}

// says puts a line on top of the policy, in place of the last one put there.
func says(line string) func(string) string {
	return func(policy string) string {
		_, rest, _ := strings.Cut(policy, "server:")
		return "version: 1\n" + line + "\nserver:" + rest
	}
}

// TestModes (O4): shadow and pass, whole, by class and by route, lift what
// weir says of how much and of what is asked, never of who asks; shadow
// records what it would have done.
func TestModes(t *testing.T) {
	eachForm(t, setup{policy: tight, envoy: func(tree envoytest.Tree) {
		change := map[string]func(envoytest.Tree){}
		for _, profile := range []string{"trial", "off"} {
			change[profile+".example"] = routeMetadata(envoytest.Tree{"profile": profile})
		}
		hosts(tree, change)
	}}, func(t *testing.T, w *world) {
		call := func(host, tenant, class, body string) answer {
			req := w.request(t.Context(), http.MethodPost, "/v1/chat/completions", body, "Authorization", "Bearer "+w.token(claims{"tenant": tenant, "class": class}))
			req.Host = host
			return w.do(req)
		}
		good := chatBody(2, false)
		lifted := func(what, host, tenant, class string) {
			t.Helper()
			for i := range 3 { // only the first fits the quota
				if a := call(host, tenant, class, good); a.code != http.StatusOK {
					t.Errorf("%s, call %d: %d %s", what, i, a.code, a.body)
				}
			}
			a := call(host, tenant, class, `{"model":`) // the model itself says that it is broken
			if a.header.Get("x-weir-reason") == "body_invalid" {
				t.Errorf("%s: refused for its body: %d %s", what, a.code, a.body)
			}
			w.whoAsks(host)
		}
		enforced := func(what, host, tenant, class string) {
			t.Helper()
			refused(t, call(host, tenant, class, `{"model":`), http.StatusBadRequest, "body_invalid", "invalid_json")
			if a := call(host, tenant, class, good); a.code != http.StatusOK {
				t.Errorf("%s, the first call: %d %s", what, a.code, a.body)
			}
			for _, body := range []string{good, `{"model":`} { // a full quota refuses before the body is read
				refused(t, call(host, tenant, class, body), http.StatusTooManyRequests, "quota_requests", "rate_limit_exceeded")
			}
		}
		const plain = "plain.example"
		shadowed := func() float64 { return w.metric("weir_shadow_decisions_total", `reason="quota_requests"`) }

		enforced("enforce", plain, "a", "standard")
		before := shadowed()
		lifted("a route in shadow", "trial.example", "b", "standard")
		if n := shadowed() - before; n < 2 {
			t.Errorf("shadow recorded %v refusals for quota, want 2 at least", n)
		}
		lifted("a route in pass", "off.example", "c", "standard")

		w.reload(says("mode: shadow"))
		lifted("shadow", plain, "d", "standard")
		w.reload(says("mode: pass"))
		lifted("pass", plain, "e", "critical")
		w.reload(says("classes: [{name: batch, mode: shadow}]"))
		lifted("class batch in shadow", plain, "f", "batch")
		enforced("class standard beside it", plain, "g", "standard")
		w.reload(says("mode: enforce"))
		enforced("enforce again", plain, "h", "batch")
		w.idle(10 * time.Second)
		w.sound()
	})
}

// whoAsks holds that identity and scopes are judged on a host, in every mode.
func (w *world) whoAsks(host string) {
	w.t.Helper()
	for token, want := range map[string]int{
		"": http.StatusUnauthorized, w.token(claims{"aud": "mail"}): http.StatusUnauthorized,
		w.token(claims{"scope": "chat_completion"}):                           http.StatusForbidden,
		w.token(claims{"scope": "llm_service"}):                               http.StatusForbidden,
		w.token(claims{"scope": "llm_service chat_completion max_tokens<=1"}): http.StatusForbidden,
		w.token(claims{"scope": "llm_service chat_completion model=infer"}):   http.StatusForbidden,
	} {
		req := w.request(w.t.Context(), http.MethodPost, "/v1/chat/completions", chatBody(2, false), "Authorization", "Bearer "+token)
		req.Host = host
		if a := w.do(req); a.code != want {
			w.t.Errorf("%s: %d, want %d: %s", host, a.code, want, a.body)
		}
	}
}

// TestRoutesMayLoosen (E2): where the policy says so, a route's function
// stands in place of the API's, and its wait may be longer.
func TestRoutesMayLoosen(t *testing.T) {
	eachForm(t, setup{policy: "\nenvoy: {allowLoosen: true}\nclasses: [{name: standard, maxWait: 50ms, onExpiry: drop}]\n" +
		strings.Replace(defaultPools, "fp16-dyn, seats: {requests: 8}", "fp16-dyn, seats: {requests: 1}", 1),
		envoy: func(tree envoytest.Tree) {
			hosts(tree, map[string]func(envoytest.Tree){"loose.example": routeMetadata(envoytest.Tree{"function": "special", "maxWait": "20s"})})
		}}, func(t *testing.T, w *world) {
		call := func(host, scope string) answer {
			req := w.request(t.Context(), http.MethodPost, "/v1/chat/completions", chatBody(2, false), "Authorization", "Bearer "+w.token(claims{"scope": scope}))
			req.Host = host
			return w.do(req)
		}
		refused(t, call("plain.example", "llm_service special"), http.StatusForbidden, "scope_function", "insufficient_scope")
		refused(t, call("loose.example", "llm_service chat_completion"), http.StatusForbidden, "scope_function", "insufficient_scope")
		leave := w.occupy("standard")
		refused(t, call("plain.example", "llm_service chat_completion"), http.StatusServiceUnavailable, "expired_drop", "wait_expired")
		got := make(chan answer, 1)
		go func() { got <- call("loose.example", "llm_service special") }()
		w.sees("the call of the loose route waits", func(q queue) bool { return q.Waiting == 1 })
		leave()
		if a := <-got; a.code != http.StatusOK {
			t.Errorf("%d %s", a.code, a.body)
		}
	})
}
