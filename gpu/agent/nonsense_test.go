package agent_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/gpu/agent"
	"github.com/weirproxy/weir/internal/envoytest"
	gpuv1 "github.com/weirproxy/weir/proto/gpu/v1"
)

// wire is a snapshot as bytes.
func wire(t testing.TB, s *gpuv1.Snapshot) []byte {
	t.Helper()
	out, err := proto.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// lookAt asks an agent once.
func lookAt(t testing.TB, addr string, within time.Duration) (gpu.Sample, error) {
	t.Helper()
	s, err := agent.New(agent.Config{Name: "agent", Address: addr, Every: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	ctx, stop := context.WithTimeout(context.Background(), within)
	defer stop()
	return s.Sample(ctx)
}

// An agent that answers nonsense is a miss: nothing panics, and what is
// announced or too long is not held.
func TestNonsenseIsAMiss(t *testing.T) {
	many := &gpuv1.Snapshot{}
	for range 5000 {
		many.Cards = append(many.Cards, &gpuv1.Card{Id: "a"})
	}
	for name, answer := range map[string][]byte{
		"no message":      {0xff, 0xff, 0xff},
		"cut":             {0x0a, 0x7f},
		"8 MiB":           wire(t, &gpuv1.Snapshot{Error: strings.Repeat("x", 8<<20)}),
		"too many cards":  wire(t, many),
		"a long error":    wire(t, &gpuv1.Snapshot{Error: strings.Repeat("x", 1<<20)}),
		"deep":            []byte(strings.Repeat("\x0b", 100_000)), // groups in groups
		"a varint of 2^9": {0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
	} {
		t.Run(name, func(t *testing.T) {
			addr := envoytest.StartOdd(t, func(string) []byte { return answer })
			before := envoytest.Allocated()
			s, err := lookAt(t, addr, 2*time.Second)
			if err == nil || len(s.Cards) > 0 || len(err.Error()) > 1000 {
				t.Errorf("%d cards, %.1000v; want a short error", len(s.Cards), err)
			}
			if got := int(envoytest.Allocated() - before); got > 64<<20+10*len(answer) { // of both sides
				t.Errorf("%d MiB allocated", got>>20)
			}
		})
	}
	for name, bytes := range envoytest.Pages() { // none of them is HTTP/2
		if len(bytes) > 1<<20 {
			continue
		}
		if _, err := lookAt(t, envoytest.StartTalker(t, bytes).Addr, 300*time.Millisecond); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// FuzzNonsense: any bytes as a snapshot, or instead of HTTP/2.
func FuzzNonsense(f *testing.F) {
	util := 0.5
	envoytest.FuzzAnswers(f, 2*time.Second, func(t *testing.T, addr string) {
		_, _ = lookAt(t, addr, 30*time.Millisecond)
	}, wire(f, &gpuv1.Snapshot{Sequence: 1, Cards: []*gpuv1.Card{{Id: "a", Util: &util}}}))
}
