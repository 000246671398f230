package examples_test

import (
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/weirproxy/weir/examples"
	"github.com/weirproxy/weir/internal/envoytest"
)

// foreign takes the identity that Envoy's own jwt_authn verified.
const foreign = ledger + `
identity: {from: metadata, metadata: {namespace: envoy.filters.http.jwt_authn, key: jwt_payload}}
`

// filters are the HTTP filters of an Envoy configuration, for changing.
func filters(tree envoytest.Tree, change func([]any) []any) {
	hcm := envoytest.HCM(tree)
	hcm["http_filters"] = change(hcm["http_filters"].([]any))
}

// without leaves a filter out.
func without(name string) func([]any) []any {
	return func(list []any) (out []any) {
		for _, f := range list {
			if f.(envoytest.Tree)["name"] != name {
				out = append(out, f)
			}
		}
		return out
	}
}

// jwtAuthn puts Envoy's own filter in the place of ext_authz and hands its
// claims to ext_proc. rules say which paths it guards.
func jwtAuthn(rules []any) func(envoytest.Tree) {
	return func(tree envoytest.Tree) {
		dir := filepath.Dir(examples.Get(tree, "admin", "address", "pipe", "path").(string))
		filters(tree, without(authzFilter))
		filters(tree, func(list []any) []any {
			return append([]any{envoytest.Tree{"name": "envoy.filters.http.jwt_authn", "typed_config": envoytest.Tree{
				"@type": "type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication",
				"providers": envoytest.Tree{"id": envoytest.Tree{
					"issuer": issuer, "audiences": []any{"llm"}, "payload_in_metadata": "jwt_payload",
					"local_jwks": envoytest.Tree{"filename": filepath.Join(dir, "jwks.json")},
				}},
				"rules": rules,
			}}}, list...)
		})
		options := envoytest.Filter(tree, procFilter)["metadata_options"].(envoytest.Tree)
		options["forwarding_namespaces"] = envoytest.Tree{"untyped": []any{"envoy.filters.http.jwt_authn"}}
	}
}

// TestForeignIdentity (K1): for gateways that verify tokens already. What
// jwt_authn verified is an identity; scopes, class and tenant are read from it
// as from a token of our own, and where the filter was not asked the door
// stays closed.
func TestForeignIdentity(t *testing.T) {
	guarded := []any{
		envoytest.Tree{"match": envoytest.Tree{"path": "/v1/chat/completions"}, "requires": envoytest.Tree{"provider_name": "id"}},
	}
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		w := newWorld(t, b, setup{policy: foreign, envoy: jwtAuthn(guarded)})
		a := w.do(w.request(t.Context(), http.MethodPost, "/v1/completions", `{"model":"deepseek-v4","prompt":"x"}`, "Authorization", "Bearer "+w.token(nil)))
		refused(t, a, http.StatusForbidden, "identity_missing", "identity_missing")
		for scope, reason := range map[string]string{"llm_service": "scope_function", "chat_completion": "scope_service"} {
			refused(t, w.chat(w.token(claims{"scope": scope}), 4, false), http.StatusForbidden, reason, "insufficient_scope")
		}
		refused(t, w.chat(w.token(claims{"scope": "llm_service chat_completion max_tokens<=3"}), 4, false), http.StatusForbidden, "parameter_denied", "parameter_denied")
		refused(t, w.chat(w.token(claims{"tenant": nil}), 4, false), http.StatusUnauthorized, "token_invalid", "invalid_token")
		for name, token := range map[string]string{
			"no token":       "",
			"expired":        w.token(claims{"iat": time.Now().Add(-2 * time.Hour).Unix(), "exp": time.Now().Add(-time.Hour).Unix()}),
			"wrong audience": w.token(claims{"aud": "mail"}),
		} {
			if a := w.chat(token, 4, false); a.code != http.StatusUnauthorized && a.code != http.StatusForbidden {
				t.Errorf("%s: %d %s", name, a.code, a.body)
			}
		}
		w.untouched("acme")
		a = w.chat(w.token(claims{"class": "critical"}), 4, true)
		if a.code != http.StatusOK || !a.done() || a.header.Get("x-weir-variant") != "fp16" {
			t.Errorf("%d %v %s", a.code, a.header, a.body)
		}
		w.idle(5 * time.Second)
		if n := w.sims["chat-fp16"].Totals().Tenants["acme"].Finished; n != 1 || w.used("acme")["requests"] != 1 {
			t.Errorf("%d answers of acme, charged %v", n, w.used("acme"))
		}
	})
}

// disabled turns ext_authz off for a virtual host.
func disabled(host envoytest.Tree) {
	perFilter(host, authzFilter, envoytest.Tree{"@type": authzPerRoute, "disabled": true})
}

// failsOpen makes ext_authz ask a server that is not there, and go on.
func failsOpen(tree envoytest.Tree) {
	list := examples.Get(tree, "static_resources", "clusters").([]any)
	for _, c := range list {
		if examples.Get(c, "name") == "weir" {
			away := copyOf(c.(envoytest.Tree))
			away["name"] = "away"
			examples.Set(away, "away", "load_assignment", "cluster_name")
			examples.Set(away, "/nowhere/weir.sock", "load_assignment", "endpoints", 0, "lb_endpoints", 0, "endpoint", "address", "pipe", "path")
			examples.Set(tree, append(list, away), "static_resources", "clusters")
		}
	}
	config := envoytest.Filter(tree, authzFilter)
	config["failure_mode_allow"] = true
	examples.Set(config, "away", "grpc_service", "envoy_grpc", "cluster_name")
}

// TestSkippedAuthzStaysClosed (E3): an ext_authz that is disabled for a route,
// fails open, or is not there leaves ext_proc without an identity; nobody
// passes, whatever token or header they bring.
func TestSkippedAuthzStaysClosed(t *testing.T) {
	for name, change := range map[string]func(envoytest.Tree){
		"disabled for a host": func(tree envoytest.Tree) {
			hosts(tree, map[string]func(envoytest.Tree){"open.example": disabled})
		},
		"fails open": failsOpen,
		"not there":  func(tree envoytest.Tree) { filters(tree, without(authzFilter)) },
		"not forwarded": func(tree envoytest.Tree) {
			delete(envoytest.Filter(tree, procFilter)["metadata_options"].(envoytest.Tree), "forwarding_namespaces")
		},
	} {
		t.Run(name, func(t *testing.T) {
			envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
				w := newWorld(t, b, setup{policy: ledger, envoy: change})
				for _, stream := range []bool{false, true} {
					req := w.request(t.Context(), http.MethodPost, "/v1/chat/completions", chatBody(4, stream), "Authorization", "Bearer "+w.token(nil), "x-weir-tenant", "acme")
					req.Host = "open.example"
					refused(t, w.do(req), http.StatusForbidden, "identity_missing", "identity_missing")
				}
				if n := w.metric("weir_decisions_total", `reason="identity_missing"`); n != 2 {
					t.Errorf("%v decisions identity_missing, want 2", n)
				}
				w.untouched("acme")
			})
		})
	}
	t.Run("jwt_authn not there", func(t *testing.T) {
		envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
			w := newWorld(t, b, setup{policy: foreign, envoy: func(tree envoytest.Tree) { filters(tree, without(authzFilter)) }})
			refused(t, w.chat(w.token(nil), 4, false), http.StatusForbidden, "identity_missing", "identity_missing")
			w.untouched("acme")
		})
	})
}
