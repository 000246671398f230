package redisstore

import (
	"context"
	"time"
)

const (
	flushTime = 5 * time.Second       // bounds Flush
	flushLook = 10 * time.Millisecond // between looks at the journal
	flushTry  = 250 * time.Millisecond
)

// Flush waits until Redis was told all that it has yet to be told, for five
// seconds at most, and reports how many requests are left; it is the last act
// of a replica that ends, after its last Settle. The background work does the
// telling, and comes back to a Redis that is away at least four times a
// second from now on. What is left stays charged as it was reserved until it
// leaves its windows, and its units of concurrency end within unitLife.
func (s *Store) Flush(ctx context.Context) (left int) {
	pending, start := s.journal.backlog(), time.Now()
	if pending == 0 {
		return 0
	}
	ctx, cancel := context.WithTimeout(ctx, flushTime)
	defer cancel()
	s.flush.Do(func() { close(s.hurry) })
	s.kick()
	look := time.NewTicker(flushLook)
	defer look.Stop()
	for left = pending; left > 0; left = s.journal.backlog() {
		select {
		case <-look.C:
		case <-ctx.Done():
			s.options.Log.Warn("redis was not told of every request that ended: they stay charged as reserved, their units of concurrency end by themselves",
				"requests", left, "of", pending, "units_end_within", unitLife.String())
			return left
		}
	}
	s.options.Log.Info("redis was told of every request that ended", "requests", pending, "took", time.Since(start).Round(time.Millisecond).String())
	return 0
}
