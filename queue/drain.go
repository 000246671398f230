package queue

import (
	"math"
	"time"

	"github.com/weirproxy/weir/policy"
)

const (
	drainMemory = 64                     // seats freed; twice the pool, if that is more
	priorSeats  = 16                     // the expectation counts like so many seats freed
	coldHold    = time.Second            // expected time of a seat before any was freed
	minHold     = time.Millisecond       // keeps the expectation finite
	minWait     = 100 * time.Microsecond // bounds of a prediction
	maxWait     = 10 * time.Minute
)

// drain measures how fast seats come free while somebody waits, and who asks
// for them: all over the seats freed last, forgotten exponentially by seats
// freed and not by time, so that a fast pool is followed within a second and a
// slow one is not judged by too few. Time without waiters says nothing about
// the pool's speed and does not count; a seat freed meanwhile makes what was
// measured before weigh less. The expectation, seats in use when none is free
// / mean seat time (Little's law), fills in until there is enough to go by, so
// the rate is always positive and finite, and right at once when waiting
// begins.
type drain struct {
	freedSum float64                    // seats
	timeSum  float64                    // seconds
	asked    [policy.NumClasses]float64 // newcomers for whom no seat was free
	refused  [policy.NumClasses]float64 // of these
	back     float64                    // callers who came back in their slots, for whom none was
	passed   time.Duration              // since the last seat, with somebody waiting
	held     float64                    // mean seconds of a seat
	seats    int                        // in that mean; saturates
	full     float64                    // seats in use when last somebody found none; 0 = not yet
}

// pass counts time during which somebody waited, or nobody.
func (d *drain) pass(dt time.Duration, waited bool) {
	if waited {
		d.passed += dt
	}
}

// freed counts a seat of a pool of so many that came free after it was held
// for some time. One that is given back at the instant it was given has served
// nobody and says nothing.
func (d *drain) freed(held time.Duration, pool int64, waited bool) {
	if held <= 0 {
		return
	}
	memory := max(drainMemory, 4*float64(pool))
	d.seats = min(d.seats+1, 1<<20)
	d.held += (held.Seconds() - d.held) * max(1/memory, 1/float64(d.seats))
	f := 1 - 1/memory
	if !waited {
		f *= f * f * f
	}
	d.freedSum *= f
	d.timeSum *= f
	d.back *= f
	for c := range d.asked {
		d.asked[c] *= f
		d.refused[c] *= f
	}
	if waited {
		d.freedSum++
		d.timeSum += d.passed.Seconds()
		d.passed = 0
	}
}

// resize says that the pool has so many times the seats from now on.
func (d *drain) resize(times float64) {
	d.timeSum /= times
	d.full *= times
}

// known reports whether any seat was freed yet.
func (d *drain) known() bool { return d.seats > 0 }

// measured is the rate of seats freed per second while somebody waited; 0
// before any was.
func (d *drain) measured() float64 {
	if s := d.timeSum + d.passed.Seconds(); s > 0 {
		return d.freedSum / s
	}
	return 0
}

// rate is seats per second, of a pool of so many.
func (d *drain) rate(pool int64) float64 {
	hold := coldHold.Seconds()
	if d.known() {
		hold = max(d.held, minHold.Seconds())
	}
	full := d.full
	if full == 0 {
		full = max(1, float64(pool))
	}
	expected := full / hold
	return (d.freedSum + priorSeats) / (d.timeSum + d.passed.Seconds() + priorSeats/expected)
}

// wait is place / rate, within bounds.
func (d *drain) wait(pool int64, place int) time.Duration {
	return min(maxWait, max(minWait, seconds(float64(place)/d.rate(pool))))
}

// per is a count over the seats freed last, by seat.
func (d *drain) per(count float64) float64 { return count / (d.freedSum + 1) }

// returns is the part of the seats that those who come back in their slots have.
func (d *drain) returns() float64 { return min(1, d.back/(d.freedSum+priorSeats)) }

// share is the part of the drain rate that a class which is refused seats may
// have, max-min fair by weight: the others take what they ask for and have
// booked, at most their part by weight.
func (d *drain) share(c policy.Class, weights [policy.NumClasses]float64, booked *[policy.NumClasses]Bookings) float64 {
	var need [policy.NumClasses]float64
	rest, weight := 1.0, 0.0
	for o := range need {
		need[o] = d.per(d.asked[o] + float64(booked[o].Outstanding+booked[o].Due))
		weight += weights[o]
	}
	need[c] = math.Inf(1)
	for again := true; again; {
		again = false
		for o := range need {
			if need[o] < rest*weights[o]/weight {
				rest, weight = rest-need[o], weight-weights[o]
				need[o], again = math.Inf(1), true
			}
		}
	}
	return rest * weights[c] / weight
}
