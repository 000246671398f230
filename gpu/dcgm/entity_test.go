package dcgm

import (
	"testing"
	"time"

	"github.com/weirproxy/weir/gpu"
)

func util(stamp int64) []raw { v := integer(50); v.stamp = stamp; return []raw{v} }

// TestFrozen: a value whose time stamp stands still is missing after 3
// periods, 5 s at least, and back with the next one (gpu-monitoring-tools#188,
// dcgm-exporter#164). An event's stamp may stand still.
func TestFrozen(t *testing.T) {
	at := time.Unix(1000, 0)
	for _, c := range []struct {
		id    uint16
		every time.Duration
		after time.Duration
		want  bool
	}{
		{203, time.Second, 5 * time.Second, true},
		{203, time.Second, 5*time.Second + 1, false},
		{203, 5 * time.Second, 15 * time.Second, true},
		{203, 5 * time.Second, 15*time.Second + 1, false},
		{230, time.Second, time.Hour, true},
	} {
		e := newEntity(0, gpu.Card{}, []field{*row(t, c.id)}, c.every)
		to := e.fields[0].to
		first, late := e.take(at, util(7), false), e.take(at.Add(c.after), util(7), false)
		if !to(&first).OK || to(&late).OK != c.want {
			t.Errorf("field %d each %s, same stamp after %s: %v, want present %v", c.id, c.every, c.after, to(&late), c.want)
		}
		if c.id == 203 && !c.want && !e.ailing() {
			t.Errorf("a frozen field does not ail")
		}
		back := e.take(at.Add(c.after+time.Second), util(8), false)
		if !to(&back).OK {
			t.Errorf("field %d is missing after its stamp moved", c.id)
		}
	}
}

// TestTake: of two fields with one target the first that is present counts;
// a GPU with MIG instances has no utilisation of its own (dcgm-exporter#216).
func TestTake(t *testing.T) {
	list := []field{*row(t, 1009), *row(t, 200), *row(t, 203)}
	for _, c := range []struct {
		name       string
		new, old   raw
		mig        bool
		sent, util gpu.Value
	}{
		{"both", integer(5e8), integer(100), false, gpu.Some(5e8), gpu.Some(0.5)},
		{"old alone", status(-6), integer(100), false, gpu.Some(1e5), gpu.Some(0.5)},
		{"none", status(-6), status(-6), false, gpu.Value{}, gpu.Some(0.5)},
		{"MIG", integer(5e8), integer(100), true, gpu.Some(5e8), gpu.Value{}},
	} {
		e := newEntity(0, gpu.Card{Host: "h", Index: "3"}, list, time.Second)
		card := e.take(time.Unix(1, 0), []raw{c.new, c.old, integer(50)}, c.mig)
		if card.PCIeSent != c.sent || card.Util != c.util || card.ID != "h/3" {
			t.Errorf("%s: %+v", c.name, card)
		}
	}
	card := newEntity(0, gpu.Card{}, list, time.Second).take(time.Unix(1, 0), nil, false)
	if card.PCIeSent.OK || card.Util.OK {
		t.Errorf("without an answer: %+v", card)
	}
}

// TestRenewal: blanks of a minute are watched anew, then after 2, 4, 8, 15,
// 15 minutes; one good look ends it (DCGM#202).
func TestRenewal(t *testing.T) {
	start := time.Unix(1000, 0)
	var r renewal
	var got []int
	for m := range 46 {
		if r.due(start.Add(time.Duration(m)*time.Minute), true, time.Minute) {
			got = append(got, m)
		}
	}
	want := []int{1, 3, 7, 15, 30, 45}
	if len(got) != len(want) {
		t.Fatalf("renewed at minutes %d, want %d", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("renewed at minutes %d, want %d", got, want)
		}
	}
	now := start.Add(time.Hour)
	if r.due(now, false, time.Minute) || r.due(now, true, time.Minute) || !r.due(now.Add(time.Minute), true, time.Minute) {
		t.Error("a good look does not start the minute anew")
	}
}

// TestAiling: what a board does not have is not asked for again and again.
func TestAiling(t *testing.T) {
	for _, c := range []struct {
		id   uint16
		v    raw
		want bool
	}{
		{203, integer(50), false},
		{203, integer(blankInt64), true},
		{203, status(-16), true},
		{203, status(-6), false},
		{203, status(-17), false},
		{203, integer(4200), false},
		{230, status(-14), false},
	} {
		e := newEntity(0, gpu.Card{}, []field{*row(t, c.id)}, time.Second)
		e.take(time.Unix(1, 0), []raw{c.v}, false)
		if e.ailing() != c.want {
			t.Errorf("field %d, %s: ailing %v, want %v", c.id, e.memory[0].why, e.ailing(), c.want)
		}
	}
}

// TestOutages: each kind of outage is told once in ten minutes, not once for
// each card and look.
func TestOutages(t *testing.T) {
	told := map[outage]time.Time{}
	var n int
	start := time.Unix(1000, 0)
	for s := range 601 {
		now := start.Add(time.Duration(s) * time.Second)
		for range 8 {
			e := newEntity(0, gpu.Card{}, []field{*row(t, 203), *row(t, 150)}, time.Second)
			e.take(now, []raw{status(-6), integer(50)}, false)
			e.outages(now, told, func(*field, missing) { n++ })
		}
	}
	if n != 2 {
		t.Errorf("told %d times in 600 s, want 2", n)
	}
}

func TestConfig(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{}, ""},
		{Config{Mode: 9}, "dcgm: mode 9 is none of Embedded, Standalone, Started"},
		{Config{Mode: Standalone}, "dcgm: address: a stand-alone host engine needs one"},
		{Config{Every: time.Millisecond}, "dcgm: every: 1ms is below 100ms"},
		{Config{Renew: -1}, "dcgm: renew: -1ns is below 0"},
	} {
		cfg, err := c.cfg.filled()
		if (err == nil) != (c.want == "") || err != nil && err.Error() != c.want {
			t.Errorf("%+v: %v, want %q", c.cfg, err, c.want)
		}
		if err == nil && (cfg.Every != time.Second || cfg.Renew != time.Minute) {
			t.Errorf("defaults: %+v", cfg)
		}
	}
}
