package gpu_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
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

// slack is how far from its grid a look may be: by the jitter and by the slot.
const slack = every/20 + 10*time.Millisecond

// Q3: a look at once, then one every period within the jitter, without drift.
func TestPollerSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{name: "card", look: full}
		start := time.Now()
		g, p := poll(t, slog.New(slog.DiscardHandler), f)
		time.Sleep(1000 * every)
		p.Close()
		asked := f.times()
		if n := len(asked); n < 1000 || n > 1002 {
			t.Fatalf("%d looks in 1000 periods", n)
		}
		if asked[0] != start {
			t.Errorf("the first look was after %v, want at once", asked[0].Sub(start))
		}
		first, last := every, -every
		for i, at := range asked[1:] {
			off := at.Sub(start.Add(time.Duration(i+1) * every))
			first, last = min(first, off), max(last, off)
		}
		if last-first > 2*slack || first < -every/2-slack || last > every/2+slack {
			t.Errorf("looks are %v to %v off their periods, want within %v of one phase", first, last, slack)
		}
		if last-first < every/20 {
			t.Error("no jitter")
		}
		if n := g.Reading().Sources[0].Samples; n != uint64(len(asked)) {
			t.Errorf("%d samples of %d looks", n, len(asked))
		}
	})
}

// Each target has a phase of its own, and all share the instants at which they
// wake up.
func TestPollerPhases(t *testing.T) {
	const many, parts = 500, 10
	phases := func(seed uint64) (second []time.Duration, instants int) {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			var fakes []*fake
			var targets []gpu.Target
			for range many {
				fakes = append(fakes, &fake{name: "card", look: full})
				targets = append(targets, gpu.Target{Source: fakes[len(fakes)-1], Every: time.Second})
			}
			g := gpu.NewGauge(defaults(), nil, start)
			p := gpu.StartPoller(g, targets, seed, slog.New(slog.DiscardHandler))
			time.Sleep(3 * time.Second)
			p.Close()
			distinct := map[time.Time]bool{}
			for _, f := range fakes {
				asked := f.times()
				second = append(second, asked[1].Sub(start))
				for _, at := range asked {
					distinct[at] = true
				}
			}
			instants = len(distinct)
		})
		return second, instants
	}
	second, instants := phases(1)
	var in [parts]int
	for _, d := range second {
		if d < 440*time.Millisecond || d > 1560*time.Millisecond {
			t.Fatalf("the second look came after %v, want half a period to one and a half", d)
		}
		in[min(max(int((d-500*time.Millisecond)*parts/time.Second), 0), parts-1)]++
	}
	for i, n := range in { // 50 are expected; below 25 or above 80 has a chance of less than 1 in 10000
		if n < many/parts/2 || n > many/parts*8/5 {
			t.Errorf("%d of %d targets have their phase in tenth %d: %v", n, many, i, in)
		}
	}
	if most := int(3*time.Second/(20*time.Millisecond)) + 1; instants > most {
		t.Errorf("%d targets woke up at %d instants in 3 s, want at most %d", many, instants, most)
	}
	if again, _ := phases(1); !slices.Equal(again, second) {
		t.Error("the same seed made other phases")
	}
	if other, _ := phases(2); slices.Equal(other, second) {
		t.Error("another seed made the same phases")
	}
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
		n := len(f.times())
		if n < 99 || n > 101 {
			t.Errorf("%d looks in 99 periods", n)
		}
		if s := g.Reading().Sources[0]; s.Missed != uint64(n-n/5) || s.Samples != uint64(n/5) || log.Len() > 0 {
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
		want := []time.Duration{0, 10, 20, 30, 40, 50, 55, 60} // seconds after the second look
		asked := f.times()
		if gap := asked[1].Sub(start); gap < every/2-slack || gap > every*3/2+slack {
			t.Errorf("the second look after %v, want half a period to one and a half", gap)
		}
		if len(asked) < 1+len(want) {
			t.Fatalf("%d looks, want %d at least", len(asked), 1+len(want))
		}
		for i, after := range want {
			if got := asked[1+i].Sub(asked[1]); (got - after*time.Second).Abs() > 2*slack {
				t.Errorf("look %d came %v after the second, want %d s", 2+i, got, after)
			}
		}
		if s := g.Reading().Sources[0]; s.Missed != 6 || s.Misses != 0 || s.Samples != uint64(len(asked)-6) {
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
		if r.Sources[0].Missed == 0 || r.Sources[1].Samples < 12 || r.Sources[1].Samples > 14 {
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
		time.Sleep(every*3/2 + slack)
		p.Close()
		if s := g.Reading().Sources[0]; s.Missed != 1 || s.Samples == 0 {
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
