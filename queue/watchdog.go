package queue

import (
	"time"

	"github.com/weirproxy/weir/policy"
)

// Numbers of the watchdog.
const (
	idleKV    = 0.4              // of the cache: an idle engine uses less,
	busyKV    = 0.6              // and one that uses more is busy
	idleShare = 0.5              // of those with a seat: an idle engine runs fewer
	idleGaps  = 4                // usual gaps without a word from the pool
	gapsKept  = 64               // ends that the usual gap goes by
	doubtMost = 10 * time.Minute // longest time to an alarm
)

// Watchdog sees to it that weir is never worse than no weir (Q9). When for
// After requests wait for a seat though the engine is idle, it raises an
// alarm, and the seats by Step of them: one step each After, Max at most. When
// the sign is gone the alarm ends, and the raise goes back in the same steps.
//
// The engine is idle when it says that nobody waits in it, and that less than
// 40 % of its KV cache is in use or that it runs less than half of those who
// have a seat. It is busy when it says that somebody waits in it or that more
// than 60 % of the cache is in use, and where first tokens come late or more
// seats are on their way. The sign is gone when the engine is busy or nobody
// waits for a seat; in between everything stays as it is. An engine
// in which requests began to wait after a raise was not idle: the next alarm
// takes twice as long as the last, up to ten minutes.
//
// Without a fresh word of the engine, the pool's own life tells: it is idle
// when no answer began and no seat came free for four times as long as it
// usually takes until one does while requests wait; else it is busy. A pool
// that gave no seat back yet is not judged.
//
// It is a core: not safe for concurrent use, no clock. The zero value does
// nothing.
type Watchdog struct {
	rule  policy.Watchdog
	state sign
	since time.Time // of the state, or of the last step in it

	steps   int // of the raise
	alarm   bool
	alarms  uint64
	wait    time.Duration // of the sign, until the next alarm
	refuted bool          // the raise made requests wait in the engine

	last   Look          // the one before
	mark   time.Time     // when a seat last came free while requests waited, or they began to
	moved  time.Time     // that, or an answer began
	wanted time.Duration // time with requests waiting,
	freed  float64       // and seats that came free in it; both halved at times
}

// sign is what a look says.
type sign uint8

const (
	unclear sign = iota
	idleSign
	noSign
)

// Configure takes the rule, at the start and when it changes. After 0 switches
// the watchdog off.
func (d *Watchdog) Configure(w policy.Watchdog) {
	if w.After <= 0 {
		w = policy.Watchdog{}
	}
	d.rule = w
	d.wait = max(d.wait, w.After)
	d.steps = min(d.steps, d.most())
	d.alarm = d.alarm && w.After > 0
}

// Alarm says that requests wait though the engine is idle, and how often that
// began.
func (d *Watchdog) Alarm() (on bool, times uint64) { return d.alarm, d.alarms }

// Raise is the share of the seats to be added, 0..Max.
func (d *Watchdog) Raise() float64 {
	return min(float64(d.steps)*float64(d.rule.Step), float64(d.rule.Max))
}

// most is the number of steps to Max, the last one cut.
func (d *Watchdog) most() int {
	if d.rule.Step <= 0 || d.rule.Max <= 0 {
		return 0
	}
	return int((d.rule.Max + d.rule.Step - 1e-9) / d.rule.Step)
}

// Watch looks at the pool, about once a second.
func (d *Watchdog) Watch(now time.Time, l Look) {
	d.listen(now, l)
	s := d.judge(now, l)
	if d.rule.After <= 0 {
		return
	}
	if s != d.state {
		d.state, d.since = s, now
	}
	switch s {
	case idleSign:
		d.sound(now)
	case noSign:
		d.alarm = false
		d.fallBack(now, l)
	}
}

// sound raises when the sign has stood long enough.
func (d *Watchdog) sound(now time.Time) {
	wait := d.rule.After
	if !d.alarm && d.steps == 0 {
		wait = d.wait
	}
	if now.Sub(d.since) < wait {
		return
	}
	if !d.alarm {
		d.alarm = true
		d.alarms++
	}
	d.steps = min(d.steps+1, d.most())
	d.since = now
}

// fallBack takes a step back each After.
func (d *Watchdog) fallBack(now time.Time, l Look) {
	d.refuted = d.refuted || d.steps > 0 && l.Engine.Waiting.V >= 1
	if d.steps == 0 || now.Sub(d.since) < d.rule.After {
		return
	}
	d.steps--
	d.since = now
	if d.steps > 0 {
		return
	}
	if d.refuted {
		d.wait = min(2*d.wait, max(doubtMost, d.rule.After))
	} else {
		d.wait = d.rule.After
	}
	d.refuted = false
}

func (d *Watchdog) judge(now time.Time, l Look) sign {
	e := &l.Engine
	switch {
	case l.Waiting == 0 || l.Busy:
		return noSign
	case e.At.IsZero():
		return d.silence(now)
	case e.Waiting.OK && e.Waiting.V >= 1 || e.KV.OK && e.KV.V > busyKV:
		return noSign
	case e.KV.OK && e.KV.V < idleKV || e.Running.OK && e.Running.V <= idleShare*float64(l.Used):
		return idleSign
	}
	return unclear
}

// silence judges without the engine's word.
func (d *Watchdog) silence(now time.Time) sign {
	switch {
	case d.freed == 0:
		return unclear
	case now.Sub(d.moved).Seconds() > idleGaps*d.wanted.Seconds()/d.freed:
		return idleSign
	}
	return noSign
}

// listen learns how often seats come free while requests wait.
func (d *Watchdog) listen(now time.Time, l Look) {
	freed := l.Ended - d.last.Ended
	switch {
	case l.Waiting == 0 || d.last.Waiting == 0:
		d.mark, d.moved = now, now
	case freed > 0:
		d.wanted += now.Sub(d.mark)
		d.freed += float64(freed)
		d.mark, d.moved = now, now
	case l.Began != d.last.Began:
		d.moved = now
	}
	if d.freed > gapsKept {
		d.wanted, d.freed = d.wanted/2, d.freed/2
	}
	d.last = l
}
