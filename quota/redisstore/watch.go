package redisstore

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/internal/redisclient"
	"github.com/weirproxy/weir/quota"
)

const (
	replayBatch   = 256
	replayWorkers = 8
	replayTimeout = time.Second // of one request's replay
	checkBatch    = 64          // acknowledged requests looked at for a fail-over's loss
)

// watch is the background work: it ends when ctx does.
func (s *Store) watch(ctx context.Context) {
	s.arrive(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		}
		var back time.Time
		if s.outage.Load() != nil {
			if back = s.await(ctx); back.IsZero() {
				return
			}
		}
		err := s.replay(ctx, s.client.Load(), math.MaxInt)
		if err == nil && !back.IsZero() {
			err = s.recheck(ctx, back)
		}
		if err != nil && ctx.Err() == nil {
			s.miss(err, sharedTag)
		}
	}
}

// await probes until Redis is back and decides again. It returns when the
// probe succeeded; zero when ctx ends.
func (s *Store) await(ctx context.Context) time.Time {
	tick := time.NewTicker(s.config.RetryAfterOutage)
	defer tick.Stop()
	for hurry := s.hurry; ; {
		select {
		case <-ctx.Done():
			return time.Time{}
		case <-hurry:
			hurry = nil
			tick.Reset(min(s.config.RetryAfterOutage, flushTry))
		case <-tick.C:
		}
		if back := s.comeBack(ctx); !back.IsZero() {
			return back
		}
	}
}

// comeBack makes a new client: the old one's connections may be to a server
// that was demoted. What is pending now is told before Redis decides again;
// what is added meanwhile, afterwards, or a fast stream of local decisions
// would keep Redis away for ever.
func (s *Store) comeBack(ctx context.Context) (back time.Time) {
	client, err := redisclient.Dial(s.config)
	if err != nil {
		return back // the TLS files are being replaced: the next probe sees
	}
	if err := s.probe(ctx, client); err != nil {
		_ = client.Close() // nothing is left to be said on it
		s.lacking(err)
		return back
	}
	back = time.Now()
	err = s.replay(ctx, client, s.journal.backlog())
	if err == nil {
		err = s.renew(ctx, client)
	}
	if err != nil {
		_ = client.Close() // it went away again
		return time.Time{}
	}
	warm(ctx, client, s.config.Pool)
	old := s.client.Swap(client)
	o := s.outage.Swap(nil)
	_ = old.Close() // its server may be gone
	s.options.Log.Info("redis is back: it decides quotas again", "reason", o.reason.String(), "away", back.Sub(o.since), "pending", s.journal.backlog())
	return back
}

// probe tries all that a decision does in the slot that missed, and a write in
// the time that a decision has.
func (s *Store) probe(ctx context.Context, c *conn) error {
	connect, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	tag := s.outage.Load().tag
	if err := s.try(connect, c, tag); err != nil {
		return err
	}
	once, cancelOnce := s.budget(ctx)
	defer cancelOnce()
	said, err := c.Set(once, s.key(tag, "p", ""), "", redisclient.ProbeLife).Result()
	if err == nil && said != "OK" {
		return errReply
	}
	return err
}

// lacking logs, once an outage, which rights the user lacks.
func (s *Store) lacking(err error) {
	var denied *redisclient.RightsError
	if o := s.outage.Load(); errors.As(err, &denied) && o.named.CompareAndSwap(false, true) {
		s.options.Log.Error("redis denies what weir has to do: see its ACL in the documentation", "error", err)
	}
}

// replay tells Redis up to most of what is pending, oldest first: what a policy
// of old counted before what takes over from it. An error means that it went
// away meanwhile.
func (s *Store) replay(ctx context.Context, c *conn, most int) error {
	for most > 0 {
		tasks := s.journal.tasks(min(replayBatch, most))
		if len(tasks) == 0 {
			break
		}
		most -= len(tasks)
		later := slices.IndexFunc(tasks, func(t task) bool { return s.takesOver(t.claims) })
		if later < 0 {
			later = len(tasks)
		}
		for _, some := range [][]task{tasks[:later], tasks[later:]} {
			if err := s.tellAll(ctx, c, some, func(t task, _ bool) {
				s.journal.finish(t)
				s.count.replayed.Add(1)
			}); err != nil {
				return err
			}
		}
	}
	return nil
}

// recheck looks whether Redis still has what it acknowledged shortly before
// it came back, newest first, and charges again what a fail-over lost. It
// stops where a whole batch is known.
func (s *Store) recheck(ctx context.Context, back time.Time) error {
	for tasks := range slices.Chunk(s.journal.acknowledged(back), checkBatch) {
		var lost atomic.Int64
		err := s.tellAll(ctx, s.client.Load(), tasks, func(t task, known bool) {
			if !known {
				lost.Add(1)
				s.count.replayed.Add(1)
				s.journal.again(t)
			}
		})
		if err != nil {
			return err
		}
		if lost.Load() == 0 {
			break
		}
	}
	s.kick() // there may be ends to tell
	return nil
}

// tellAll runs tasks on a few workers; done hears of each that succeeded. The
// first outage ends it.
func (s *Store) tellAll(ctx context.Context, c *conn, tasks []task, done func(t task, known bool)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	work := make(chan task, len(tasks))
	for _, t := range tasks {
		work <- t
	}
	close(work)
	var wg sync.WaitGroup
	for range min(replayWorkers, len(tasks)) {
		wg.Go(func() {
			for t := range work {
				known, err := s.tellOne(ctx, c, s.journal.begin(t))
				switch {
				case err == nil:
					done(t, known)
				case ctx.Err() == nil && classify(err) == ReasonError:
					s.count.dropped.Add(1)
					s.journal.finish(t)
				default:
					cancel(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// tellOne charges one request: its reservation without asking, then its end.
// Both are idempotent by id, so it does not matter what Redis knew; known
// reports whether it knew the reservation everywhere.
func (s *Store) tellOne(ctx context.Context, c *conn, t task) (known bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, replayTimeout)
	defer cancel()
	groups := s.groups(t.claims)
	known = true
	if t.reserve {
		if _, err := s.carry(ctx, c, t.now, groups); err != nil {
			return false, err
		}
	}
	for i := range groups {
		if !t.reserve {
			break
		}
		r, err := s.reserveOn(ctx, c, force, t.now, t.age, t.id, &groups[i])
		if err != nil {
			return false, err
		}
		known = known && r.state == repeated
	}
	for i := range groups {
		if !t.settle {
			break
		}
		lost, err := s.settleOn(ctx, c, settle, t.end, t.id, &groups[i], t.final)
		if err != nil {
			return false, err
		}
		s.count.lost.Add(uint64(lost))
	}
	return known, nil
}

var _ quota.Store = (*Store)(nil)
