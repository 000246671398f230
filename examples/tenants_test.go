package examples_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/weirproxy/weir/internal/envoytest"
)

// TestTenantNames: names with whatever an issuer may put into a claim are
// served with a counter of their own, or refused as the caller's mistake; and
// none breaks out of its label in the metrics.
func TestTenantNames(t *testing.T) {
	redis := envoytest.StartRedis(t)
	w := newWorld(t, newest(t), setup{policy: fmt.Sprintf(`
store: {redis: {addresses: [%q], timeout: 1s}}
quotas: [{name: two, match: {tenant: "*"}, by: [tenant, user], limits: [{requests: 2, per: 10m}]}]
`, redis.Addr)})
	for _, name := range []string{
		"{a}", "}{", "a:b", "a/b", "a|b", "?[a-z]", "~a", "!", "a b", `a"b\`, "日本", "é", "%2f", "$(id)", "<b>", "weir:{a}:c:1", strings.Repeat("x", 256),
	} {
		token := w.token(claims{"tenant": name, "sub": name})
		for i, want := range []int{200, 200, 429} {
			if a := w.chat(token, 2, false); a.code != want {
				t.Errorf("tenant %q, call %d: %d %s, want %d", name, i, a.code, a.body, want)
			}
		}
		if n := w.used(url.QueryEscape(name))["requests"]; n != 2 {
			t.Errorf("tenant %q used %d, want 2", name, n)
		}
	}
	for _, name := range []any{
		"", "*", "a*", "a\nb", "a\r\nx-weir-class: critical", "\x00", "a\u2028b", " a", "a ", "a\u200bb", strings.Repeat("x", 257), strings.Repeat("x", 20<<10),
		7, true, nil, []string{"a"}, map[string]string{"a": "b"},
	} {
		a := w.chat(w.token(claims{"tenant": name}), 2, false)
		if a.code != http.StatusUnauthorized || a.errorCode() == "" || len(a.body) > 1000 {
			t.Errorf("tenant %.20q: %d %s, want a short 401", fmt.Sprint(name), a.code, a.body)
		}
	}
	if n := w.metric("weir_panics_total"); n != 0 {
		t.Errorf("%v panics", n)
	}
	for line := range strings.Lines(w.admin("/metrics")) {
		if strings.HasPrefix(line, "weir_") && strings.Count(line, `tenant="`) > 1 {
			t.Errorf("a label is broken: %s", line)
		}
	}
}
