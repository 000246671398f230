package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/envoytest"
)

// weir check --against and the log of a reload say what becomes of usage.
func TestQuotaChangesAreSaid(t *testing.T) {
	dir := envoytest.Dir(t)
	text := func(quotas string) string {
		return "version: 1\n" + envoytest.Server(dir) + "identity: {from: metadata}\nmodels: [{name: m, pools: [p]}]\n" +
			"pools: [{name: p, variant: fp16, seats: {requests: 100}}]\nquotas: [" + quotas + "]\n"
	}
	const was = "{name: moves, by: [tenant], limits: [{tokens: 100, per: 1m}]}, {name: renamed, by: [tenant], limits: [{requests: 10, per: 1m}]}"
	const is = "{name: moves, by: [tenant], limits: [{tokens: 100, per: 5m}]}, {name: other, by: [tenant], limits: [{requests: 10, per: 1m}]}"
	w := envoytest.Serve(t, dir, text(was))
	next := filepath.Join(dir, "next.yaml")
	write := func(file, text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(next, text(is))
	said := []string{
		"takes over the usage of the last 1m, which is all that was counted",
		"is new and starts from nothing; if it is renamed by another name, id: renamed keeps its usage",
	}
	out, errOut, code := execute(t, "check", next, "--against", w.Config)
	for _, line := range said {
		if code != 0 || !strings.Contains(out, line) {
			t.Errorf("check (exit code %d) says %s%s, want %q", code, out, errOut, line)
		}
	}
	if out, _, _ := execute(t, "check", w.Config, "--against", w.Config); !strings.Contains(out, "all usage stays with its rules") {
		t.Errorf("check against itself says %s", out)
	}
	if err := os.Rename(next, w.Config); err != nil {
		t.Fatal(err)
	}
	for _, line := range said {
		envoytest.Eventually(t, 20*time.Second, line, func() bool { return strings.Contains(w.Log(), line) })
	}
	if !strings.Contains(w.Log(), `"level":"WARN","msg":"quota changed","rule":"other"`) {
		t.Errorf("the log does not warn of what starts from nothing:\n%s", w.Log())
	}
}
