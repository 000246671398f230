package quota

import (
	"math/rand/v2"
	"testing"
	"time"
)

// event is one count in the exact model of a window.
type event struct{ cell, n int64 }

// naive counts a window from its events by the definition of T1, in exact
// arithmetic of its own: no ring, no 128-bit division.
func naive(events []event, period, now int64) int64 {
	at := now * Cells
	head := at / period
	for _, e := range events {
		head = max(head, e.cell)
	}
	elapsed := max(at-head*period, 0)
	var whole, oldest int64
	for _, e := range events {
		switch {
		case e.cell > head-Cells:
			whole += e.n
		case e.cell == head-Cells:
			oldest += e.n
		}
	}
	part := oldest * (period - elapsed)
	if part%period != 0 {
		part += period
	}
	return whole + part/period
}

// T1: the oldest of the cells counts by its unexpired part.
func TestWindowUsed(t *testing.T) {
	const period = 300_000 // 5 min in cells of 10 s
	t0 := int64(1_700_000_100_000)
	tests := []struct {
		name string
		at   int64 // after t0, a border of cells
		want int64
	}{
		{"at once", 0, 100},
		{"same cell", 9_999, 100},
		{"last whole cell", 299_999, 100},
		{"oldest, nothing expired", 300_000, 100},
		{"oldest, a tenth expired", 301_000, 90},
		{"oldest, half expired", 305_000, 50},
		{"oldest, last tick: rounded up", 309_999, 1},
		{"gone", 310_000, 0},
		{"long gone", 10_000_000, 0},
		{"clock went back inside the window", -299_000, 100},
		{"clock went back by more", -310_001, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var w Window
			w.Add(period, t0, 100)
			if got := w.Used(period, t0+tt.at); got != tt.want {
				t.Errorf("Used = %d, want %d", got, tt.want)
			}
		})
	}
}

func TestWindowAgainstModel(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		period := 1 + rng.Int64N(100_000)
		now := int64(1_700_000_000_000)
		var w Window
		var events []event
		for range 100 {
			now += rng.Int64N(period/5 + 2)
			if rng.IntN(3) > 0 {
				n := rng.Int64N(1000)
				events = append(events, event{w.Add(period, now, n), n})
			} else if len(events) > 0 {
				e := &events[len(events)-1-rng.IntN(min(len(events), 5))]
				take := rng.Int64N(e.n + 1)
				if e.cell > now*Cells/period-Cells {
					w.Refund(e.cell, take)
					e.n -= take
				}
			}
			want := naive(events, period, now)
			if got := w.Used(period, now); got != want {
				t.Fatalf("period %d: Used = %d, want %d", period, got, want)
			}
			checkFits(t, events, &w, period, now, rng.Int64N(2000))
		}
	}
}

// checkFits holds FitsAt to its word: room at that instant, none before.
func checkFits(t *testing.T, events []event, w *Window, period, now, room int64) {
	t.Helper()
	at := w.FitsAt(period, now, room)
	if at < now {
		t.Fatalf("FitsAt = %d, before now %d", at, now)
	}
	if got := naive(events, period, at); got > room {
		t.Fatalf("period %d: at FitsAt %d more than the room %d is used", period, got, room)
	}
	if at > now {
		if got := naive(events, period, at-1); got <= room {
			t.Fatalf("period %d: a tick before FitsAt %d is used, room %d", period, got, room)
		}
	}
}

// I: counts beyond 32 bits, and near the top of their type.
func TestWindowSaturates(t *testing.T) {
	var w Window
	const period, t0 = 60_000, 1_700_000_000_000
	w.Add(period, t0, 5_500_000_000)
	if got := w.Used(period, t0); got != 5_500_000_000 {
		t.Errorf("Used = %d, want 5.5e9", got)
	}
	for i := range int64(40) {
		w.Add(period, t0+i*2000, MaxCount)
		if got := w.Used(period, t0+i*2000); got != MaxCount {
			t.Fatalf("Used = %d after %d times the maximum, want %d", got, i, int64(MaxCount))
		}
	}
	if at := w.FitsAt(period, t0+80_000, 0); w.Used(period, at) != 0 || w.Used(period, at-1) == 0 {
		t.Errorf("FitsAt %d is not the first empty instant", at)
	}
}

func TestPeriodAndTicks(t *testing.T) {
	for d, want := range map[time.Duration]int64{
		-1: 1, 0: 1, 1: 1, time.Millisecond: 1, time.Millisecond + 1: 2,
		time.Second: 1000, 31 * 24 * time.Hour: 2_678_400_000, 1<<63 - 1: maxPeriod,
	} {
		if got := Period(d); got != want {
			t.Errorf("Period(%d) = %d, want %d", d, got, want)
		}
	}
	for _, at := range []time.Time{{}, time.Unix(-5, 0), time.Unix(1<<60, 0)} {
		if got := Ticks(at); got < 1 || got > maxTick {
			t.Errorf("Ticks(%v) = %d, out of bounds", at, got)
		}
	}
}

func FuzzWindow(f *testing.F) {
	f.Add(int64(60_000), int64(1_700_000_000_000), int64(5), int64(2000), int64(3), int64(1))
	f.Fuzz(func(t *testing.T, period, now, n, step, m, room int64) {
		period = min(max(period, minPeriod), maxPeriod)
		now = min(max(now, 1), maxTick/2)
		step = min(max(step, -now+1), maxTick/2)
		n, m, room = Count(n), Count(m), Count(room)
		var w Window
		cell := w.Add(period, now, n)
		w.Add(period, now+step, m)
		w.Refund(cell, m)
		used := w.Used(period, now+step)
		if used < 0 || used > MaxCount {
			t.Fatalf("Used = %d", used)
		}
		at := w.FitsAt(period, now+step, room)
		if w.Used(period, at) > room || at < now+step {
			t.Fatalf("FitsAt = %d: used %d, room %d", at, w.Used(period, at), room)
		}
		if at > now+step && w.Used(period, at-1) <= room {
			t.Fatalf("FitsAt = %d is not the first", at)
		}
	})
}
