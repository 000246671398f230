package queue

import (
	"container/list"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

// fifoOfChannels is the common reference: seats behind a mutex, a list of
// channels for those who wait, first come first served. It knows no classes,
// tenants, shares, tokens or times.
type fifoOfChannels struct {
	mu      sync.Mutex
	free    int
	waiting list.List
}

// take gives a seat at once (nil), or a place.
func (f *fifoOfChannels) take() *list.Element {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.free > 0 {
		f.free--
		return nil
	}
	return f.waiting.PushBack(make(chan struct{}, 1))
}

func (f *fifoOfChannels) release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e := f.waiting.Front(); e != nil {
		f.waiting.Remove(e).(chan struct{}) <- struct{}{}
		return
	}
	f.free++
}

func (f *fifoOfChannels) cancel(e *list.Element) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiting.Remove(e)
}

// tiered is the default policy's line: three tiers, a priority lane.
func tiered(requests, tokens int64) Config {
	return tiers(policy.Seats{Requests: requests, Tokens: tokens}, Shares{Priority: 0.1, Streaming: 1})
}

// benches are the shapes that the line is measured in.
var benches = []struct {
	name   string
	config func(requests, tokens int64) Config
}{{"line", standardConfig}, {"line-with-shares", tiered}}

// Goal: at most 0.2 µs and no allocation for an offer with a free seat and
// its release.
func BenchmarkSeatAtOnce(b *testing.B) {
	for _, s := range benches {
		b.Run(s.name, func(b *testing.B) {
			l := New(s.config(64, 400000), nil)
			w := waiter(policy.Standard, "a")
			now := at(0)
			b.ReportAllocs()
			for b.Loop() {
				l.Offer(now, w, wide)
				l.Release(now, w)
			}
		})
	}
	b.Run("channel", func(b *testing.B) {
		f := &fifoOfChannels{free: 64}
		b.ReportAllocs()
		for b.Loop() {
			f.take()
			f.release()
		}
	})
}

// busy is a line with one seat, taken, and n who wait, of so many tenants.
type busy struct {
	l       *Line
	names   []string
	made    int
	running *Waiter
	waiting []*Waiter
}

func newBusy(c Config, n, tenants int) *busy {
	s := &busy{l: New(c, nil), running: waiter(policy.Standard, "a")}
	s.l.Offer(at(0), s.running, endless)
	for i := range tenants {
		s.names = append(s.names, fmt.Sprint("t", i))
	}
	for range n {
		w := &Waiter{}
		s.enqueue(w)
		s.waiting = append(s.waiting, w)
	}
	return s
}

// enqueue passes by Offer's judgement of room.
func (s *busy) enqueue(w *Waiter) {
	tenant := s.made % len(s.names)
	w.Class, w.Tenant, w.Group = policy.Class(s.made%3), s.names[tenant], tenant%3
	w.Cost, w.MaxWait, w.Handicap = int64(100+s.made%900), time.Hour, time.Duration(s.made%2)*100*ms
	s.made++
	s.l.enqueue(prepared(s.l, w), endless)
}

func prepared(l *Line, w *Waiter) *Waiter {
	w.node = node{line: l, since: l.now, came: l.now, deadline: never}
	return w
}

// Goal: at most 1 µs for a release that wakes one of 5,000 over 200 tenants,
// the offer that takes its place included; 100,000 cost a little more.
func BenchmarkWake(b *testing.B) {
	for _, n := range []int{5000, 100_000} {
		for _, s := range benches {
			for _, tenants := range []int{1, 200, n} {
				b.Run(fmt.Sprintf("waiting=%d/tenants=%d/%s", n, tenants, s.name), func(b *testing.B) {
					s := newBusy(s.config(1, 0), n, tenants)
					now := at(0)
					b.ReportAllocs()
					b.ResetTimer()
					for b.Loop() {
						now = now.Add(10 * time.Microsecond)
						done := s.running
						s.running = s.l.Release(now, done)[0].Waiter
						s.enqueue(done)
					}
				})
			}
		}
		b.Run(fmt.Sprintf("waiting=%d/channel", n), func(b *testing.B) {
			f := &fifoOfChannels{}
			for range n {
				f.take()
			}
			b.ReportAllocs()
			b.ResetTimer()
			for b.Loop() {
				f.release()
				f.take()
			}
		})
	}
}

// Goal: at most 5 ms for 5,000 who all cancel.
func BenchmarkCancelStorm(b *testing.B) {
	const n = 5000
	for _, s := range benches {
		b.Run(s.name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				s := newBusy(s.config(1, 0), n, 200)
				b.StartTimer()
				for i := range s.waiting { // from all over the line
					s.l.Cancel(at(ms), s.waiting[i*7%n])
				}
				if s.l.total != 0 {
					b.Fatal("ghosts")
				}
			}
		})
	}
	b.Run("channel", func(b *testing.B) {
		places := make([]*list.Element, n)
		for b.Loop() {
			b.StopTimer()
			f := &fifoOfChannels{}
			for i := range places {
				places[i] = f.take()
			}
			b.StartTimer()
			for i := range places {
				f.cancel(places[i*7%n])
			}
		}
	})
}

// An offer that is refused while 4,000 wait.
func BenchmarkRefusal(b *testing.B) {
	for _, s := range benches {
		b.Run(s.name, func(b *testing.B) {
			l := New(s.config(1, 0), nil)
			bounds := Bounds{Length: 6000, Soft: 4000, PerTenant: 0.5}
			l.Offer(at(0), waiter(policy.Standard, "a"), bounds)
			for i := range 5000 {
				l.Offer(at(0), long(waiter(policy.Class(i%3), fmt.Sprint("t", i))), bounds)
			}
			w := waiter(policy.Standard, "new")
			b.ReportAllocs()
			for b.Loop() {
				if l.Offer(at(0), w, bounds).Refusal == Taken {
					b.Fatal("taken")
				}
			}
		})
	}
}
