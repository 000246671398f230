package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/weirproxy/weir/admission"
)

// seatsEvery is how often the watchdogs of the pools are looked at; they act
// once a second.
const seatsEvery = time.Second

// seatLog says in the log that the watchdog of a pool raised an alarm, and
// that all is as before (Q9): a line each, however long it lasts.
type seatLog struct {
	log   *slog.Logger
	pools map[string]seatState
}

type seatState struct {
	alarms uint64
	raised bool
}

// follow looks until ctx ends.
func (s *seatLog) follow(ctx context.Context, snapshot func(time.Time) admission.Snapshot) {
	ticker := time.NewTicker(seatsEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			s.look(snapshot(now).Pools)
		}
	}
}

// look tells what is new; a pool that is gone is forgotten.
func (s *seatLog) look(pools []admission.PoolStats) {
	next := make(map[string]seatState, len(pools))
	for i := range pools {
		p := &pools[i]
		was, is := s.pools[p.Name], seatState{p.Alarms, p.Alarm || p.Raised > 0}
		if is.alarms > was.alarms {
			s.log.Warn("requests wait though the engine is idle", "pool", p.Name, "seats", p.Wanted, "raised", p.Raised)
			was.raised = true
		}
		if was.raised && !is.raised {
			s.log.Info("requests no longer wait for an idle engine", "pool", p.Name, "seats", p.Wanted)
		}
		next[p.Name] = is
	}
	s.pools = next
}
