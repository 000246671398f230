// Package sourcetest checks that a gpu.Source keeps its contract. Every
// implementation runs it.
package sourcetest

import (
	"context"
	"errors"
	"io"
	"math"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/policy"
)

// Makers make the sources to be checked, each call a fresh one. Makers free
// what they make by t.Cleanup. Hanging is nil where a look cannot hang.
type Makers struct {
	Good    func(t *testing.T) gpu.Source // answers with at least one value; a load within three looks
	Broken  func(t *testing.T) gpu.Source // every look fails
	Hanging func(t *testing.T) gpu.Source // no look comes back by itself
	Strange func(t *testing.T) gpu.Source // answers with sentinels, blanks or NaN and no usable value
	Pushed  bool                          // samples come by themselves: one may be older than the look that returns it
}

// patience is how long after the end of its context a look may take.
const patience = 5 * time.Second

// Run checks a source.
func Run(t *testing.T, m Makers) {
	t.Run("Good", func(t *testing.T) { good(t, m) })
	t.Run("Concurrent", func(t *testing.T) { concurrent(t, m.Good(t)) })
	t.Run("ContextEnded", func(t *testing.T) { ended(t, m.Good(t)) })
	t.Run("Broken", func(t *testing.T) { broken(t, m.Broken(t)) })
	if m.Hanging != nil {
		t.Run("Hanging", func(t *testing.T) { hanging(t, m.Hanging(t)) })
	}
	t.Run("Strange", func(t *testing.T) { strange(t, m.Strange(t)) })
}

// Open makes a source, or something like it, that is closed with the test.
func Open[C any, S io.Closer](t testing.TB, open func(C) (S, error), cfg C) S {
	t.Helper()
	s, err := open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// good: samples carry the name and their instant, in order, with values in range.
func good(t *testing.T, m Makers) {
	made := time.Now()
	s := m.Good(t)
	name, engine := s.Name(), s.Engine()
	if name == "" {
		t.Error("Name is empty")
	}
	var last time.Time
	silent, load := 0, false
	for range 3 {
		before := time.Now()
		got, err := s.Sample(t.Context())
		if err != nil {
			t.Fatalf("Sample: %v", err)
		}
		check(t, s, got)
		if m.Pushed {
			before = made
		}
		if got.At.Before(before) || got.At.After(time.Now()) || got.At.Before(last) {
			t.Errorf("At = %v, want between the call (%v) and now, and not before %v", got.At, before, last)
		}
		if !got.Util.OK && !got.KV.OK && !got.Waiting.OK && !got.Load.OK {
			silent++
		}
		if !engine && got.Util.OK && got.GPUs < 1 {
			t.Errorf("utilisation of %d GPUs", got.GPUs)
		}
		last, load = got.At, got.Load.OK
	}
	if silent > 0 && !load { // a load takes two looks
		t.Errorf("%d of 3 samples had no value", silent)
	}
	if s.Name() != name || s.Engine() != engine {
		t.Error("Name or Engine changed")
	}
}

// check: what every sample must keep.
func check(t *testing.T, s gpu.Source, got gpu.Sample) {
	t.Helper()
	if got.Source != s.Name() {
		t.Errorf("Source = %q, want %q", got.Source, s.Name())
	}
	if got.GPUs < 0 || got.Dropped < 0 {
		t.Errorf("GPUs = %d, Dropped = %d", got.GPUs, got.Dropped)
	}
	for what, v := range map[string]gpu.Value{"Util": got.Util, "KV": got.KV, "Active": got.Active, "Load": got.Load} {
		if v.OK && !(v.V >= 0 && v.V <= 1) {
			t.Errorf("%s = %v, want 0..1 or absent", what, v.V)
		}
	}
	cards := map[string]bool{}
	for _, d := range got.Cards {
		if key := d.ID + "/" + d.Instance; d.ID == "" || cards[key] {
			t.Errorf("card %q is not named, or twice", key)
		} else {
			cards[key] = true
		}
		for what, v := range map[string]gpu.Value{"util": d.Util, "active": d.Active, "SM": d.SM, "tensor": d.Tensor, "DRAM": d.DRAM} {
			if v.OK && !(v.V >= 0 && v.V <= 1) {
				t.Errorf("card %s: %s = %v, want 0..1 or absent", d.ID, what, v.V)
			}
		}
	}
	for what, v := range map[string]gpu.Value{"Waiting": got.Waiting, "Running": got.Running} {
		if v.OK && !(v.V >= 0 && !math.IsInf(v.V, 1)) {
			t.Errorf("%s = %v, want >= 0 or absent", what, v.V)
		}
	}
}

func concurrent(t *testing.T, s gpu.Source) {
	var work sync.WaitGroup
	for range 8 {
		work.Go(func() {
			if _, err := s.Sample(t.Context()); err != nil {
				t.Errorf("Sample: %v", err)
			}
		})
	}
	work.Wait()
}

func ended(t *testing.T, s gpu.Source) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got, err := s.Sample(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Sample with an ended context = %+v, %v; want context.Canceled", got, err)
	}
}

// broken: a failure is an error and the zero sample, so nobody takes it for a
// zero load.
func broken(t *testing.T, s gpu.Source) {
	for range 2 {
		if got, err := s.Sample(t.Context()); err == nil || !reflect.DeepEqual(got, gpu.Sample{}) {
			t.Errorf("Sample = %+v, %v; want the zero sample and an error", got, err)
		}
	}
}

func hanging(t *testing.T, s gpu.Source) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	if got, err := s.Sample(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Sample = %+v, %v; want context.DeadlineExceeded", got, err)
	}
	if took := time.Since(start); took > patience {
		t.Errorf("Sample took %v with a context of 50ms", took)
	}
}

// strange: what is no number is absent and counted, and a gauge that is fed
// with it stays neutral.
func strange(t *testing.T, s gpu.Source) {
	got, err := s.Sample(t.Context())
	if err != nil {
		t.Fatalf("Sample: %v", err)
	}
	check(t, s, got)
	if got.Util.OK || got.KV.OK || got.Waiting.OK || got.Load.OK || got.Dropped == 0 {
		t.Errorf("sample = %+v, want no values and some dropped", got)
	}
	c := policy.Gauge{Smoothing: [3]float64{0.7, 0.2, 0.1}, Neutral: 0.5, StalePeriods: 3, WaitingTarget: 5, KVTarget: 0.8}
	g := gpu.NewGauge(c, []gpu.SourceInfo{{Name: s.Name(), Engine: s.Engine()}}, got.At.Add(-time.Second))
	g.Observe(got)
	if p := g.Reading().Pressure(got.At); p != 0.5 {
		t.Errorf("pressure = %v, want neutral", p)
	}
}
