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
	queueDepth    = desc("queue_depth", "Requests waiting, by class.", "class")
	queueRetry    = desc("queue_retry_depth", "Requests in the retry queue (P3).")
	queueLength   = desc("queue_length", "How many may wait now (Q1, Q4).")
	queueHeld     = desc("queue_held_bytes", "Bytes of request bodies that wait.")
	awaitedBodies = houseDesc("awaited_bodies", "Requests whose bodies are still to come.")
	awaitedBytes  = houseDesc("awaited_bytes", "Bytes that these may have: as announced, else server.maxBody.")
	queueTenants  = desc("queue_tenants", "Tenants with requests waiting or running.")
	drainRate     = desc("queue_drain_rate", "Seats freed per second, as measured for hints.")
	running       = desc("running", "Requests running, by class.", "class")
	seatsTotal    = desc("seats", "Seats of this replica, by currency.", "currency")
	seatsUsed     = desc("seats_used", "Seats in use, by currency.", "currency")
	seatsWanted   = desc("seats_wanted", "Seats by policy, or as many as suit the engine (Q9).")
	seatsLeast    = desc("seats_least", "Least seats, where they are adaptive (Q9).")
	seatsMost     = desc("seats_most", "Most seats, where they are adaptive (Q9).")
	seatsRaised   = desc("seats_raised", "Seats added while requests wait for an idle engine (Q9).")
	seatsAlarm    = desc("seats_alarm", "1 while requests wait though the engine is idle (Q9).")
	seatsAlarms   = desc("seats_alarms_total", "Times that requests began to wait for an idle engine.")
	seatsForced   = desc("seats_forced_total", "Seats taken back at maxHold.")
	beganLate     = desc("first_bytes_late_total", "Answers that began later than pools[].firstByte, or not: failures of the pool (B6).")
	answersLost   = desc("answers_lost_total", "Answers that their host broke off in the middle, by Envoy's count: failures of the pool (B6).")
	laneDepth     = desc("lane_depth", "Requests with priority that wait (P8).")
	laneSeats     = desc("lane_seats", "Seats guaranteed to the priority lane, by currency (P8).", "currency")
	laneUsed      = desc("lane_seats_used", "Seats that the priority lane holds, by currency.", "currency")
	lanePast      = desc("lane_past_breaker", "Requests that run, or wait, past the open breaker by the priority lane.")
	tierDepth     = desc("tier_depth", "Requests waiting, by tier (P9).", "tier")
	tierSeats     = desc("tier_seats", "Seats guaranteed to a tier, by currency (P9).", "tier", "currency")
	tierUsed      = desc("tier_seats_used", "Seats that a tier holds, by currency.", "tier", "currency")
	tierStreams   = desc("tier_streaming", "Seats of a tier that streaming requests hold (P6).", "tier")
	bookings      = desc("bookings", "Hints given: not yet due, or due and not yet claimed (Q5).", "class", "state")
	booked        = desc("bookings_ended_total", "Hints claimed by callers who came back, and lapsed ones.", "class", "result")
	expiries      = desc("expiries_total", "Waits that ended without a seat, by class.", "class")
	taken         = desc("degraded_taken_total", "Requests taken in from a higher precision.")
	demand        = desc("pool_demand", "Demand in seats: running + waiting + refused per second x mean seat time.")
	breakerState  = desc("breaker_state", "1 for the state that the breaker is in.", "kind", "state")
	breakerRatio  = desc("breaker_failure_ratio", "Failures in the window; 0 below minRequests.")
	pushbacks     = desc("pushbacks_total", "Callers of failed or refused requests who were told when to try again, or not to (B9).", "word")
	latency       = desc("pool_first_token_seconds", "Time to first token of late, over all models (V3).")
	firstToken    = desc("learnt_first_token_seconds", "Learnt time to the first token of a model, without the prompt's part (P4).", "model")
	promptToken   = desc("learnt_prompt_token_seconds", "Learnt time that each prompt token adds to it.", "model")
	outputToken   = desc("learnt_output_token_seconds", "Learnt time per output token of a model.", "model")
	pressure      = desc("gauge_pressure", "How full the pool is, 0..1 (Q8); neutral without telemetry.")
	gaugeAge      = desc("gauge_age_seconds", "Age of the newest sample that counts.")
	gaugeStale    = desc("gauge_stale", "1 when samples are stale and pressure decays to neutral (Q3).")
)

// Describe sends nothing: the set of pools follows the policy.
func (p *pools) Describe(chan<- *prometheus.Desc) {}

// Collect reads one picture of the desk.
func (p *pools) Collect(out chan<- prometheus.Metric) {
	s := p.snapshot(time.Now())
	out <- prometheus.MustNewConstMetric(awaitedBodies, prometheus.GaugeValue, float64(s.Awaited))
	out <- prometheus.MustNewConstMetric(awaitedBytes, prometheus.GaugeValue, float64(s.AwaitedBytes))
	for i := range s.Pools {
		collectPool(out, &s.Pools[i])
	}
}

