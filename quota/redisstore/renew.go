package redisstore

import (
	"context"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// A unit of concurrency in Redis counts for unitLife, by the server's clock,
// unless its replica renews it: those of a replica that died are free within 5
// seconds. A replica misses two rounds before it loses a unit that it holds.
const (
	unitLife   = 4 * time.Second
	renewEvery = time.Second
	renewTime  = time.Second // of one round trip, which has renewCalls in it
	renewUnits = 128         // of one counter in one call
	renewCalls = 64
)

// beat renews this replica's units until ctx ends. While Redis is away it
// does nothing: units are renewed when it is back.
func (s *Store) beat(ctx context.Context) {
	tick := time.NewTicker(renewEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if s.outage.Load() != nil {
			continue
		}
		if err := s.renew(ctx, s.client.Load()); err != nil && ctx.Err() == nil {
			s.miss(err, sharedTag)
		}
	}
}

// batch is some units of one counter.
type batch struct {
	counter string
	ids     []any
	absent  *redis.Cmd
}

// renew renews every unit. What Redis has not (it lapsed while this replica
// or Redis was paused, or Redis lost it) is charged again, by its record and
// so once.
func (s *Store) renew(ctx context.Context, c *conn) error {
	var batches []batch
	for _, k := range s.held.all(s.options.Hold) {
		n := len(batches)
		if n == 0 || batches[n-1].counter != k.counter || len(batches[n-1].ids) == renewUnits {
			batches = append(batches, batch{counter: k.counter})
			n++
		}
		batches[n-1].ids = append(batches[n-1].ids, k.id)
	}
	var lost []task
	for len(batches) > 0 {
		n := min(len(batches), renewCalls)
		if err := s.renewSome(ctx, c, batches[:n]); err != nil {
			return err
		}
		for _, b := range batches[:n] {
			lost = append(lost, s.lost(b)...)
		}
		batches = batches[n:]
	}
	if len(lost) == 0 {
		return nil
	}
	return s.tellAll(ctx, c, lost, func(t task, known bool) {
		if !known {
			s.count.replayed.Add(1)
			s.journal.endAgain(t.id)
			s.kick()
		}
	})
}

// renewSome makes one round trip; a server that does not know the script is
// told it and asked again. An error that concerns one counter is none.
func (s *Store) renewSome(ctx context.Context, c *conn, batches []batch) error {
	ctx, cancel := context.WithTimeout(ctx, renewTime)
	defer cancel()
	pipe := c.Pipeline()
	for i := range batches {
		b := &batches[i]
		b.absent = s.scripts.renew.EvalSha(ctx, pipe, []string{b.counter}, b.args()...)
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	for i := range batches {
		b := &batches[i]
		if err := b.absent.Err(); err != nil && strings.HasPrefix(err.Error(), "NOSCRIPT") {
			b.absent = s.scripts.renew.Run(ctx, c, []string{b.counter}, b.args()...)
		}
		if err := b.absent.Err(); err != nil && classify(err) != ReasonError {
			return err
		}
	}
	return nil
}

func (b *batch) args() []any { return append([]any{unitLife.Milliseconds()}, b.ids...) }

// lost are the requests of a batch whose units Redis has not, though they
// are still held.
func (s *Store) lost(b batch) (out []task) {
	absent, err := b.absent.Int64Slice()
	if err != nil {
		return nil // a foreign value, which decisions meet as well
	}
	now := time.Now()
	for _, i := range absent {
		if i < 1 || int(i) > len(b.ids) {
			continue
		}
		id, _ := b.ids[i-1].(string)
		if u, ok := s.held.find(unitKey{b.counter, id}); ok {
			e := &entry{id: id, claims: u.claims, made: u.made}
			out = append(out, task{entry: e, age: now.Sub(u.made), reserve: true})
		}
	}
	return out
}
