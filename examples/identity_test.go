package examples_test

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/authz"
	"github.com/weirproxy/weir/internal/envoytest"
)

// ledger counts every tenant's requests and tokens, far from any limit.
const ledger = `
quotas:
  - {name: ledger, match: {tenant: "*"}, by: [tenant], limits: [{requests: 100000, per: 1h}, {tokens: 100000000, per: 1h}]}
`

// refused holds an answer against what every refusal of weir's has: status,
// reason, OpenAI's shape, no second try, and a challenge where identity or a
// scope is missing.
func refused(t *testing.T, a answer, status int, reason, code string) {
	t.Helper()
	if a.err != nil || a.code != status || a.header.Get("x-weir-reason") != reason || a.errorCode() != code {
		t.Errorf("%d %s %s (%v), want %d %s %s: %s", a.code, a.header.Get("x-weir-reason"), a.errorCode(), a.err, status, reason, code, a.body)
		return
	}
	if got := a.header.Get("content-type"); got != "application/json" {
		t.Errorf("content-type %q", got)
	}
	if a.header.Get("x-envoy-ratelimited") == "" {
		t.Error("a mesh above may try it again: no x-envoy-ratelimited")
	}
	challenge := a.header.Get("www-authenticate")
	if want := status == http.StatusUnauthorized || code == "insufficient_scope"; (challenge != "") != want {
		t.Errorf("www-authenticate %q", challenge)
	}
}

// untouched holds that no pool saw a request, no seat was taken, nothing was
// charged to the tenant and nothing panicked.
func (w *world) untouched(tenant string) {
	w.t.Helper()
	for name, sim := range w.sims {
		if n := sim.Totals().Started; n != 0 {
			w.t.Errorf("pool %s saw %d requests", name, n)
		}
	}
	w.idle(5 * time.Second)
	for unit, n := range w.used(tenant) {
		if n != 0 {
			w.t.Errorf("%s was charged %d %s", tenant, n, unit)
		}
	}
	if n := w.metric("weir_seat_seconds_count"); n != 0 {
		w.t.Errorf("%v seats were taken", n)
	}
	w.sound()
}

// sound holds that nothing panicked and no message broke the protocol.
func (w *world) sound() {
	w.t.Helper()
	if n := w.metric("weir_panics_total") + w.metric("weir_faults_total"); n != 0 {
		w.t.Errorf("%v panics and faults:\n%s", n, w.weir.Log())
	}
}

