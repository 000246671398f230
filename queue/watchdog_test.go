package queue_test

import (
	"math"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/queue"
)

var usualWatch = policy.Watchdog{After: 10 * time.Second, Step: 0.1, Max: 0.5}

// sees is one second of a watched pool.
type sees func(second int) queue.Look

func engineSays(waiting int, engineWaiting, kv float64) sees {
	return func(s int) queue.Look {
		return queue.Look{Used: 50, Waiting: waiting, Engine: queue.Engine{At: second(s), Waiting: word(engineWaiting), KV: word(kv)}}
	}
}

func second(s int) time.Time { return epoch.Add(time.Duration(s) * time.Second) }

// watch lets a watchdog look once a second, from one second until before
// another.
func watch(d *queue.Watchdog, from, to int, see sees) {
	for s := from; s < to; s++ {
		d.Watch(second(s), see(s))
	}
}

func TestWatchdogRaisesByStepsAndFallsBack(t *testing.T) {
	var d queue.Watchdog
	d.Configure(usualWatch)
	idle, calm := engineSays(3, 0, 0.1), engineSays(0, 0, 0.1)
	from := 0
	for _, c := range []struct {
		to    int // seconds
		see   sees
		raise float64
		alarm bool
		times uint64
	}{
		{10, idle, 0, false, 0},
		{11, idle, 0.1, true, 1},
		{20, idle, 0.1, true, 1},
		{21, idle, 0.2, true, 1},
		{200, idle, 0.5, true, 1},
		{201, calm, 0.5, false, 1},
		{211, calm, 0.4, false, 1},
		{221, calm, 0.3, false, 1},
		{400, calm, 0, false, 1},
	} {
		watch(&d, from, c.to, c.see)
		from = c.to
		alarm, n := d.Alarm()
		if got := d.Raise(); math.Abs(got-c.raise) > 1e-6 || alarm != c.alarm || n != c.times {
			t.Errorf("at %d s: raise %.2f, alarm %v, %d times; want %.2f, %v, %d", c.to-1, got, alarm, n, c.raise, c.alarm, c.times)
		}
	}
}

func TestWatchdogIdle(t *testing.T) {
	for _, c := range []struct {
		name string
		see  sees
		want bool
	}{
		{"idle engine", engineSays(1, 0, 0.1), true},
		{"nobody waits", engineSays(0, 0, 0.1), false},
		{"somebody waits in the engine", engineSays(9, 1, 0.1), false},
		{"more seats are on their way", func(s int) queue.Look {
			l := engineSays(9, 0, 0.1)(s)
			l.Busy = true
			return l
		}, false},
		{"cache half full", engineSays(9, 0, 0.5), false},
		{"cache full", engineSays(9, 0, 0.9), false},
		{"the sign comes and goes", func(s int) queue.Look { return engineSays(9, float64(s/5%2), 0.1)(s) }, false},
		{"engine runs less than half of the seats", func(s int) queue.Look {
			l := engineSays(9, 0, 0.5)(s)
			l.Engine.Running = word(20)
			return l
		}, true},
		{"engine runs all", func(s int) queue.Look {
			l := engineSays(9, 0, 0.5)(s)
			l.Engine.Running = word(50)
			return l
		}, false},
		{"engine says nothing of use", func(s int) queue.Look {
			return queue.Look{Used: 50, Waiting: 9, Engine: queue.Engine{At: second(s)}}
		}, false},
		{"no telemetry: seats come free", func(s int) queue.Look {
			return queue.Look{Used: 50, Waiting: 9, Ended: uint64(s)}
		}, false},
		{"no telemetry: answers begin", func(s int) queue.Look {
			return queue.Look{Used: 50, Waiting: 9, Ended: uint64(min(s, 5)), Began: uint64(s)}
		}, false},
		{"no telemetry: nothing moves any more", func(s int) queue.Look {
			return queue.Look{Used: 50, Waiting: 9, Ended: uint64(min(s, 5)), Began: uint64(min(s, 5))}
		}, true},
		{"no telemetry: seats come free each 12 s", func(s int) queue.Look {
			return queue.Look{Used: 5, Waiting: 9, Ended: uint64(s / 12)}
		}, false},
		{"no telemetry: nothing ended yet", func(s int) queue.Look {
			return queue.Look{Used: 50, Waiting: 9}
		}, false},
	} {
		var d queue.Watchdog
		d.Configure(usualWatch)
		alarmed := false
		for s := range 120 {
			d.Watch(second(s), c.see(s))
			on, _ := d.Alarm()
			alarmed = alarmed || on
			if d.Raise() < 0 || d.Raise() > 0.5 {
				t.Fatalf("%s: raise %.2f", c.name, d.Raise())
			}
		}
		if alarmed != c.want || (d.Raise() > 0) != c.want {
			t.Errorf("%s: alarm %v, raise %.2f", c.name, alarmed, d.Raise())
		}
	}
}

