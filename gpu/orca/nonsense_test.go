package orca

import (
	"context"
	"strings"
	"testing"
	"time"

	orcav3 "github.com/cncf/xds/go/xds/data/orca/v3"
	"google.golang.org/protobuf/proto"

	"github.com/weirproxy/weir/gpu/link"
	"github.com/weirproxy/weir/internal/envoytest"
)

func report(t testing.TB, m *orcav3.OrcaLoadReport) []byte {
	t.Helper()
	out, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func lookAt(t testing.TB, addr string, within time.Duration) error {
	t.Helper()
	r, err := NewRemote("orca", time.Second, link.Config{Address: addr})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	ctx, stop := context.WithTimeout(context.Background(), within)
	defer stop()
	_, err = r.Sample(ctx)
	return err
}

// A server whose load reports are nonsense is a miss.
func TestNonsenseIsAMiss(t *testing.T) {
	for name, answer := range map[string][]byte{
		"no message": {0xff, 0xff, 0xff},
		"cut":        {0x42, 0x7f},
		"4 MiB":      report(t, &orcav3.OrcaLoadReport{NamedMetrics: map[string]float64{strings.Repeat("x", 4<<20): 1}}),
		"deep":       []byte(strings.Repeat("\x0b", 100_000)),
	} {
		t.Run(name, func(t *testing.T) {
			addr := envoytest.StartOdd(t, func(string) []byte { return answer })
			before := envoytest.Allocated()
			if err := lookAt(t, addr, 2*time.Second); err == nil || len(err.Error()) > 1000 {
				t.Errorf("%.1000v, want a short error", err)
			}
			if got := int(envoytest.Allocated() - before); got > 64<<20 { // of both sides
				t.Errorf("%d MiB allocated", got>>20)
			}
		})
	}
}

// FuzzNonsense: any bytes as a report, or instead of HTTP/2.
func FuzzNonsense(f *testing.F) {
	envoytest.FuzzAnswers(f, 2*time.Second, func(t *testing.T, addr string) {
		_ = lookAt(t, addr, 30*time.Millisecond)
	}, report(f, &orcav3.OrcaLoadReport{CpuUtilization: 0.5, NamedMetrics: map[string]float64{"kv_cache_usage_perc": 0.5}}))
}
