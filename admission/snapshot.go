package admission

import (
	"time"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/queue"
)

// Snapshot is a picture of the desk for metrics and /debug/queue.
type Snapshot struct {
	At        time.Time
	Draining  bool
	Tickets   int   // running
	HeldBytes int64 // of bodies waiting, over all lines (maxHeldBytes)

	Awaited      int64 // requests whose bodies are still to come
	AwaitedBytes int64 // what these may have (maxAwaitedBytes)

	Pools  []PoolStats
	Shadow []PoolStats // the shadow core's; nil where nothing is decided in shadow
}

// PoolStats is a picture of one pool.
type PoolStats struct {
	Name    string
	Variant policy.Variant
	Cluster string
	Line    queue.Stats
	Over    int // running without a seat (pass, shadow)
	Lane    int // run, or wait, past the open breaker by the priority lane (P8)
	Breaker breaker.View

	Telemetry bool          // the pool has a gauge
	Pressure  float64       // 0..1; neutral without telemetry
	Age       time.Duration // of the newest sample that counts
	Stale     bool
	Capacity  float64 // share of its GPUs that are neither faulty nor lost; its seats follow within a second
	Length    int     // Q1 or Q4 now, by the base policy

	// Demand is in seats: running + waiting + refused per second (10 s mean)
	// times the mean seat time. Refusals count that a larger pool would have
	// served: those of the line, not of quota or breaker.
	Demand           float64
	RefusedPerSecond float64
	SeatTime         time.Duration // mean; 0 before the first end

	Latency time.Duration // recent time to first token; 0 = not known
	Speeds  []Speed       // by model, those that are warm (P4)

	Wanted int64  // seats by policy, or as many as suit the engine (Q9); fewer where Capacity is
	Least  int64  // bounds of these, of this replica, as Capacity leaves them; 0 = fixed by policy
	Most   int64  //
	Late   bool   // adaptive seats stay: first tokens come too late for more
	Raised int64  // added to Wanted by the watchdog
	Alarm  bool   // requests wait though the engine is idle
	Alarms uint64 // times that this began

	Priority queue.Part // the priority lane's seats (P8)
	Tiers    []Tier     // who shares the rest (P9)

	Pushbacks Pushbacks // what callers were told of trying again (B9)
	Storm     bool      // of connections at its cluster, as Desk.Storm was told

	Ended    uint64                    // seats given back since the pool is known
	Degraded uint64                    // taken in from a higher precision at expiry
	Expired  [policy.NumClasses]uint64 // waits that ended without a seat here
	Overdue  uint64                    // seats taken back at maxHold
	NoBegin  uint64                    // answers that began later than firstByte, or not (B6)
	Lost     uint64                    // answers that their host broke off, by Envoy's count (B6)
}

// Tier is a picture of a tier's share of a pool's seats. Where no tier has one,
// there is one without a name, which has all.
type Tier struct {
	Name string
	queue.Part
}

// Snapshot looks at every pool in the policy's order.
func (d *Desk) Snapshot(now time.Time) Snapshot {
	s := Snapshot{
		At:        now,
		Draining:  d.draining.Load(),
		Tickets:   int(d.tickets.count.Load()),
		HeldBytes: d.core.held.Load(),

		Awaited:      d.presence.bodies.Load(),
		AwaitedBytes: d.presence.bytes.Load(),

		Pools: d.core.Stats(now),
	}
	if d.mirror.Load() {
		s.Shadow = d.shadow.Stats(now)
	}
	return s
}

// Stats looks at every pool in the policy's order.
func (c *Core) Stats(now time.Time) []PoolStats {
	f := c.floor.Load()
	out := make([]PoolStats, 0, len(f.order))
	for _, l := range f.order {
		s := l.stats(now)
		c.readGauge(now, l, f.policy, &s)
		if n := len(s.Tiers); n > 1 && n != len(f.policy.Tiers) {
			s.Tiers = nil // the policy is changing just now
		} else if n > 1 {
			for i := range s.Tiers {
				s.Tiers[i].Name = f.policy.Tiers[i].Name
			}
		}
		out = append(out, s)
	}
	return out
}

func (l *pool) stats(now time.Time) PoolStats {
	spec := l.spec.Load()
	s := PoolStats{Name: spec.Name, Variant: spec.Variant, Cluster: spec.Cluster, Breaker: l.breaker.View(now)}
	s.Pushbacks, s.Storm = l.retries.counts(), l.retries.storm.Load()
	s.Lane, s.Latency, s.Speeds = int(l.laned.Load()), l.speeds.recent(now), l.speeds.list()
	now = l.lock(now)
	defer l.unlock()
	s.Line = l.line.Stats(now)
	for p := l.over.head; p != nil; p = p.next {
		s.Over++
	}
	m := &l.meter
	s.RefusedPerSecond = m.refusedPerSecond(now.Sub(l.base))
	s.SeatTime = time.Duration(m.seatTime * float64(time.Second))
	s.Demand = float64(l.running.Load()+l.waiting.Load()) + s.RefusedPerSecond*m.seatTime
	l.tuned.show(&s)
	var groups []queue.Part
	s.Priority, groups = l.line.Parts()
	for _, g := range groups {
		s.Tiers = append(s.Tiers, Tier{Part: g})
	}
	s.Ended, s.Degraded, s.Expired, s.Overdue = m.ended, m.degraded, m.expired, m.overdue
	s.NoBegin, s.Lost = m.late, m.lost
	return s
}

func (c *Core) readGauge(now time.Time, l *pool, p *policy.Policy, s *PoolStats) {
	s.Pressure, s.Capacity = float64(p.Gauge.Neutral), 1
	s.Length = c.length(now, l, &p.Queue)
	if r := c.reading(l.name); r != nil {
		s.Telemetry = true
		s.Pressure, s.Capacity = r.Pressure(now), r.Capacity(now)
		s.Age, s.Stale = r.Age(now)
	}
}
