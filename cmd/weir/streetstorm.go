package main

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/envoy/watch"
)

// storms is the duty of the watch: what Envoys see goes to the breakers of gRPC
// pools (B7), calls that broke to those of all pools (B6), and to retry control
// (B9).
func (s *street) storms(ctx context.Context) {
	tick := time.NewTicker(stormEvery)
	defer tick.Stop()
	seq := uint64(0)
	for {
		events, more := s.watch.Journal().Since(seq)
		for i := range events {
			seq = events[i].Seq
			s.timeline.add(watchEntry(&events[i]))
		}
		s.storm(time.Now(), s.watch.Readings())
		s.losses(time.Now(), s.watch.Readings())
		if len(events) > 0 {
			s.wake()
		}
		select {
		case <-ctx.Done():
			return
		case <-more:
		case <-tick.C:
		}
	}
}

// storm tells breakers and retry control of storms: again and again while they
// last, and once when they are over. In protect mode nobody is told to try
// again either: the connections that are left must not get more.
func (s *street) storm(now time.Time, readings *watch.Readings) {
	stormy := map[string]bool{}
	because := map[string]string{}
	for _, r := range readings.All() {
		if r.Storm || r.Protect {
			stormy[r.Cluster] = true
			s.o.Desk.Storm(r.Cluster, true)
		}
		if r.Storm {
			because[r.Cluster] = r.Because
		}
	}
	if s.restate.Swap(false) {
		for _, b := range s.o.Desk.Breakers(now) {
			s.o.Desk.Storm(b.Cluster, stormy[b.Cluster])
		}
	}
	for _, cluster := range slices.Sorted(maps.Keys(s.stormy)) {
		if !stormy[cluster] {
			s.o.Desk.Storm(cluster, false)
		}
	}
	s.stormy = stormy
	if len(because) == 0 {
		return
	}
	p := &s.o.Policy().Envoy.Watch.GoAway
	for _, b := range s.o.Desk.Breakers(now) {
		seen, is := because[b.Cluster]
		br := s.o.Desk.Breaker(b.Pool)
		if !is || br == nil || b.View.Kind != breaker.GRPC {
			continue
		}
		if !p.Literal && s.proven(now, &b.View, p.Window) {
			continue
		}
		br.PreTrip(now, seen)
	}
}

// lost is what a cluster's breakers were told of calls that broke.
type lost struct {
	told  int64 // Reading.Lost
	rest  int64 // of the latest, of ends that were not known yet
	since time.Time
}

// restKept is how long the end of a call may be behind Envoy's count of it.
const restKept = time.Second

// losses tells the breakers of pools how many calls broke since the last look
// (B6).
func (s *street) losses(now time.Time, readings *watch.Readings) {
	seen := make(map[string]lost, len(s.lost))
	for _, r := range readings.All() {
		l := s.lost[r.Cluster]
		switch n := r.Lost - l.told; {
		case n > 0:
			l.rest, l.since = n, now
		case now.Sub(l.since) >= restKept:
			l.rest = 0
		}
		l.told = r.Lost
		if l.rest > 0 {
			l.rest = s.o.Desk.Lost(now, r.Cluster, l.rest)
		}
		seen[r.Cluster] = l
	}
	s.lost = seen
}

// proven says that a breaker does not hear of a storm: its probes closed it, and
// since then no window has passed without a storm. So one that goes on, or comes
// back with the traffic, opens a breaker once; then its own ends decide.
func (s *street) proven(now time.Time, v *breaker.View, window time.Duration) bool {
	if v.State != breaker.Closed || v.Cause != breaker.ByProbes {
		delete(s.proved, v.Name)
		return false
	}
	last := v.Since
	if at, ok := s.proved[v.Name]; ok && at.After(last) {
		last = at
	}
	if now.Sub(last) >= window {
		delete(s.proved, v.Name)
		return false
	}
	s.proved[v.Name] = now
	return true
}