// TestWatchdogDoubtsItself: an engine full to its batch says that nobody waits
// and that its cache is empty. The raise shows that it is not idle; the next
// alarms come ever later.
func TestWatchdogDoubtsItself(t *testing.T) {
	var d queue.Watchdog
	d.Configure(usualWatch)
	var at []int
	times := uint64(0)
	for s := range 1800 {
		waits := 0.0
		if d.Raise() > 0 {
			waits = 5
		}
		d.Watch(second(s), engineSays(9, waits, 0.1)(s))
		if _, n := d.Alarm(); n > times {
			at, times = append(at, s), n
		}
	}
	if len(at) < 4 || len(at) > 8 {
		t.Fatalf("alarms at %v s", at)
	}
	for i := 2; i < len(at); i++ {
		if at[i]-at[i-1] < (at[i-1]-at[i-2])*3/2 && at[i]-at[i-1] < 600 {
			t.Errorf("alarms at %v s: they do not come ever later", at)
		}
	}
}

func TestWatchdogConfigure(t *testing.T) {
	for _, c := range []struct {
		rule policy.Watchdog
		want float64 // after an hour of the sign
	}{
		{policy.Watchdog{}, 0},
		{policy.Watchdog{After: time.Second}, 0},
		{policy.Watchdog{After: time.Second, Step: 0.1}, 0},
		{policy.Watchdog{After: time.Second, Step: 0.3, Max: 0.5}, 0.5},
		{policy.Watchdog{After: time.Second, Step: 1, Max: 0.2}, 0.2},
	} {
		var d queue.Watchdog
		d.Configure(c.rule)
		watch(&d, 0, 3600, engineSays(3, 0, 0.1))
		if got := d.Raise(); got < c.want-1e-6 || got > c.want+1e-6 {
			t.Errorf("%+v: raise %.2f, want %.2f", c.rule, got, c.want)
		}
		d.Configure(policy.Watchdog{After: time.Second, Step: 0.05, Max: 0.1})
		if got := d.Raise(); got > 0.1 {
			t.Errorf("%+v: raise %.2f after Max fell to 0.1", c.rule, got)
		}
		d.Configure(policy.Watchdog{})
		d.Watch(second(3600), engineSays(3, 0, 0.1)(3600))
		if on, _ := d.Alarm(); on || d.Raise() != 0 {
			t.Errorf("%+v: raise %.2f, alarm %v after it was switched off", c.rule, d.Raise(), on)
		}
	}
}

// TestWatchdogRaiseHelps: a fixed pool that is far too small for its engine
// serves more by the raise, and gives it back when demand is gone.
func TestWatchdogRaiseHelps(t *testing.T) {
	c := trials()[0]
	p := newPlant(1, c.draw, c.engines...)
	var d queue.Watchdog
	d.Configure(usualWatch)
	const fixed = 16
	p.seats, p.rate = fixed, 10
	most := int64(0)
	step := func() {
		p.run(p.now + time.Second)
		w, r, kv, _ := p.load()
		d.Watch(p.at(), queue.Look{Used: p.used, Waiting: p.waiting, Ended: p.ended,
			Engine: queue.Engine{At: p.at(), Waiting: word(float64(w)), Running: word(float64(r)), KV: word(kv)}})
		p.seats = int64(fixed * (1 + d.Raise()))
		most = max(most, p.seats)
	}
	for range 10 {
		step()
	}
	first := p.ended
	for range 110 {
		step()
	}
	if most != 24 {
		t.Errorf("raised to %d seats, want 24", most)
	}
	before := p.ended
	p.run(p.now + 10*time.Second)
	if now := float64(p.ended - before); now < 1.25*float64(first) {
		t.Errorf("%v ends in 10 s with the raise, %d without", now, first)
	}
	p.rate, p.waiting = 1, 0
	for range 200 {
		step()
	}
	if p.seats != fixed {
		t.Errorf("%d seats after demand was gone, want %d", p.seats, fixed)
	}
}
