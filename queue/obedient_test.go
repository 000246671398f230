package queue

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

// drains is what pulseOf's pool serves: 120 seats of 95 ms.
const drains = 120 / 0.095

// Q5-Q7: who comes back at its hint is let in, near the instant it was told;
// all of them together come no faster than the pool can serve; and newcomers
// are served all the same.
func TestHintsAreTrue(t *testing.T) {
	t.Parallel()
	for _, rate := range []float64{1500, 2 * drains, 4 * drains} {
		for _, length := range []int{50, 200} {
			for _, lasts := range []time.Duration{time.Second, 10 * time.Second} {
				for _, unmarked := range []bool{false, true} {
					if unmarked && (lasts == time.Second || length == 50 && Thorough(0, 1) == 0) {
						continue
					}
					c := pulseOf(rate, length)
					c.unmarked, c.lasts = unmarked, lasts
					o := c.run()
					name := fmt.Sprintf("%.0f/s for %v, length %d, unmarked %t: %v", rate, lasts, length, unmarked, o)
					t.Log(name)
					least := 0.9
					if !unmarked && lasts > time.Second {
						least = 0.99 // what newcomers leave free, see rest
					}
					if o.letIn() < least {
						t.Errorf("%s: let in at the first return, want %g", name, least)
					}
					if o.back > 100 && median(o.off) > 0.25 {
						t.Errorf("%s: off by more than 0.25", name)
					}
					if float64(o.peak) > 1.2*drains {
						t.Errorf("%s: returns come faster than %.0f", name, 1.2*drains)
					}
					if float64(o.served) < 0.95*drains*lasts.Seconds() {
						t.Errorf("%s: seats were idle", name)
					}
					for class := range policy.Class(policy.NumClasses) {
						if o.firstOf(class) < 0.04 {
							t.Errorf("%s: newcomers of class %d are shut out", name, class)
						}
					}
				}
			}
		}
	}
}

// H1: at 1.2 times what the pool serves, everybody is admitted at once or at a
// hint within 5 s, and class critical at once.
func TestPulseIsServedWithinFiveSeconds(t *testing.T) {
	t.Parallel()
	for _, length := range []int{50, 200} {
		for seed := range Thorough(1, 8) {
			c := pulseOf(1500, length)
			c.seed = seed
			if o := c.run(); o.within5() < 0.95 || o.firstOf(policy.Critical) < 0.99 {
				t.Errorf("length %d, seed %d: %v", length, seed, o)
			}
		}
	}
	for _, length := range []int{50, 200} {
		c := pulseOf(2*drains, length) // critical alone is 0.4 of what the pool serves
		if o := c.run(); o.firstOf(policy.Critical) < 0.99 {
			t.Errorf("length %d: %v", length, o)
		}
	}
}

// Those who do not come back waste nothing: seats are not kept for them, and
// those who do come back find theirs.
func TestAbsentCallersWasteNothing(t *testing.T) {
	t.Parallel()
	for _, rate := range []float64{1500, 4 * drains} {
		for _, absent := range []float64{0.5, 1} {
			c := pulseOf(rate, 50)
			c.absent = absent
			o := c.run()
			if float64(o.served) < 0.95*drains*10 || absent < 1 && o.letIn() < 0.9 {
				t.Errorf("%.0f/s, %v of the callers absent: %v", rate, absent, o)
			}
		}
	}
}

// A tenant that floods moves its own hints: those of the others stay, and so
// do their seats.
func TestFloodMovesItsOwnHints(t *testing.T) {
	t.Parallel()
	for _, rate := range []float64{1500, 2 * drains} {
		calm := pulseOf(rate, 200)
		wild := calm
		wild.flood = 10000
		a, b := calm.run(), wild.run()
		if m, n := median(a.hints), median(b.hints); n > 1.5*m+0.2 {
			t.Errorf("%.0f/s: hints of %.2f s became %.2f s", rate, m, n)
		}
		if b.letIn() < 0.9 || float64(b.flooded) > 0.06*float64(b.served) { // of 31 tenants
			t.Errorf("%.0f/s: %v", rate, b)
		}
	}
}

// Thousands of tenants with a call or two each are let in like thirty.
func TestThousandsOfTenants(t *testing.T) {
	t.Parallel()
	for _, rate := range []float64{1500, 4 * drains} {
		c := pulseOf(rate, 200)
		c.tenants = 3000
		if o := c.run(); o.letIn() < 0.9 || float64(o.peak) > 1.2*drains {
			t.Errorf("%.0f/s: %v", rate, o)
		}
	}
}

// Q7: who knows whole seconds only comes up to one second late and is let in
// all the same.
func TestWholeSeconds(t *testing.T) {
	t.Parallel()
	for _, rate := range []float64{1500, 2 * drains} {
		c := pulseOf(rate, 200)
		c.whole = true
		if o := c.run(); o.letIn() < 0.9 {
			t.Errorf("%.0f/s: %v", rate, o)
		}
	}
}

// When half of the capacity is lost in the middle of a burst, the seats stay
// in use and those who come back are let in as far as half the rate holds: the
// slots of before were half of the capacity.
func TestCapacityHalves(t *testing.T) {
	t.Parallel()
	for _, rate := range []float64{1500, 2 * drains} {
		c := pulseOf(rate, 200)
		c.slow = 10 * time.Second
		if o := c.run(); o.letIn() < 0.9 || float64(o.served) < 0.95*0.75*drains*10 {
			t.Errorf("%.0f/s: %v", rate, o)
		}
	}
}

// A pool without a line (Length 0) holds no seat for who comes back: most find
// one all the same, and none stands idle.
func TestHintsWithoutALine(t *testing.T) {
	t.Parallel()
	for _, rate := range []float64{1500, 4 * drains} {
		for _, unmarked := range []bool{false, true} {
			c := pulseOf(rate, 0)
			c.unmarked = unmarked
			o := c.run()
			if o.back == 0 || o.letIn() < 0.5 || float64(o.served) < 0.95*drains*c.lasts.Seconds() {
				t.Errorf("%.0f/s: %v", rate, o)
			}
		}
	}
}