// TestIdentityIsVerified (K2): whoever brings no valid token gets 401 in both
// forms, and neither a seat nor a charge.
func TestIdentityIsVerified(t *testing.T) {
	eachForm(t, setup{policy: ledger}, func(t *testing.T, w *world) {
		now := time.Now()
		good := w.token(nil)
		private, _, err := authz.GenerateKey("EdDSA", "")
		if err != nil {
			t.Fatal(err)
		}
		stranger := *w
		if stranger.signer, err = authz.NewSigner(private, ""); err != nil {
			t.Fatal(err)
		}
		parts := strings.Split(good, ".")
		b64 := base64.RawURLEncoding.EncodeToString
		critical := b64([]byte(fmt.Sprintf(`{"iss":%q,"aud":"llm","tenant":"acme","class":"critical","scope":"llm_service chat_completion","exp":%d}`, issuer, now.Add(time.Hour).Unix())))
		const bearer = "Authorization"
		for _, c := range []struct {
			name         string
			headers      []string
			reason, code string
		}{
			{"missing", nil, "token_missing", "missing_token"},
			{"another scheme", []string{bearer, "Basic YTpi"}, "token_missing", "missing_token"},
			{"empty", []string{bearer, "Bearer "}, "token_missing", "missing_token"},
			{"no token", []string{bearer, "Bearer abc"}, "token_malformed", "invalid_token"},
			{"two headers", []string{bearer, "Bearer " + good, bearer, "Bearer " + good}, "token_malformed", "invalid_token"},
			{"two tokens in one", []string{bearer, "Bearer " + good + ", Bearer " + good}, "token_malformed", "invalid_token"},
			{"expired", []string{bearer, "Bearer " + w.token(claims{"iat": now.Add(-2 * time.Hour).Unix(), "exp": now.Add(-time.Hour).Unix()})}, "token_expired", "token_expired"},
			{"not yet", []string{bearer, "Bearer " + w.token(claims{"nbf": now.Add(time.Hour).Unix()})}, "token_expired", "token_expired"},
			{"too long a life", []string{bearer, "Bearer " + w.token(claims{"exp": now.Add(48 * time.Hour).Unix()})}, "token_expired", "token_expired"},
			{"no exp", []string{bearer, "Bearer " + w.token(claims{"exp": nil})}, "token_invalid", "invalid_token"},
			{"forged claims", []string{bearer, "Bearer " + parts[0] + "." + critical + "." + parts[2]}, "token_invalid", "invalid_token"},
			{"alg none", []string{bearer, "Bearer " + b64([]byte(`{"alg":"none"}`)) + "." + critical + "."}, "token_malformed", "invalid_token"},
			{"alg none with a signature", []string{bearer, "Bearer " + b64([]byte(`{"alg":"none"}`)) + "." + critical + "." + parts[2]}, "token_invalid", "invalid_token"},
			{"another key", []string{bearer, "Bearer " + stranger.token(nil)}, "token_invalid", "invalid_token"},
			{"wrong audience", []string{bearer, "Bearer " + w.token(claims{"aud": "mail"})}, "token_invalid", "invalid_token"},
			{"no audience", []string{bearer, "Bearer " + w.token(claims{"aud": nil})}, "token_invalid", "invalid_token"},
			{"unknown issuer", []string{bearer, "Bearer " + w.token(claims{"iss": "https://evil.example"})}, "token_invalid", "invalid_token"},
			{"no tenant", []string{bearer, "Bearer " + w.token(claims{"tenant": nil})}, "token_invalid", "invalid_token"},
			{"preflight that the policy does not let pass", []string{"Origin", "https://a.example", "Access-Control-Request-Method", "POST"}, "token_missing", "missing_token"},
		} {
			t.Run(c.name, func(t *testing.T) {
				method := http.MethodPost
				if strings.HasPrefix(c.name, "preflight") {
					method = http.MethodOptions
				}
				a := w.do(w.request(t.Context(), method, "/v1/chat/completions", chatBody(4, true), c.headers...))
				refused(t, a, http.StatusUnauthorized, c.reason, c.code)
				var seen struct{ Reason string }
				w.adminJSON("/debug/explain?request="+a.header.Get("x-weir-request-id"), &seen)
				if seen.Reason != c.reason {
					t.Errorf("explain says %q", seen.Reason)
				}
				if strings.Contains(a.body, good) || a.header.Get("x-weir-variant") != "" {
					t.Errorf("the refusal says too much: %v %s", a.header, a.body)
				}
			})
		}
		w.untouched("acme")
	})
}

// TestScopes (K1): service, function and parameter; a field that is not sent
// is clamped, and the pool sees the clamp.
func TestScopes(t *testing.T) {
	eachForm(t, setup{policy: ledger}, func(t *testing.T, w *world) {
		limit := "llm_service chat_completion max_tokens<=5"
		for _, c := range []struct {
			name, scope, body string
			reason, code      string
			message           []string
		}{
			{"no service", "chat_completion", chatBody(4, false), "scope_service", "insufficient_scope", []string{"llm_service"}},
			{"no scope at all", "", chatBody(4, false), "scope_service", "insufficient_scope", []string{"llm_service"}},
			{"no function", "llm_service completion", chatBody(4, false), "scope_function", "insufficient_scope", []string{"chat_completion"}},
			{"parameter", limit, chatBody(2000, false), "parameter_denied", "parameter_denied", []string{"max_tokens", "2000", "5"}},
			{"parameter under another name", limit, strings.Replace(chatBody(6, false), "max_tokens", "max_completion_tokens", 1),
				"parameter_denied", "parameter_denied", []string{"max_completion_tokens", "6", "5"}},
			{"model", "llm_service chat_completion model=infer", chatBody(4, false), "parameter_denied", "parameter_denied", []string{"model", "deepseek-v4", "infer"}},
			{"a value", "llm_service chat_completion n=1", strings.Replace(chatBody(4, false), `"stream"`, `"n":2,"stream"`, 1),
				"parameter_denied", "parameter_denied", []string{"n", "2", "1"}},
		} {
			t.Run(c.name, func(t *testing.T) {
				a := w.do(w.request(t.Context(), http.MethodPost, "/v1/chat/completions", c.body, "Authorization", "Bearer "+w.token(claims{"scope": c.scope})))
				refused(t, a, http.StatusForbidden, c.reason, c.code)
				for _, part := range c.message {
					if !strings.Contains(a.body, part) {
						t.Errorf("%s does not name %s", a.body, part)
					}
				}
			})
		}
		w.untouched("acme")

		open := strings.Replace(chatBody(4, false), `"max_tokens":4,`, "", 1)
		a := w.do(w.request(t.Context(), http.MethodPost, "/v1/chat/completions", open, "Authorization", "Bearer "+w.token(claims{"scope": limit})))
		if a.code != http.StatusOK || !strings.Contains(a.body, `"completion_tokens":5`) {
			t.Errorf("the cap that was not sent: %d %s; the pool's own length is 16, the key's 5", a.code, a.body)
		}
		w.idle(5 * time.Second)
		if used := w.used("acme"); used["requests"] != 1 {
			t.Errorf("charged %v, want one request", used)
		}
	})
}

