package examples_test

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirproxy/weir/internal/envoytest"
)

// withToken adds the operator's token to each request.
type withToken struct {
	next  http.RoundTripper
	token string
}

func (w withToken) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+w.token)
	return w.next.RoundTrip(r)
}

// TestSecretsStaySecret: passwords, tokens and prompts are in no dump, metric,
// log line, decision or answer, at the most talkative log level, while all is
// well and while Redis refuses the password.
func TestSecretsStaySecret(t *testing.T) {
	const redisWord, adminWord, prompt = "s3cret-of-redis", "s3cret-of-admin", "weir good for"
	dir := envoytest.Dir(t)
	file := func(name, value string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(value+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	redis := envoytest.StartRedis(t, "--requirepass", redisWord)
	w := newWorld(t, newest(t), setup{
		dir:    dir,
		server: strings.Replace(envoytest.Server(dir), "drain:", fmt.Sprintf("adminToken: {file: %q}, drain:", file("admin.token", adminWord)), 1),
		policy: fmt.Sprintf(`
telemetry: {log: {level: debug}}
store: {redis: {addresses: [%q], password: {file: %q}}}
quotas: [{name: few, match: {tenant: "*"}, by: [tenant], limits: [{requests: 2, per: 10m}]}]
`, redis.Addr, file("redis.password", redisWord)),
	})
	w.weir.Admin.Transport = withToken{w.weir.Admin.Transport, adminWord}
	token := w.token(nil)
	forged := token[:len(token)-8] + "AAAAAAAA"
	var seen strings.Builder
	call := func(token string, want int) {
		t.Helper()
		a := w.chat(token, 3, false)
		if a.code != want {
			t.Errorf("%d %s, want %d", a.code, a.body, want)
		}
		if want != http.StatusOK {
			fmt.Fprintln(&seen, a.header, a.body)
		}
	}
	call(token, 200)
	call(token, 200)
	call(token, 429)
	call(forged, 401)
	redis.Kill()
	envoytest.Eventually(t, longest, "the outage is seen", func() bool {
		w.chat(w.token(claims{"tenant": "another"}), 3, false)
		return w.metric("weir_store_away") == 1
	})
	for _, path := range []string{
		"/debug/config", "/debug/queue", "/debug/gpu", "/debug/quotas?tenant=acme", "/debug/explain", "/metrics",
		"/debug/pprof/cmdline", "/debug/pprof/goroutine?debug=2",
	} {
		seen.WriteString(w.admin(path))
	}
	report, err := exec.Command(envoytest.Weir(t), "check", w.weir.Config).CombinedOutput()
	if err != nil {
		t.Errorf("weir check: %v %s", err, report)
	}
	seen.Write(report)
	seen.WriteString(w.weir.Log())
	for what, secret := range map[string]string{
		"the password of Redis": redisWord, "the operator's token": adminWord, "a prompt": prompt,
		"a token": token, "a forged token": forged, "a token's signature": token[strings.LastIndex(token, ".")+1:],
	} {
		if at := strings.Index(seen.String(), secret); at >= 0 {
			t.Errorf("%s is shown: ...%s...", what, seen.String()[max(0, at-200):at])
		}
	}
	for _, want := range []string{"redis is away", "password"} { // the line, and the name of the file in the dump
		if !strings.Contains(seen.String(), want) {
			t.Errorf("what was looked at misses %q", want)
		}
	}
	if strings.Contains(w.weir.Log(), "\nredis: ") {
		t.Error("the Redis client writes lines of its own")
	}
}
