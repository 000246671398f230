package gpu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"
)

// Target is a source and how often it is asked.
type Target struct {
	Source  Source
	Every   time.Duration // <= 0: DefaultEvery
	Timeout time.Duration // of one look; <= 0 or > Every: Every
}

// Info describes a target to a gauge.
func (t Target) Info() SourceInfo {
	return SourceInfo{Name: t.Source.Name(), Engine: t.Source.Engine(), Every: t.every()}
}

func (t Target) every() time.Duration {
	if t.Every <= 0 {
		return DefaultEvery
	}
	return t.Every
}

func (t Target) timeout() time.Duration {
	if t.Timeout <= 0 {
		return t.every()
	}
	return min(t.Timeout, t.every())
}

// The schedule of a target. The first look is at once, the others keep to a
// grid of Every whose phase is the target's own, by chance: the second comes
// after half a period to one and a half. Each is moved by up to jitterShare of
// Every, so that many weirs do not ask one exporter in step, and then to the
// next of the instants that all targets share, which are slotShare of Every
// and at most maxSlot apart: to wake up costs more than a look does, and who
// wakes up together pays it once. After misses in a row the gap doubles, up to
// backOffPeriods of Every or maxBackOff, whichever is shorter, and at least
// Every: a source that is back is seen within a few periods.
const (
	jitterShare    = 0.05
	slotShare      = 0.02
	maxSlot        = 20 * time.Millisecond
	backOffPeriods = 4
	maxBackOff     = 10 * time.Second
)

// Poller makes the sources of one pool look, each in its own goroutine, so
// that a source that hangs delays nobody else, and feeds what they see to the
// pool's gauge. It owns its sources and must be closed.
type Poller struct {
	gauge   *Gauge
	targets []Target
	log     *slog.Logger
	cancel  context.CancelFunc
	work    sync.WaitGroup
	closed  sync.Once
}

// StartPoller starts polling; the first look of each target is at once. seed
// makes phases and jitter; log hears of the first miss of a row and of its end.
func StartPoller(g *Gauge, targets []Target, seed uint64, log *slog.Logger) *Poller {
	ctx, cancel := context.WithCancel(context.Background())
	p := &Poller{gauge: g, targets: targets, log: log, cancel: cancel}
	for i, t := range targets {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		p.work.Go(func() { p.poll(ctx, t, rng) })
	}
	return p
}

// Close stops polling, waits for the looks under way, which end with their
// context, and closes the sources that are io.Closers. Later calls wait too.
func (p *Poller) Close() {
	p.cancel()
	p.work.Wait()
	p.closed.Do(func() {
		for _, t := range p.targets {
			c, ok := t.Source.(io.Closer)
			if !ok {
				continue
			}
			if err := c.Close(); err != nil {
				p.log.Warn("telemetry source did not close", "source", t.Source.Name(), "error", err)
			}
		}
	})
}

// poll asks one target until ctx ends.
func (p *Poller) poll(ctx context.Context, t Target, rng *rand.Rand) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	due, misses := time.Now().Add(part(t.every(), rng.Float64()-0.5)), 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		err := p.look(ctx, t)
		if ctx.Err() != nil {
			return
		}
		misses = p.note(t, err, misses)
		due = next(due, time.Now(), t.every(), misses)
		jitter := part(t.every(), (2*rng.Float64()-1)*jitterShare)
		timer.Reset(untilSlot(due.Add(jitter), time.Now(), t.every()))
	}
}

// part is a share of a period.
func part(every time.Duration, share float64) time.Duration {
	return time.Duration(share * float64(every))
}

// untilSlot is the time from now to the shared instant that is nearest to at.
// The instants are those of the wall clock, whose jumps move them and nothing
// else.
func untilSlot(at, now time.Time, every time.Duration) time.Duration {
	wake := now.Round(0).Add(at.Sub(now))
	return wake.Round(min(maxSlot, max(part(every, slotShare), 1))).Sub(now.Round(0))
}

// next is the grid point of the coming look: after due and not in the past.
func next(due, now time.Time, every time.Duration, misses int) time.Time {
	gap, most := every, max(min(backOffPeriods*every, maxBackOff), every)
	for i := 1; i < misses && gap < most; i++ {
		gap = min(2*gap, most)
	}
	due = due.Add(gap)
	if late := now.Sub(due); late > 0 {
		due = due.Add(late - late%every + every)
	}
	return due
}

// look asks once. A panic of a source is a miss like any other failure: the
// numbers of strangers must not end the process that decides.
func (p *Poller) look(ctx context.Context, t Target) (err error) {
	ctx, cancel := context.WithTimeout(ctx, t.timeout())
	defer cancel()
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("source %s: panic: %v", t.Source.Name(), v)
		}
	}()
	s, err := t.Source.Sample(ctx)
	if err != nil {
		return err
	}
	s.Source = t.Source.Name()
	if s.At.IsZero() {
		s.At = time.Now()
	}
	p.gauge.Observe(s)
	return nil
}

// note counts a miss and logs the ends of a row of misses. That a listener
// heard nothing (ErrQuiet) is no news, and makes its next look no later.
func (p *Poller) note(t Target, err error, misses int) int {
	name := t.Source.Name()
	if err == nil {
		if misses > 0 {
			p.log.Info("telemetry source is back", "source", name, "misses", misses)
		}
		return 0
	}
	p.gauge.Miss(name, time.Now(), err)
	if errors.Is(err, ErrQuiet) {
		return misses
	}
	if misses == 0 {
		p.log.Warn("telemetry source failed", "source", name, "error", err)
	}
	return misses + 1
}
