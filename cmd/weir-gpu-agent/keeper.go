package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/gpu/agent"
	"github.com/weirproxy/weir/gpu/library"
)

// reader looks at the GPUs of this node: gpu/dcgm, gpu/nvml, gpu/script. A
// look ends with its context, also where a library hangs.
type reader interface {
	Cards(ctx context.Context) ([]gpu.Card, error)
	Close() error
}

// choice is a reader that can be opened; the first of several is the best.
type choice struct {
	name string
	open func() (reader, error)
}

// The patience of a keeper.
const (
	minLook   = 2 * time.Second  // that a look may take, or one period
	giveUp    = 5                // failed looks in a row after which the reader is opened anew
	minReopen = time.Second      // between tries to open, doubled
	maxReopen = 30 * time.Second // up to here
	better    = time.Minute      // on a reader that is not the best, between tries to open a better one
	hungLimit = 2 * time.Minute  // of a library that hangs: then only a new process can try again
)

// keeper opens readers, looks by one at a time and puts what it saw on a
// board. Its fields belong to run.
type keeper struct {
	choices []choice
	every   time.Duration
	host    string
	board   *board
	log     *slog.Logger
	fields  []agent.Field

	reader   reader // nil = none is open
	at       int    // its choice
	misses   int    // failed looks in a row
	pause    time.Duration
	due      time.Time // of the next try to open, or to open a better one
	unopened error     // why none is open
	hung     time.Time // since when it hangs; zero = it does not
	silent   bool      // the log has the present row of failures
}

// errHungForGood ends the agent.
var errHungForGood = fmt.Errorf("the GPU library has hung for %v: a new process has to try again", hungLimit)

// run looks once each period until ctx ends, then closes the reader.
func (k *keeper) run(ctx context.Context) error {
	defer k.close()
	tick := time.NewTicker(k.every)
	defer tick.Stop()
	for {
		if err := k.turn(ctx); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// turn is one look, or one try to open a reader and a look by it.
func (k *keeper) turn(ctx context.Context) error {
	now := time.Now()
	k.choose(now)
	if k.reader == nil {
		k.publish(ctx, seen{err: k.unopened, took: time.Since(now)})
		return nil
	}
	look, cancel := context.WithTimeout(ctx, max(k.every, minLook))
	cards, err := k.reader.Cards(look)
	cancel()
	s := seen{source: k.choices[k.at].name, cards: cards, took: time.Since(now)}
	if err == nil {
		s.dropped = k.judge(cards)
		k.misses, k.hung = 0, time.Time{}
	} else {
		s.cards, s.err = nil, err
		k.misses++
	}
	k.publish(ctx, s)
	return k.despair(time.Now(), err)
}

// judge completes and cleans what a reader said.
func (k *keeper) judge(cards []gpu.Card) (dropped gpu.Faults) {
	for i := range cards {
		if cards[i].Host == "" {
			cards[i].Host = k.host
		}
		for kind, n := range agent.Judge(&cards[i], k.fields) {
			dropped[kind] += n
		}
	}
	return dropped
}

// despair decides what follows from a failed look.
func (k *keeper) despair(now time.Time, err error) error {
	if errors.Is(err, library.ErrHung) || errors.Is(err, context.DeadlineExceeded) {
		if k.hung.IsZero() {
			k.hung = now
		}
		if now.Sub(k.hung) >= hungLimit {
			return errHungForGood
		}
		return nil // opening it anew would hang too
	}
	k.hung = time.Time{}
	if k.misses >= giveUp {
		k.close()
		k.due = now
	}
	return nil
}

// choose opens a reader where there is none, and a better one where there may
// be.
func (k *keeper) choose(now time.Time) {
	if now.Before(k.due) || k.reader != nil && k.at == 0 {
		return
	}
	best := len(k.choices)
	if k.reader != nil {
		best = k.at
	}
	var errs []error
	for i, c := range k.choices[:best] {
		r, err := c.open()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		k.close()
		k.reader, k.at, k.misses, k.pause, k.due = r, i, 0, 0, now.Add(better)
		k.log.Info("reading GPUs", "source", c.name)
		return
	}
	if k.reader != nil {
		k.due = now.Add(better)
		return
	}
	k.unopened = line(errs)
	k.pause = min(max(2*k.pause, minReopen), maxReopen)
	k.due = now.Add(k.pause)
}

// line joins errors on one line.
func line(errs []error) error {
	texts := make([]string, len(errs))
	for i, err := range errs {
		texts[i] = err.Error()
	}
	return errors.New(strings.Join(texts, "; "))
}

// publish puts a look on the board; the log has the ends of a row of failures.
func (k *keeper) publish(ctx context.Context, s seen) {
	if ctx.Err() != nil {
		return // a look that was broken off says nothing
	}
	k.board.put(s, time.Now())
	switch {
	case s.err != nil && !k.silent:
		k.log.Warn("GPUs cannot be read", "error", s.err)
		k.silent = true
	case s.err == nil && k.silent:
		k.log.Info("GPUs are read again", "source", s.source, "cards", len(s.cards))
		k.silent = false
	}
}

func (k *keeper) close() {
	if k.reader == nil {
		return
	}
	if err := k.reader.Close(); err != nil {
		k.log.Warn("reader did not close", "source", k.choices[k.at].name, "error", err)
	}
	k.reader = nil
}

// hostname is the node's name; "" where the machine has none.
func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return name
}
