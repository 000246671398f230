package breaker

import (
	"testing"

	"github.com/weirproxy/weir/policy"
)

// A closed breaker: Allow and Record, one goroutine and all.
func BenchmarkClosed(b *testing.B) {
	br := New(defaults(), dice(1))
	b.Run("allow", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			br.Allow(epoch, policy.Standard)
		}
	})
	b.Run("record", func(b *testing.B) {
		b.ReportAllocs()
		now := epoch
		for b.Loop() {
			now = now.Add(ms)
			br.Record(now, false, false)
		}
	})
	b.Run("parallel", func(b *testing.B) {
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