// scrape sends the series of one pool.
type scrape struct {
	out  chan<- prometheus.Metric
	pool string
}

func (s *scrape) gauge(d *prometheus.Desc, v float64, labels ...string) {
	s.out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, append([]string{s.pool}, labels...)...)
}

func (s *scrape) count(d *prometheus.Desc, v uint64, labels ...string) {
	s.out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), append([]string{s.pool}, labels...)...)
}

func (s *scrape) flag(d *prometheus.Desc, on bool, labels ...string) {
	v := 0.
	if on {
		v = 1
	}
	s.gauge(d, v, labels...)
}

// seats sends both currencies.
func (s *scrape) seats(d *prometheus.Desc, v policy.Seats, labels ...string) {
	s.gauge(d, float64(v.Requests), append(labels, "requests")...)
	s.gauge(d, float64(v.Tokens), append(labels, "tokens")...)
}

func collectPool(out chan<- prometheus.Metric, p *admission.PoolStats) {
	s := &scrape{out, p.Name}
	s.line(p)
	s.shares(p)
	s.engine(p)
}

// line sends who waits and runs.
func (s *scrape) line(p *admission.PoolStats) {
	for c := range policy.Class(policy.NumClasses) {
		s.gauge(queueDepth, float64(p.Line.Waiting[c]), c.String())
		s.gauge(running, float64(p.Line.Running[c]), c.String())
		s.count(expiries, p.Expired[c], c.String())
		b := &p.Line.Bookings[c]
		s.gauge(bookings, float64(b.Outstanding), c.String(), "outstanding")
		s.gauge(bookings, float64(b.Due), c.String(), "due")
		s.count(booked, b.Claimed, c.String(), "claimed")
		s.count(booked, b.Lapsed, c.String(), "lapsed")
	}
	s.gauge(queueRetry, float64(p.Line.Retrying))
	s.gauge(queueLength, float64(p.Length))
	s.gauge(queueHeld, float64(p.Line.HeldBytes))
	s.gauge(queueTenants, float64(p.Line.Tenants))
	s.gauge(drainRate, p.Line.DrainRate)
	s.count(taken, p.Degraded)
	s.gauge(demand, p.Demand)
}

// shares sends how many seats there are, and whose they are.
func (s *scrape) shares(p *admission.PoolStats) {
	s.seats(seatsTotal, p.Line.SeatsTotal)
	s.seats(seatsUsed, p.Line.SeatsUsed)
	s.gauge(seatsWanted, float64(p.Wanted))
	if p.Most > 0 {
		s.gauge(seatsLeast, float64(p.Least))
		s.gauge(seatsMost, float64(p.Most))
	}
	s.gauge(seatsRaised, float64(p.Raised))
	s.flag(seatsAlarm, p.Alarm)
	s.count(seatsAlarms, p.Alarms)
	s.count(seatsForced, p.Overdue)
	s.count(beganLate, p.NoBegin)
	s.count(answersLost, p.Lost)
	s.gauge(laneDepth, float64(p.Priority.Waiting))
	s.seats(laneSeats, p.Priority.Seats)
	s.seats(laneUsed, p.Priority.Used)
	s.gauge(lanePast, float64(p.Lane))
	for i := range p.Tiers {
		t := &p.Tiers[i]
		s.gauge(tierDepth, float64(t.Waiting), t.Name)
		s.seats(tierSeats, t.Seats, t.Name)
		s.seats(tierUsed, t.Used, t.Name)
		s.gauge(tierStreams, float64(t.Streaming), t.Name)
	}
}

// engine sends what is known of what is behind the pool.
func (s *scrape) engine(p *admission.PoolStats) {
	for state := breaker.Closed; state <= breaker.HalfOpen; state++ {
		s.flag(breakerState, p.Breaker.State == state, p.Breaker.Kind.String(), state.String())
	}
	s.gauge(breakerRatio, p.Breaker.Ratio)
	s.count(pushbacks, p.Pushbacks.Waits, "wait")
	s.count(pushbacks, p.Pushbacks.Storms, "storm")
	s.count(pushbacks, p.Pushbacks.Deadlines, "deadline")
	if p.Latency > 0 {
		s.gauge(latency, p.Latency.Seconds())
	}
	for i := range p.Speeds {
		v := &p.Speeds[i]
		s.gauge(firstToken, v.FirstToken.Seconds(), v.Model)
		s.gauge(promptToken, v.PromptToken.Seconds(), v.Model)
		s.gauge(outputToken, v.OutputToken.Seconds(), v.Model)
	}
	s.gauge(pressure, p.Pressure)
	if p.Telemetry {
		s.gauge(gaugeAge, p.Age.Seconds())
		s.flag(gaugeStale, p.Stale)
	}
}
