package breaker

import (
	"testing"

	"github.com/weirproxy/weir/policy"
)

// BenchmarkCheckRecord is what a request costs: one check, one end, of a closed
// breaker; 40 ns and no allocation are the goal.
func BenchmarkCheckRecord(b *testing.B) {
	for _, c := range []struct {
		name   string
		failed func(int) bool
	}{
		{"good", func(int) bool { return false }},
		{"one of ten fails", func(i int) bool { return i%10 == 0 }},
	} {
		b.Run(c.name, func(b *testing.B) {
			br := newHTTP(defaults(), dice(1))
			now := epoch
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				now = now.Add(ms)
				br.Allow(now, policy.Standard)
				br.Record(now, c.failed(i), false)
			}
			if v := br.View(now); v.State != Closed {
				b.Fatalf("%+v", v)
			}
		})
	}
	b.Run("all cores", func(b *testing.B) {
		br := newHTTP(defaults(), dice(1))
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			now := epoch
			for pb.Next() {
				now = now.Add(ms)
				br.Allow(now, policy.Standard)
				br.Record(now, false, false)
			}
		})
	})
}
