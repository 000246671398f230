package orca

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	orcav3 "github.com/cncf/xds/go/xds/data/orca/v3"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/gpu/sourcetest"
)

// asText is a report in the text form.
func asText(m *orcav3.OrcaLoadReport) string {
	var b strings.Builder
	fmt.Fprintf(&b, "TEXT cpu_utilization=%v", m.CpuUtilization)
	for name, v := range m.NamedMetrics {
		fmt.Fprintf(&b, ", named_metrics.%s=%v", name, v)
	}
	return b.String()
}

func load(kv float64, waiting int) string {
	return fmt.Sprintf("TEXT named_metrics.kv_cache_usage_perc=%v, named_metrics.num_requests_waiting=%d.0", kv, waiting)
}

// fed is a source that hears something before each look.
type fed struct {
	*Source
	value string
	mu    sync.Mutex
}

func (f *fed) Sample(ctx context.Context) (gpu.Sample, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Offer(f.value)
	return f.Source.Sample(ctx)
}

func feed(value string) func(*testing.T) gpu.Source {
	return func(*testing.T) gpu.Source { return &fed{Source: New("pool/0-orca"), value: value} }
}

func TestSource(t *testing.T) {
	for name, broken := range map[string]func(*testing.T) gpu.Source{
		"quiet":     func(*testing.T) gpu.Source { return New("pool/0-orca") },
		"malformed": feed("TEXT banana"),
		"foreign":   feed("TEXT eps=1"),
	} {
		t.Run(name, func(t *testing.T) {
			sourcetest.Run(t, sourcetest.Makers{
				Good:    feed(load(0.5, 3)),
				Broken:  broken,
				Strange: feed("TEXT named_metrics.kv_cache_usage_perc=NaN, named_metrics.num_requests_waiting=-1"),
			})
		})
	}
}

// A look has what came since the last one: the fullest cache and the longest
// line, at the instant of the newest report.
func TestLooksCombineReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New("s")
		s.Offer(load(0.9, 1))
		s.Offer(load(0.2, 7))
		s.Offer("TEXT named_metrics.num_requests_running=4")
		s.Offer("BIN ???")
		s.Offer("TEXT named_metrics.kv_cache_usage_perc=7")
		newest := time.Now()
		time.Sleep(300 * time.Millisecond)
		got, err := s.Sample(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got.KV != gpu.Some(0.9) || got.Waiting != gpu.Some(7) || got.Running != gpu.Some(4) || !got.At.Equal(newest) {
			t.Errorf("sample = %+v", got)
		}
		if got.Dropped != 2 || got.Faults[gpu.FaultForm] != 1 || got.Faults[gpu.FaultRange] != 1 {
			t.Errorf("dropped %d, faults %v; want one of form and one of range", got.Dropped, got.Faults)
		}
		if _, err := s.Sample(t.Context()); !errors.Is(err, gpu.ErrQuiet) || gpu.FaultOf(err) != gpu.FaultEmpty {
			t.Errorf("a second look: %v, want ErrQuiet", err)
		}
		s.Offer(load(0.1, 0)) // the load has gone: no old word lingers
		if got, err := s.Sample(t.Context()); err != nil || got.KV != gpu.Some(0.1) || got.Waiting != gpu.Some(0) || got.Running.OK {
			t.Errorf("after: %+v, %v", got, err)
		}
	})
}

// Reports come from many requests at once.
func TestOffersAtOnce(t *testing.T) {
	s := New("s")
	var work sync.WaitGroup
	for i := range 8 {
		work.Go(func() {
			for n := range 200 {
				s.Offer(load(float64(n)/200, i))
			}
		})
	}
	most := gpu.Value{}
	for range 50 {
		if got, err := s.Sample(t.Context()); err == nil {
			most = larger(most, got.KV)
		}
	}
	work.Wait()
	if got, err := s.Sample(t.Context()); err == nil {
		most = larger(most, got.KV)
	}
	if want := gpu.Some(199. / 200); most != want {
		t.Errorf("the most that was seen = %v, want %v", most, want)
	}
}

func BenchmarkOffer(b *testing.B) {
	for name, value := range map[string]string{
		"text": load(0.42, 5),
		"json": `JSON {"named_metrics": {"kv_cache_usage_perc": 0.42, "num_requests_waiting": 5.0}}`,
		"bin":  binary(b, namedMetrics("kv_cache_usage_perc", 0.42, "num_requests_waiting", 5.0)),
	} {
		b.Run(name, func(b *testing.B) {
			s := New("s")
			b.ReportAllocs()
			for b.Loop() {
				s.Offer(value)
			}
		})
	}
}
