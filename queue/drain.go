package queue

import (
	"math"
	"time"
)

const (
	drainMemory = 10 * time.Second       // time constant of the measurement
	priorWeight = time.Second            // the expectation counts like so much measured time
	coldHold    = time.Second            // expected time of a seat before any was freed
	minHold     = time.Millisecond       // keeps the expectation finite
	holdShare   = 1.0 / 32               // of a new seat time in the mean
	minWait     = 100 * time.Microsecond // bounds of a prediction
	maxWait     = 10 * time.Minute
)

// drain measures how fast seats come free while somebody waits: seats freed
// and time passed, both forgotten exponentially. Time without waiters says
// nothing about the pool's speed and does not count. The expectation seats /
// mean seat time (Little's law) fills in until there is enough to go by, so
// the rate is always positive and finite.
type drain struct {
	freedSum float64       // seats, decayed
	timeSum  float64       // seconds, decayed
	passed   time.Duration // since the last decay, with somebody waiting
	held     float64       // mean seconds of a seat
	seats    int           // in that mean; saturates
}

// pass counts time during which somebody waited, or nobody.
func (d *drain) pass(dt time.Duration, waited bool) {
	if waited {
		d.passed += dt
	}
}

// freed counts a seat that came free after it was held for some time. One that
// is given back at the instant it was given has served nobody and says nothing.
func (d *drain) freed(held time.Duration, waited bool) {
	if held <= 0 {
		return
	}
	d.seats = min(d.seats+1, 1<<20)
	d.held += (held.Seconds() - d.held) * max(holdShare, 1/float64(d.seats))
	if !waited {
		return
	}
	f, t := d.decay(d.passed)
	d.freedSum, d.timeSum, d.passed = d.freedSum*f+1, t, 0
}

// decay gives the factor of forgetting after dt, and the time sum then.
func (d *drain) decay(dt time.Duration) (f, sum float64) {
	tau := drainMemory.Seconds()
	f = math.Exp(-dt.Seconds() / tau)
	return f, d.timeSum*f + tau*(1-f)
}

// known reports whether any seat was freed yet.
func (d *drain) known() bool { return d.seats > 0 }

// sums are the measurement as it stands, with the time since the last seat.
func (d *drain) sums() (freed, seconds float64) {
	f, t := d.decay(d.passed)
	return d.freedSum * f, t
}

// measured is the rate of seats freed per second; 0 before any was.
func (d *drain) measured() float64 {
	if !d.known() {
		return 0
	}
	freed, seconds := d.sums()
	if seconds <= 0 {
		return 0
	}
	return freed / seconds
}

// wait is place / rate for a pool of so many seats, within bounds.
func (d *drain) wait(seats int64, place int) time.Duration {
	hold := coldHold.Seconds()
	if d.known() {
		hold = max(d.held, minHold.Seconds())
	}
	expected := float64(max(1, seats)) / hold
	freed, seconds := d.sums()
	w := priorWeight.Seconds()
	rate := (freed + expected*w) / (seconds + w)
	wait := float64(place) / rate
	if wait >= maxWait.Seconds() {
		return maxWait
	}
	return max(minWait, time.Duration(wait*float64(time.Second)))
}
