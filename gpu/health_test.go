package gpu_test

import (
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/gpu"
)

func TestFatalXIDs(t *testing.T) {
	for _, code := range []int{46, 48, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143, 150, 155, 158} {
		if what, fatal := gpu.FatalXID(code); !fatal || what == "" {
			t.Errorf("XID %d is not fatal", code)
		}
	}
	for _, code := range []int{0, 13, 31, 43, 45, 63, 68, 92, 94, 109, 144, 149, 154, 156, 9999} {
		if what, fatal := gpu.FatalXID(code); fatal || what != "" {
			t.Errorf("XID %d is fatal: %s", code, what)
		}
	}
}

// A new fatal XID takes the card out at once, for FaultFor after the last one
// and until it was well for some looks.
func TestFault(t *testing.T) {
	r := newRack(t, 4).look(3)
	r.capacity("all well", 1)
	r.cards[2].XID = gpu.Some(79)
	r.look(1)
	r.capacity("one has fallen off the bus", 0.75)
	if c := r.health("GPU-2", gpu.Faulty); !strings.Contains(c.Reason, "XID 79") || !c.Since.Equal(r.now) || !c.Seen.Equal(r.now) {
		t.Errorf("state %+v", c)
	}
	want := gpu.Endpoint{Name: "pod-GPU-2", Reason: "GPU GPU-2: XID 79: GPU has fallen off the bus"}
	if all := r.g.Reading().Endpoints(r.now); len(all) != 4 || all[2] != want || !all[1].Healthy || all[1].Reason != "" {
		t.Errorf("endpoints %+v", all)
	}
	r.look(119) // 9:55 later, the same code shown all the time
	r.capacity("before FaultFor is over", 0.75)
	r.look(1)
	r.capacity("after FaultFor", 1)
	r.health("GPU-2", gpu.Healthy)
	r.look(500)
	r.capacity("the old code is shown for ever", 1)

	// Another fatal code counts anew, and what follows it does not end it.
	r.cards[2].XID = gpu.Some(48)
	r.look(1)
	r.cards[2].XID = gpu.Some(45)
	r.look(1)
	r.capacity("a note after a fatal code", 0.75)
	// The figures vanish; at the end of FaultFor it was not well for long.
	r.cards[2].Util = gpu.Value{}
	r.look(130)
	r.capacity("unreadable", 0.75)
	r.cards[2].Util = gpu.Some(0.4)
	r.look(2)
	r.capacity("readable in two looks", 0.75)
	r.look(1)
	r.capacity("readable in three looks", 1)
}

// Only a new code is a fault: not one that the first look shows, one that is
// back after the exporter's restart, or one of an application.
func TestOldXIDs(t *testing.T) {
	for _, tt := range []struct {
		name  string
		codes []float64 // by look; -1 = not told
		want  gpu.Health
	}{
		{"latched before weir began", []float64{79, 79, 79}, gpu.Healthy},
		{"new", []float64{0, 79}, gpu.Faulty},
		{"new after a latched one", []float64{13, 79}, gpu.Faulty},
		{"back after a restart that told none for a while", []float64{79, -1, -1, 79}, gpu.Healthy},
		{"cleared and again", []float64{79, 0, 79}, gpu.Faulty},
		{"first told of a card that told none for long", []float64{-1, -1, -1, 79}, gpu.Faulty},
		{"first told in the second look", []float64{-1, 79}, gpu.Healthy},
		{"an application's", []float64{0, 31}, gpu.Healthy},
		{"unknown", []float64{0, 4711}, gpu.Healthy},
	} {
		r := newRack(t, 1)
		for _, code := range tt.codes {
			r.cards[0].XID = gpu.Some(code)
			r.cards[0].XID.OK = code >= 0
			r.look(1)
		}
		if c := r.card("GPU-0"); c.Health != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, c.Health, tt.want)
		}
	}
}

// The hardware's brakes are shown and cost no seat; settings are not shown.
func TestClockEvents(t *testing.T) {
	for _, tt := range []struct {
		mask float64
		want gpu.Health
	}{
		{0, gpu.Healthy}, {0x1, gpu.Healthy}, {0x4, gpu.Healthy}, {0x20, gpu.Healthy}, {0x100, gpu.Healthy},
		{0x8, gpu.Degraded}, {0x48, gpu.Degraded}, {0x88, gpu.Degraded}, {0x44, gpu.Degraded},
	} {
		r := newRack(t, 1)
		r.cards[0].Clocks = gpu.Some(tt.mask)
		r.look(1).capacity("slowed down", 1)
		r.health("GPU-0", tt.want)
	}
}

// A source that tells when an XID occurred is believed: what occurred less than
// FaultFor ago stands for whoever sees the card first, and only for the rest of
// FaultFor; the same code counts again when it occurs again.
func TestDatedXIDs(t *testing.T) {
	const never = -1
	type look struct {
		code  float64
		after time.Duration // the first look that it occurred; never = not told
	}
	at := func(code float64, after time.Duration) look { return look{code, after} }
	for _, tt := range []struct {
		name  string
		looks []look
		want  gpu.Health
	}{
		{"a minute before weir began", []look{at(79, -time.Minute)}, gpu.Faulty},
		{"long before weir began", []look{at(79, -11*time.Minute)}, gpu.Healthy},
		{"an application's, just before", []look{at(31, -time.Minute)}, gpu.Healthy},
		{"dated only later, by another source", []look{at(79, never), at(79, -time.Minute)}, gpu.Faulty},
		{"dated only later, and old", []look{at(79, never), at(79, -time.Hour)}, gpu.Healthy},
		{"a new code by a clock that is wrong", []look{at(0, never), at(79, -time.Hour)}, gpu.Faulty},
		{"a new code by a clock that is ahead", []look{at(0, never), at(79, time.Hour)}, gpu.Faulty},
		{"old, and again", []look{at(79, -time.Hour), at(79, -time.Hour), at(79, 9*time.Second)}, gpu.Faulty},
		{"old, told by a shaking clock", []look{at(79, -time.Hour), at(79, -time.Hour), at(79, -time.Hour+4*time.Second)}, gpu.Healthy},
	} {
		r := newRack(t, 1)
		began := r.now.Add(every)
		for _, l := range tt.looks {
			r.cards[0].XID, r.cards[0].XIDAt = gpu.Some(l.code), time.Time{}
			if l.after != never {
				r.cards[0].XIDAt = began.Add(l.after)
			}
			r.look(1)
		}
		if c := r.card("GPU-0"); c.Health != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, c.Health, tt.want)
		}
	}

	r := newRack(t, 1)
	r.cards[0].XID, r.cards[0].XIDAt = gpu.Some(79), r.now.Add(-9*time.Minute)
	r.look(11) // 55 s
	r.capacity("9:55 after it occurred", 0)
	r.look(1)
	r.capacity("10:00 after it occurred", 1)
}

// An old code whose time moves with the looks, as of an exporter that stamps
// what it shows, is no new one, however regularly it is looked at.
func TestMovingDateIsNone(t *testing.T) {
	r := newRack(t, 1)
	r.cards[0].XID = gpu.Some(79)
	r.look(1) // not dated: latched
	for i := range 200 {
		if i%7 == 6 {
			r.now = r.now.Add(3 * every) // looks that failed
		}
		r.cards[0].XIDAt = r.now.Add(every)
		r.look(1)
	}
	r.capacity("FaultFor after the first date", 1)
}
