package gpu_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/gpu"
)

// fake is a source that does as its function does, and notes when it was asked.
type fake struct {
	name string
	look func(ctx context.Context, n int) (gpu.Sample, error)

	mu    sync.Mutex
	asked []time.Time
}

func (f *fake) Name() string { return f.name }
func (f *fake) Engine() bool { return false }

func (f *fake) Sample(ctx context.Context) (gpu.Sample, error) {
	f.mu.Lock()
	f.asked = append(f.asked, time.Now())
	n := len(f.asked)
	f.mu.Unlock()
	return f.look(ctx, n)
}

func (f *fake) times() []time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]time.Time(nil), f.asked...)
}

func full(context.Context, int) (gpu.Sample, error) {
	return gpu.Sample{Util: gpu.Some(1), GPUs: 1}, nil
}

func poll(t *testing.T, log *slog.Logger, sources ...gpu.Source) (*gpu.Gauge, *gpu.Poller) {
	t.Helper()
	var targets []gpu.Target
	var infos []gpu.SourceInfo
	for _, s := range sources {
		targets = append(targets, gpu.Target{Source: s, Every: every, Timeout: time.Second})
		infos = append(infos, targets[len(targets)-1].Info())
	}
	g := gpu.NewGauge(defaults(), infos, time.Now())
	return g, gpu.StartPoller(g, targets, 1, log)
}

// Q3: a look at once, then one every period within the jitter, without drift.
func TestPollerSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{name: "card", look: full}
		start := time.Now()
		g, p := poll(t, slog.New(slog.DiscardHandler), f)
		time.Sleep(1000*every + every/2)
		p.Close()
		asked := f.times()
		if len(asked) != 1001 {
			t.Fatalf("%d looks in 1000 periods, want 1001", len(asked))
		}
		moved := false
		for i, at := range asked {
			off := at.Sub(start.Add(time.Duration(i) * every))
			if off.Abs() > every/20 {
				t.Fatalf("look %d is %v off its time", i, off)
			}
			moved = moved || off != 0
		}
		if !moved {
			t.Error("no jitter")
		}
		if g.Reading().Sources[0].Samples != 1001 {
			t.Errorf("state = %+v", g.Reading().Sources[0])
		}
	})
}

// A listener that heard nothing is a miss, which is told nobody and makes the
// next look no later.
func TestPollerQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		f := &fake{name: "orca", look: func(ctx context.Context, n int) (gpu.Sample, error) {
			if n%5 != 0 {
				return gpu.Sample{}, fmt.Errorf("source: %w", gpu.ErrQuiet)
			}
			return full(ctx, n)
		}}
		g, p := poll(t, slog.New(slog.NewTextHandler(&log, nil)), f)
		time.Sleep(99*every + every/2)
		p.Close()
		if n := len(f.times()); n != 100 {
			t.Errorf("%d looks in 99 periods, want 100", n)
		}
		if s := g.Reading().Sources[0]; s.Missed != 80 || s.Samples != 20 || log.Len() > 0 {
			t.Errorf("state = %+v, log %q", s, log.String())
		}
	})
}

// A source that fails is asked less and less, at least every 10 s, and is
// back at its pace with the first success.
func TestPollerBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		f := &fake{name: "card", look: func(ctx context.Context, n int) (gpu.Sample, error) {
			if n <= 6 {
				return gpu.Sample{}, errors.New("refused")
			}
			return full(ctx, n)
		}}
		start := time.Now()
		g, p := poll(t, slog.New(slog.NewTextHandler(&log, nil)), f)
		time.Sleep(72 * time.Second)
		p.Close()
		want := []int{0, 5, 15, 25, 35, 45, 55, 60, 65, 70}
		asked := f.times()
		if len(asked) != len(want) {
			t.Fatalf("%d looks, want %d", len(asked), len(want))
		}
		for i, at := range asked {
			due := start.Add(time.Duration(want[i]) * time.Second)
			if at.Sub(due).Abs() > every/20 {
				t.Errorf("look %d at %v, want %d s", i, at.Sub(start), want[i])
			}
		}
		if s := g.Reading().Sources[0]; s.Missed != 6 || s.Misses != 0 || s.Samples != 4 {
			t.Errorf("state = %+v", s)
		}
		if failed, back := strings.Count(log.String(), "failed"), strings.Count(log.String(), "is back"); failed != 1 || back != 1 {
			t.Errorf("log says failed %d times and back %d times, want once each: %s", failed, back, log.String())
		}
	})
}

