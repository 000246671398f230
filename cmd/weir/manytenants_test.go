package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/envoytest"
)

// A policy with a rule for each of 10,000 tenants, exact or with a prefix, takes
// at most 80 MiB of memory after the start and 120 MiB after each reload, within
// a minute, and never more than 200 MiB.
func TestMemoryOfManyTenants(t *testing.T) {
	const bar, reloaded, peak = 80, 120, 200 // MiB
	for _, pattern := range []string{"tenant-%05d", "tenant-%05d-*"} {
		t.Run(pattern, func(t *testing.T) {
			dir := envoytest.Dir(t)
			text := func(tier string) string {
				var b strings.Builder
				b.WriteString("version: 1\n" + envoytest.Server(dir) + "identity: {from: metadata}\nmodels: [{name: m, pools: [p]}]\n" +
					"pools: [{name: p, variant: fp16, seats: {requests: 100}}]\ntenants:\n")
				for i := range 10_000 {
					fmt.Fprintf(&b, "  - {match: {tenant: \""+pattern+"\"}, tier: %s}\n", i, tier)
				}
				return b.String()
			}
			w := envoytest.Serve(t, dir, text("gold"))
			within := func(most int) {
				t.Helper()
				envoytest.Eventually(t, time.Minute, fmt.Sprintf("at most %d MiB", most), func() bool { return w.Memory(t, "VmRSS")>>10 <= most })
			}
			within(bar)
			t.Logf("after the start %d MiB", w.Memory(t, "VmRSS")>>10)
			for i, tier := range []string{"silver", "gold", "bronze"} {
				if err := os.WriteFile(filepath.Join(dir, "next"), []byte(text(tier)), 0o600); err != nil {
					t.Fatal(err)
				}
				if err := os.Rename(filepath.Join(dir, "next"), w.Config); err != nil {
					t.Fatal(err)
				}
				envoytest.Eventually(t, 30*time.Second, "reloaded", func() bool { return strings.Count(w.Log(), `"policy reloaded"`) > i })
				within(reloaded)
				t.Logf("after a reload %d MiB, at most %d", w.Memory(t, "VmRSS")>>10, w.Memory(t, "VmHWM")>>10)
			}
			if most := w.Memory(t, "VmHWM") >> 10; most > peak {
				t.Errorf("%d MiB at once, more than %d", most, peak)
			}
		})
	}
}