// TestNobodySpeaksForWeir: the caller's x-weir-* headers have no effect and
// reach nobody, nor does its token; the model's x-weir-* headers do not reach
// the caller.
func TestNobodySpeaksForWeir(t *testing.T) {
	up := newEcho(t)
	eachForm(t, setup{policy: ledger, envoy: func(tree envoytest.Tree) { pointAt(tree, "chat-fp16", up.addr) }}, func(t *testing.T, w *world) {
		forged := []string{
			"x-weir-tenant", "evil", "x-weir-class", "batch", "X-WEIR-Pool", "chat-int8", "x-weir-pool", "infer",
			"x-weir-reason", "admitted", "x-weir-request-id", "1", "x-weir-anything", "1",
		}
		a := w.chat(w.token(claims{"class": "critical"}), 4, false, forged...)
		if a.code != http.StatusOK {
			t.Fatalf("%d %v %s", a.code, a.err, a.body)
		}
		seen := up.last(t)
		for name, want := range map[string]string{
			"X-Weir-Tenant": "acme", "X-Weir-Class": "critical", "X-Weir-Pool": "chat-fp16", "X-Weir-Reason": "admitted",
			"X-Weir-Request-Id": a.header.Get("x-weir-request-id"),
		} {
			if got := seen[name]; !slices.Equal(got, []string{want}) {
				t.Errorf("the model sees %s %q, want %q", name, got, want)
			}
			delete(seen, name)
		}
		for name, v := range seen {
			if strings.HasPrefix(name, "X-Weir-") || name == "Authorization" {
				t.Errorf("the model sees %s: %q", name, v)
			}
		}
		for name, v := range a.header {
			if strings.HasPrefix(name, "X-Weir-") && (len(v) != 1 || strings.Contains(v[0], "forged") || strings.Contains(v[0], "twice")) {
				t.Errorf("the caller sees what the model says in our name: %s: %q", name, v)
			}
		}
		if a.header.Get("x-weir-reason") != "admitted" || a.header.Get("x-weir-variant") != "fp16" || a.header["X-Weir-Evil"] != nil {
			t.Errorf("the caller sees %v", a.header)
		}
		// Standard goes to fp16-dyn, whatever pool the caller names (V1).
		a = w.chat(w.token(nil), 4, true, forged...)
		if a.code != http.StatusOK || a.header.Get("x-weir-variant") != "fp16-dyn" || w.sims["chat-dyn"].Totals().Tenants["acme"].Started != 1 {
			t.Errorf("%d on %q", a.code, a.header.Get("x-weir-variant"))
		}
		w.idle(5 * time.Second)
		if n := w.sims["chat-int8"].Totals().Started + w.sims["infer"].Totals().Started; n != 0 {
			t.Errorf("%d requests reached the pool that the caller named", n)
		}
		if used := w.used("evil"); used["requests"] != 0 {
			t.Errorf("evil was charged %v", used)
		}
		if used := w.used("acme"); used["requests"] != 2 {
			t.Errorf("acme was charged %v", used)
		}
		w.sound()
	})
}
