package redisstore

import (
	"sync/atomic"
	"time"
)

type counts struct {
	remote, outages, replayed, dropped, lost atomic.Uint64
	local                                    [reasons]atomic.Uint64
}

// Stats is what a store did so far, for metrics.
type Stats struct {
	Away     bool              // decisions are local now
	Since    time.Time         // of the present outage
	Reason   Reason            // of the present outage
	Outages  uint64            // how often Redis went away
	Remote   uint64            // decisions by Redis
	Local    map[string]uint64 // decisions from the local share, by reason
	Pending  int               // requests that Redis has yet to be told of
	Replayed uint64            // requests told to Redis afterwards
	Dropped  uint64            // requests that Redis will never be told of: the journal was full, or it refused them
	Lost     uint64            // counters that had vanished although they should be there: evicted, or lost in a fail-over
}

// Stats takes a snapshot.
func (s *Store) Stats() Stats {
	out := Stats{
		Outages:  s.count.outages.Load(),
		Remote:   s.count.remote.Load(),
		Replayed: s.count.replayed.Load(),
		Dropped:  s.count.dropped.Load(),
		Lost:     s.count.lost.Load(),
		Local:    make(map[string]uint64, reasons),
	}
	for r := range reasons {
		out.Local[r.String()] = s.count.local[r].Load()
	}
	if o := s.outage.Load(); o != nil {
		out.Away, out.Since, out.Reason = true, o.since, o.reason
	}
	out.Pending = s.journal.backlog()
	return out
}
