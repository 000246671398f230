package main

import (
	"time"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/internal/etcdbus"
	"github.com/weirproxy/weir/internal/redisbus"
	"github.com/weirproxy/weir/internal/telemetry"
)

// stats are the figures for metrics.
func (s *street) stats() telemetry.StreetStats {
	now := time.Now()
	out := telemetry.StreetStats{Pools: s.o.Desk.Breakers(now)}
	out.Tenants.Known = s.o.Desk.Tenants().Known()
	for _, v := range s.o.Desk.Tenants().Troubled(now) {
		switch v.State {
		case breaker.Soft:
			out.Tenants.Soft++
		case breaker.Hard:
			out.Tenants.Hard++
		case breaker.HalfOpen:
			out.Tenants.HalfOpen++
		}
		if v.Held {
			out.Tenants.Held++
		}
	}
	if s.speaker != nil {
		up, age, st := s.speaker.state(now)
		out.Bus = &telemetry.BusStats{
			Up: up, Age: age, Said: st.said, Heard: st.heard, Failed: st.failed, Losses: st.losses, Garbage: garbage(s.o.Bus) + s.o.Council.Refused(),
		}
	}
	s.watchStats(now, &out)
	s.xdsStats(&out)
	out.Lookups, out.SourcesTroubled = s.points.failures()
	return out
}

// garbage is what a bus read that was no word, as far as it tells.
func garbage(b breaker.Bus) uint64 {
	switch b := b.(type) {
	case *redisbus.Bus:
		s := b.Stats()
		return s.Garbage + s.Versions
	case *etcdbus.Bus:
		s := b.Stats()
		return s.Garbage + s.Versions
	}
	return 0
}

func (s *street) watchStats(now time.Time, out *telemetry.StreetStats) {
	w := s.watch.Stats()
	out.Watch.Garbage = map[string]uint64{}
	for _, e := range w.Envoys {
		out.Watch.Envoys++
		if e.Silent {
			out.Watch.Silent++
		}
		out.Watch.Age = max(out.Watch.Age, now.Sub(e.Heard))
	}
	for _, f := range w.Sources {
		for kind, n := range f.Garbage {
			out.Watch.Garbage[kind] += n
		}
		for _, t := range f.Targets {
			for _, n := range t.Missed {
				out.Watch.Missed += n
			}
		}
	}
	for _, r := range s.watch.Readings().All() {
		out.Clusters = append(out.Clusters, telemetry.ClusterStats{
			Cluster: r.Cluster, Connections: r.Connections, Normal: r.Normal, GoAways: r.GoAwaysPerSecond, Resets: r.ResetsPerSecond,
			Failures: r.FailuresPerSecond, Retries: r.RetriesPerSecond, Storm: r.Storm, Protect: r.Protect, Calm: r.Calm,
		})
	}
}

func (s *street) xdsStats(out *telemetry.StreetStats) {
	if s.xds == nil {
		return
	}
	x := s.xds.Stats()
	v := &telemetry.XDSStats{
		Nodes: x.Nodes, Streams: x.Streams, Unsupported: len(x.Unsupported), Unknown: len(x.Unknown), Inherited: len(x.Inherited),
		Pushes: x.Pushes, Withdrawn: x.Withdrawn, Sent: x.Sent, Acked: x.Acked, Nacked: x.Nacked, Rejected: x.Refused,
		StateErrors: x.Disk.Errors, StateRefused: x.Disk.Refused != "",
	}
	for _, n := range s.xds.Nodes() {
		for _, t := range n.Types {
			v.Lag = max(v.Lag, t.Lag)
		}
	}
	out.XDS = v
}
