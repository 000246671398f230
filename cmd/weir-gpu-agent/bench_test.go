package main

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/gpu/agent"
	gpuv1 "github.com/weirproxy/weir/proto/gpu/v1"
)

// BenchmarkLook is what one look at eight GPUs costs beside the reading and
// the sending: judged, encoded, and put on the wire for fifty watchers. At one
// look a second 10 ms would be 1 % of a core.
func BenchmarkLook(b *testing.B) {
	fields := agent.Fields()
	board := newBoard(func(cards []gpu.Card) []*gpuv1.Card {
		wire := make([]*gpuv1.Card, len(cards))
		for i := range cards {
			wire[i] = agent.Encode(&cards[i], fields)
		}
		return wire
	})
	k := &keeper{fields: fields}
	w := &watchService{board: board}
	cards := cards8()
	b.ReportAllocs()
	for b.Loop() {
		now := time.Now()
		board.put(seen{source: "script", cards: cards, dropped: k.judge(cards)}, now)
		last, _, _ := board.newest()
		for range 50 {
			if _, err := proto.Marshal(w.snapshot(last, now)); err != nil {
				b.Fatal(err)
			}
		}
	}
}
