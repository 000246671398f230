package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/policy"
)

// Pools registers the series that picture pools; they are read from the desk
// at scrape time, so a request pays nothing for them.
func (m *Metrics) Pools(snapshot func(time.Time) admission.Snapshot) {
	m.Registry.MustRegister(&pools{snapshot})
}

type pools struct {
	snapshot func(time.Time) admission.Snapshot
}

// desc makes a description of a series of pools.
func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("weir_"+name, help, append([]string{"pool"}, labels...), nil)
}

// The series of a pool, in the order of docs/metrics.md.
var (
	queueDepth   = desc("queue_depth", "Requests waiting, by class.", "class")
	queueRetry   = desc("queue_retry_depth", "Requests in the retry queue (P3).")
	queueLength  = desc("queue_length", "How many may wait now (Q1, Q4).")
	queueHeld    = desc("queue_held_bytes", "Bytes of request bodies that wait.")
	queueTenants = desc("queue_tenants", "Tenants with requests waiting or running.")
	drainRate    = desc("queue_drain_rate", "Seats freed per second, as measured for hints.")
	running      = desc("running", "Requests running, by class.", "class")
	seatsTotal   = desc("seats", "Seats of this replica, by currency.", "currency")
	seatsUsed    = desc("seats_used", "Seats in use, by currency.", "currency")
	seatsWanted  = desc("seats_wanted", "Seats by policy, or as many as suit the engine (Q9).")
	seatsRaised  = desc("seats_raised", "Seats added while requests wait for an idle engine (Q9).")
	seatsAlarm   = desc("seats_alarm", "1 while requests wait though the engine is idle (Q9).")
	seatsAlarms  = desc("seats_alarms_total", "Times that requests began to wait for an idle engine.")
	seatsForced  = desc("seats_forced_total", "Seats taken back at maxHold.")
	expiries     = desc("expiries_total", "Waits that ended without a seat, by class.", "class")
	taken        = desc("degraded_taken_total", "Requests taken in from a higher precision.")
	demand       = desc("pool_demand", "Demand in seats: running + waiting + refused per second x mean seat time.")
	breakerState = desc("breaker_state", "1 for the state that the breaker is in.", "state")
	breakerRatio = desc("breaker_failure_ratio", "Failures in the window; 0 below minRequests.")
	pressure     = desc("gauge_pressure", "How full the pool is, 0..1 (Q8); neutral without telemetry.")
	gaugeAge     = desc("gauge_age_seconds", "Age of the newest sample that counts.")
	gaugeStale   = desc("gauge_stale", "1 when samples are stale and pressure decays to neutral (Q3).")
)

// Describe sends nothing: the set of pools follows the policy.
func (p *pools) Describe(chan<- *prometheus.Desc) {}

// Collect reads one picture of the desk.
func (p *pools) Collect(out chan<- prometheus.Metric) {
	s := p.snapshot(time.Now())
	for i := range s.Pools {
		collectPool(out, &s.Pools[i])
	}
}

func collectPool(out chan<- prometheus.Metric, s *admission.PoolStats) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, append([]string{s.Name}, labels...)...)
	}
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), append([]string{s.Name}, labels...)...)
	}
	for c := range policy.Class(policy.NumClasses) {
		gauge(queueDepth, float64(s.Line.Waiting[c]), c.String())
		gauge(running, float64(s.Line.Running[c]), c.String())
		count(expiries, s.Expired[c], c.String())
	}
	gauge(queueRetry, float64(s.Line.Retrying))
	gauge(queueLength, float64(s.Length))
	gauge(queueHeld, float64(s.Line.HeldBytes))
	gauge(queueTenants, float64(s.Line.Tenants))
	gauge(drainRate, s.Line.DrainRate)
	gauge(seatsTotal, float64(s.Line.SeatsTotal.Requests), "requests")
	gauge(seatsUsed, float64(s.Line.SeatsUsed.Requests), "requests")
	gauge(seatsTotal, float64(s.Line.SeatsTotal.Tokens), "tokens")
	gauge(seatsUsed, float64(s.Line.SeatsUsed.Tokens), "tokens")
	gauge(seatsWanted, float64(s.Wanted))
	gauge(seatsRaised, float64(s.Raised))
	alarm := 0.
	if s.Alarm {
		alarm = 1
	}
	gauge(seatsAlarm, alarm)
	count(seatsAlarms, s.Alarms)
	count(seatsForced, s.Overdue)
	count(taken, s.Degraded)
	gauge(demand, s.Demand)
	for state := breaker.Closed; state <= breaker.HalfOpen; state++ {
		in := 0.
		if s.Breaker.State == state {
			in = 1
		}
		gauge(breakerState, in, state.String())
	}
	gauge(breakerRatio, s.Breaker.Ratio)
	gauge(pressure, s.Pressure)
	if s.Telemetry {
		gauge(gaugeAge, s.Age.Seconds())
		stale := 0.
		if s.Stale {
			stale = 1
		}
		gauge(gaugeStale, stale)
	}
}
