package policy

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// The look-up tables find what a walk over the patterns does.
func TestPatterns(t *testing.T) {
	text := rapid.StringMatching(`[ab]{0,3}`)
	pattern := rapid.Custom(func(t *rapid.T) string {
		return text.Draw(t, "text") + rapid.SampledFrom([]string{"", "", "*"}).Draw(t, "glob")
	})
	rapid.Check(t, func(t *rapid.T) {
		all := rapid.SliceOfN(pattern, 0, 8).Draw(t, "patterns")
		var s patterns
		for i, p := range all {
			s.add(p, i)
		}
		value, other := rapid.OneOf(text, rapid.Just("a*")).Draw(t, "value"), pattern.Draw(t, "other")
		fit, cover := -1, -1
		for i := len(all) - 1; i >= 0; i-- {
			if fits(all[i], value) {
				fit = i
			}
			if covers(all[i], other) {
				cover = i
			}
		}
		if got := s.fit(value); got != fit {
			t.Fatalf("%q: fit(%q) = %d, want %d", all, value, got, fit)
		}
		if got := s.cover(other); got != cover {
			t.Fatalf("%q: cover(%q) = %d, want %d", all, other, got, cover)
		}
	})
}

// manyTenants is a policy with a rule for each of n tenants.
func manyTenants(n int) []byte {
	var b strings.Builder
	b.WriteString("version: 1\nidentity: {from: metadata}\nmodels: [{name: m, pools: [p]}]\npools: [{name: p, variant: fp16, seats: {requests: 100}}]\ntenants:\n")
	for i := range n {
		fmt.Fprintf(&b, "  - {match: {tenant: \"tenant-%05d\"}, tier: gold}\n", i)
	}
	return []byte(b.String())
}

// Loading is linear in the rules, in time and memory.
func BenchmarkLoadTenants(b *testing.B) {
	data := manyTenants(10_000)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Load("weir.yaml", data); err != nil {
			b.Fatal(err)
		}
	}
}

// Finding a tenant's rule does not depend on how many there are.
func BenchmarkTenant(b *testing.B) {
	for _, n := range []int{10, 10_000} {
		p, err := Load("weir.yaml", manyTenants(n))
		if err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				if p.Tenant("tenant-00007") == nil {
					b.Fatal("no rule")
				}
			}
		})
	}
}
