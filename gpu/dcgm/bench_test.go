//go:build cgo && linux

package dcgm

import (
	"testing"
	"time"
)

// BenchmarkCards is one look at eight GPUs through a library that answers at
// once: what the agent pays for each look beside what DCGM takes.
func BenchmarkCards(b *testing.B) {
	s := newShim(b)
	s.fault("gpus 8")
	d := s.driver(Config{})
	now := time.Unix(1000, 0)
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(time.Second)
		if cards, err := d.Cards(now); err != nil || len(cards) != 8 {
			b.Fatal(len(cards), err)
		}
	}
}