// However long a source was away, its return is seen within four periods, or
// ten seconds where that is less; a source slower than that keeps its pace.
func TestPollerSeesRecovery(t *testing.T) {
	for _, tt := range []struct{ every, within time.Duration }{
		{100 * time.Millisecond, 400 * time.Millisecond},
		{time.Second, 4 * time.Second},
		{5 * time.Second, 10 * time.Second},
		{time.Minute, time.Minute},
	} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			back := start.Add(100*tt.every + tt.every/3)
			f := &fake{name: "card", look: func(ctx context.Context, n int) (gpu.Sample, error) {
				if time.Now().Before(back) {
					return gpu.Sample{}, errors.New("refused")
				}
				return full(ctx, n)
			}}
			g := gpu.NewGauge(defaults(), []gpu.SourceInfo{{Name: "card", Every: tt.every}}, start)
			p := gpu.StartPoller(g, []gpu.Target{{Source: f, Every: tt.every}}, 1, slog.New(slog.DiscardHandler))
			time.Sleep(back.Sub(start) + tt.within + tt.every/20)
			p.Close()
			if s := g.Reading().Sources[0]; s.Samples == 0 {
				t.Errorf("every %v: no sample %v after the source came back", tt.every, tt.within)
			}
			if n := len(f.times()); tt.every < maxBackOff && n > 60 {
				t.Errorf("every %v: asked %d times in 100 periods of failure", tt.every, n)
			}
		})
	}
}

const maxBackOff = 10 * time.Second

// A source that hangs costs its own time alone.
func TestPollerHangingSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck := &fake{name: "stuck", look: func(ctx context.Context, _ int) (gpu.Sample, error) {
			<-ctx.Done()
			return gpu.Sample{}, ctx.Err()
		}}
		well := &fake{name: "well", look: full}
		g, p := poll(t, slog.New(slog.DiscardHandler), stuck, well)
		time.Sleep(60*time.Second + every/2)
		r := g.Reading()
		if p := r.Pressure(time.Now()); p < 0.99 {
			t.Errorf("pressure = %v, want that of the source that answers", p)
		}
		if r.Sources[0].Missed == 0 || r.Sources[1].Samples != 13 {
			t.Errorf("states = %+v", r.Sources)
		}
		before := time.Now()
		p.Close()
		if took := time.Since(before); took > time.Second {
			t.Errorf("Close took %v", took)
		}
	})
}

// A source that panics is a miss.
func TestPollerPanickingSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{name: "card", look: func(ctx context.Context, n int) (gpu.Sample, error) {
			if n == 1 {
				panic("unsupported field")
			}
			return full(ctx, n)
		}}
		g, p := poll(t, slog.New(slog.DiscardHandler), f)
		time.Sleep(every + every/2)
		p.Close()
		if s := g.Reading().Sources[0]; s.Missed != 1 || s.Samples != 1 {
			t.Errorf("state = %+v", s)
		}
	})
}

// closer is a source with connections.
type closer struct {
	fake
	closed int
}

func (c *closer) Close() error { c.closed++; return nil }

func TestPollerClosesSources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &closer{fake: fake{name: "card", look: full}}
		_, p := poll(t, slog.New(slog.DiscardHandler), c)
		p.Close()
		p.Close()
		if c.closed != 1 {
			t.Errorf("source closed %d times, want once", c.closed)
		}
	})
}
