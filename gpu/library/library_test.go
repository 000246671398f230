package library

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/gpu"
)

// puppet is a library that does as it is told.
type puppet struct {
	hang          chan struct{} // calls wait for it while not nil
	openErr, cErr error
	panics        bool
	opened        []time.Time
	closed        int
	inside, peak  atomic.Int32
}

func (p *puppet) enter() func() {
	if n := p.inside.Add(1); n > p.peak.Load() {
		p.peak.Store(n)
	}
	if p.hang != nil {
		<-p.hang
	}
	return func() { p.inside.Add(-1) }
}

func (p *puppet) Open(now time.Time) error {
	defer p.enter()()
	p.opened = append(p.opened, now)
	return p.openErr
}

func (p *puppet) Cards(time.Time) ([]gpu.Card, error) {
	defer p.enter()()
	if p.panics {
		panic("index out of range")
	}
	return []gpu.Card{{ID: "a"}}, p.cErr
}

func (p *puppet) Close() error { defer p.enter()(); p.closed++; return nil }

var errGone = errors.New("gone")

// TestHang: a library that hangs for 30 s blocks nobody, keeps one thread, is
// reported, and is read again when it comes back (gpu-monitoring-tools#46).
func TestHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &puppet{}
		r, err := Open("puppet", p, Config{Timeout: 5 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		hang := make(chan struct{})
		p.hang = hang
		time.AfterFunc(30*time.Second, func() { close(hang) })
		start := time.Now()
		for time.Since(start) < 29*time.Second {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			began := time.Now()
			_, err := r.Cards(ctx)
			cancel()
			switch age := time.Since(start); {
			case err == nil:
				t.Fatalf("cards of a hung library after %s", age)
			case time.Since(began) > time.Second:
				t.Fatalf("blocked for %s", time.Since(began))
			case age < 5*time.Second && !errors.Is(err, context.DeadlineExceeded):
				t.Errorf("%s: %v, want the deadline", age, err)
			case age > 6*time.Second && !errors.Is(err, ErrHung):
				t.Errorf("%s: %v, want ErrHung", age, err)
			}
			time.Sleep(time.Second)
		}
		if p.inside.Load() != 1 || p.peak.Load() != 1 {
			t.Errorf("%d calls under way, %d at most, want 1", p.inside.Load(), p.peak.Load())
		}
		time.Sleep(2 * time.Second) // it is back
		if cards, err := r.Cards(t.Context()); err != nil || len(cards) != 1 {
			t.Errorf("after the hang: %v, %v", cards, err)
		}
		if err := r.Close(); err != nil || p.closed != 1 {
			t.Errorf("Close: %v, closed %d times", err, p.closed)
		}
	})
}

// TestLateLook: who waited for a look that took too long gets an error, not
// old cards.
func TestLateLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &puppet{}
		r, _ := Open("puppet", p, Config{Timeout: time.Second})
		defer r.Close()
		hang := make(chan struct{})
		p.hang = hang
		go r.Cards(t.Context())
		synctest.Wait()
		l := r.look
		time.Sleep(2 * time.Second)
		close(hang)
		<-l.done
		if !errors.Is(l.err, ErrLate) {
			t.Errorf("error %v, want ErrLate", l.err)
		}
	})
}

// TestOpen: a library that fails is an error with all closed; one that hangs
// is a reader that says so.
func TestOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, p := range map[string]*puppet{"open": {openErr: errGone}, "cards": {cErr: errGone}} {
			if _, err := Open("puppet", p, Config{}); !errors.Is(err, errGone) || p.closed != 1 {
				t.Errorf("%s: error %v, closed %d times", name, err, p.closed)
			}
		}
		if _, err := Open("puppet", &puppet{panics: true}, Config{}); err == nil {
			t.Error("a panic of the binding is no error")
		}
		hang := make(chan struct{})
		p := &puppet{hang: hang}
		r, err := Open("puppet", p, Config{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Cards(t.Context()); !errors.Is(err, ErrHung) {
			t.Errorf("error %v, want ErrHung", err)
		}
		close(hang)
		synctest.Wait()
		if _, err := r.Cards(t.Context()); err != nil {
			t.Error(err)
		}
		r.Close()
	})
}

// TestClose: within 2 s also when the library hangs (dcgm-exporter#84), and
// the library is closed when it comes back.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		p := &puppet{hang: hang}
		r, _ := Open("puppet", p, Config{})
		start := time.Now()
		if err := r.Close(); !errors.Is(err, ErrHung) {
			t.Errorf("Close: %v, want ErrHung", err)
		}
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("Close took %s", took)
		}
		if _, err := r.Cards(t.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("Cards after Close: %v", err)
		}
		close(hang)
		<-r.done
		if p.closed != 1 {
			t.Errorf("closed %d times", p.closed)
		}
		if err := r.Close(); err != nil {
			t.Errorf("second Close: %v", err)
		}
	})
}

// TestReopen: a library that fails is closed and opened again after 1, 2, 4 ..
// 30 s; in between the error says why and when.
func TestReopen(t *testing.T) {
	p := &puppet{}
	k := keeper{driver: p}
	start := time.Unix(1000, 0)
	if _, err := k.look(start); err != nil {
		t.Fatal(err)
	}
	p.cErr = errGone
	if _, err := k.look(start); !errors.Is(err, errGone) || p.closed != 1 {
		t.Fatalf("error %v, closed %d times", err, p.closed)
	}
	p.cErr, p.openErr, p.opened = nil, errGone, nil
	for s := range 130 {
		if _, err := k.look(start.Add(time.Duration(s) * time.Second)); !errors.Is(err, errGone) {
			t.Fatalf("after %d s: %v", s, err)
		}
	}
	want := []int{1, 3, 7, 15, 31, 61, 91, 121}
	for i, at := range p.opened {
		if i >= len(want) || at.Sub(start) != time.Duration(want[i])*time.Second {
			t.Errorf("try %d after %s, want %d", i, at.Sub(start), want)
		}
	}
	if len(p.opened) != len(want) {
		t.Errorf("%d tries, want %d", len(p.opened), len(want))
	}
	p.openErr = nil
	if _, err := k.look(start.Add(151 * time.Second)); err != nil || k.pause != 0 {
		t.Errorf("after it came back: %v, pause %s", err, k.pause)
	}
}
