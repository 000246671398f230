// Package telemetry is what leaves the house as metrics, traces and logs (O1,
// O3): Prometheus series with bounded labels, OpenTelemetry spans through
// OTLP when the policy names a collector, JSON logs with trace ids.
//
// Invariants: observing a decision takes no lock shared by all requests and
// allocates nothing once a series exists; a label whose values callers choose
// (tenant) keeps at most policy Telemetry.Tenants of them, tenants named in
// the policy first, and the rest is "other", so totals stay right; a collector
// that hangs costs spans, never latency.
package telemetry

import (
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/policy"
)

// Metrics is the registry and every series that an event feeds. Series that
// picture a state (queue, seats, breaker, gauge) are read at scrape time; see
// Pools. Safe for concurrent use.
type Metrics struct {
	Registry *prometheus.Registry

	decisions  [numVariants]cells // by reason and class
	shadowed   cells              // intended reason in shadow
	decisionsV [numVariants]*prometheus.CounterVec
	shadowedV  *prometheus.CounterVec

	wait       [policy.NumClasses][2]prometheus.Observer // refused, admitted
	firstByte  [policy.NumClasses]prometheus.Observer
	seat       [policy.NumClasses]prometheus.Observer
	pace       [policy.NumClasses]prometheus.Observer
	ends       [policy.NumClasses][numVariants][numResults]prometheus.Counter
	degraded   [policy.NumClasses]prometheus.Counter
	unmetered  prometheus.Counter
	unreadable prometheus.Counter
	capped     prometheus.Counter

	tenants *tenants

	message   map[string]prometheus.Observer // by phase; fixed after New
	check     prometheus.Observer
	checks    *prometheus.CounterVec
	panics    *prometheus.CounterVec
	overrides *prometheus.CounterVec
	reloads   *prometheus.CounterVec
	reloadOK  prometheus.Gauge
	info      *prometheus.GaugeVec
	faults    *prometheus.CounterVec

	transitions *prometheus.CounterVec
	protection  *prometheus.CounterVec
	cascade     prometheus.Counter
}

const numResults = int(admission.ResultStage) + 1

// numVariants counts the ranks of policy.Variant, by which series are kept, and
// the 0 of none.
const numVariants = 4

// variants are by rank.
func variants() [numVariants]policy.Variant {
	return [numVariants]policy.Variant{"", policy.INT8, policy.FP16Dyn, policy.FP16}
}

// cells caches one counter per reason and class, so that the hot path pays an
// array look-up.
type cells [256][policy.NumClasses]atomic.Pointer[prometheus.Counter]

func (c *cells) inc(v *prometheus.CounterVec, r admission.Reason, class policy.Class) {
	if class >= policy.NumClasses {
		class = policy.Standard
	}
	cell := &c[r][class]
	p := cell.Load()
	if p == nil {
		counter := v.WithLabelValues(r.String(), class.String())
		p = &counter
		cell.Store(p)
	}
	(*p).Inc()
}

var (
	waitBuckets    = []float64{.001, .005, .01, .025, .05, .1, .2, .3, .5, .75, 1, 1.5, 2.5, 5, 10, 30}
	secondsBuckets = []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}
	paceBuckets    = []float64{.0025, .005, .01, .02, .03, .05, .075, .1, .15, .25, .5, 1, 2.5}
	ownBuckets     = []float64{.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .025, .1, .5}
)

// New makes an empty registry. tenantCap bounds the tenant label.
func New(tenantCap int, version string) *Metrics {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m := &Metrics{Registry: r}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		r.MustRegister(v)
		return v
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
		r.MustRegister(v)
		return v
	}
	decisions := counter("weir_decisions_total", "Decisions by reason and class, and the variant of the pool they are about.", "reason", "class", "variant")
	for i, v := range variants() {
		m.decisionsV[i] = decisions.MustCurryWith(prometheus.Labels{"variant": string(v)})
	}
	m.shadowedV = counter("weir_shadow_decisions_total", "What shadow mode would have decided, by reason and class.", "reason", "class")
	m.tenants = newTenants(tenantCap,
		counter("weir_tokens_charged_total", "Tokens charged at the pool's rate, by tenant (bounded, the rest is \"other\"), kind and variant that served.", "tenant", "kind", "variant"),
		counter("weir_tokens_used_total", "The same tokens before the rate.", "tenant", "kind", "variant"))
	m.checks = counter("weir_authz_checks_total", "ext_authz answers by code.", "code")
	m.panics = counter("weir_panics_total", "Panics recovered, by service. Each was answered as an error.", "service")
	m.overrides = counter("weir_override_rejected_total", "Route values from Envoy's configuration that were refused, by channel.", "channel")
	m.reloads = counter("weir_policy_reloads_total", "Policy reloads by result.", "result")
	m.faults = counter("weir_faults_total", "What does not fit and is nobody's request: protocol violations, Envoy configuration.", "kind")
	m.transitions = counter("weir_breaker_transitions_total", "Changes of breakers' states, and holds; tenants' have no pool.", "pool", "kind", "to", "cause")
	m.protection = counter("weir_protection_changes_total", "Numbers that clusters were told anew (B10), by what they are.", "key")
	ends := counter("weir_requests_ended_total", "Ends of admitted requests by class, variant that served and result.", "class", "variant", "result")
	degraded := counter("weir_degraded_total", "Requests that ran below their class's precision.", "class")
	wait := histogram("weir_wait_seconds", "Time in the waiting room.", waitBuckets, "class", "outcome")
	first := histogram("weir_first_byte_seconds", "Time from admission to the answer's headers; of a stream, to its first piece.", secondsBuckets, "class")
	seat := histogram("weir_seat_seconds", "Time a seat was held.", secondsBuckets, "class")
	pace := histogram("weir_output_token_seconds", "Time per output token of a stream, after the first.", paceBuckets, "class")
	own := histogram("weir_message_seconds", "weir's own time to answer a message of Envoy, holds left out.", ownBuckets, "phase")
	for c := range policy.Class(policy.NumClasses) {
		m.wait[c][0] = wait.WithLabelValues(c.String(), "refused")
		m.wait[c][1] = wait.WithLabelValues(c.String(), "admitted")
		m.firstByte[c] = first.WithLabelValues(c.String())
		m.seat[c] = seat.WithLabelValues(c.String())
		m.pace[c] = pace.WithLabelValues(c.String())
		m.degraded[c] = degraded.WithLabelValues(c.String())
		for rank, v := range variants() {
			for i := range numResults {
				m.ends[c][rank][i] = ends.WithLabelValues(c.String(), string(v), admission.Result(i).String())
			}
		}
	}
	m.message = map[string]prometheus.Observer{}
	for _, name := range []string{"request_headers", "request_body", "request_trailers", "response_headers", "response_body", "response_trailers"} {
		m.message[name] = own.WithLabelValues(name)
	}
	m.check = own.WithLabelValues("authz_check")
	m.unmetered = prometheus.NewCounter(prometheus.CounterOpts{Name: "weir_usage_missing_total", Help: "Answers whose usage had to be estimated."})
	m.unreadable = prometheus.NewCounter(prometheus.CounterOpts{Name: "weir_usage_unreadable_total", Help: "Answers in a coding or form that is not read; charged by their bytes."})
	m.capped = prometheus.NewCounter(prometheus.CounterOpts{Name: "weir_usage_implausible_total", Help: "Answers whose upstream counted far more output than the caller's cap allows (charged at the cap), or more than the model can have used (charged by the estimate)."})
	m.cascade = prometheus.NewCounter(prometheus.CounterOpts{Name: "weir_breaker_cascade_shed_total", Help: "Requests shed because other replicas say that their pool is open (B3)."})
	m.reloadOK = prometheus.NewGauge(prometheus.GaugeOpts{Name: "weir_policy_last_reload_success", Help: "1 when the policy file on disk is in force, 0 when it was refused and the last good one holds."})
	m.info = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "weir_policy_info", Help: "The policy in force."}, []string{"hash", "mode"})
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "weir_build_info", Help: "The running version."}, []string{"version"})
	build.WithLabelValues(version).Set(1)
	r.MustRegister(m.unmetered, m.unreadable, m.capped, m.cascade, m.reloadOK, m.info, build)
	return m
}

// Decided implements admission.Observer.
func (m *Metrics) Decided(r *admission.Request, d *admission.Decision, _ time.Time) {
	class, rank := bounded(r.Class), d.Variant.Rank()
	m.decisions[rank].inc(m.decisionsV[rank], d.Reason, class)
	if d.Shadow {
		m.shadowed.inc(m.shadowedV, d.Intended, class)
	}
	m.elsewhere(d)
	admitted := d.Action == admission.Admit || d.Action == admission.Degrade
	outcome := 0
	if admitted {
		outcome = 1
	}
	m.wait[class][outcome].Observe(d.Waited.Seconds())
	if d.Degraded {
		m.degraded[class].Inc()
	}
}

// Ended implements admission.Observer.
func (m *Metrics) Ended(r *admission.Request, d *admission.Decision, e *admission.End, charged int64, seat time.Duration, _ time.Time) {
	class := bounded(r.Class)
	if int(e.Result) < numResults {
		m.ends[class][d.Variant.Rank()][e.Result].Inc()
	}
	m.seat[class].Observe(seat.Seconds())
	if e.FirstByte > 0 {
		m.firstByte[class].Observe(e.FirstByte.Seconds())
		if n := e.Usage.Output - 1; r.Stream && n > 0 && seat > e.FirstByte {
			m.pace[class].Observe((seat - e.FirstByte).Seconds() / float64(n))
		}
	}
	if !e.Usage.Known && !e.Usage.Refund && r.Fixed == 0 {
		m.unmetered.Inc()
	}
	if e.Usage.Unreadable {
		m.unreadable.Inc()
	}
	if e.Usage.Capped || e.Usage.Implausible {
		m.capped.Inc()
	}
	if (charged > 0 || e.Used > 0) && r.Identity != nil {
		kind := "estimated"
		if e.Usage.Known {
			kind = "metered"
		}
		b := m.tenants.bill(tenantKind{r.Identity.Tenant, kind, d.Variant.Rank()})
		b.charged.Add(float64(max(charged, 0)))
		b.used.Add(float64(max(e.Used, 0)))
	}
}

func bounded(c policy.Class) policy.Class { return min(c, policy.Batch) }

// Message observes how long weir itself took for a message of Envoy, by its
// phase; an unknown phase is left out.
func (m *Metrics) Message(phase string, d time.Duration) {
	if o := m.message[phase]; o != nil {
		o.Observe(d.Seconds())
	}
}

// Handler serves the registry, with exemplars where the scraper asks.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.Registry, promhttp.HandlerOpts{EnableOpenMetrics: true})
}

// Check observes one ext_authz answer by its code ("ok", "token_expired").
func (m *Metrics) Check(code string, d time.Duration) {
	m.check.Observe(d.Seconds())
	m.checks.WithLabelValues(code).Inc()
}

// Panic counts a recovered panic of a service ("extproc", "authz").
func (m *Metrics) Panic(service string) { m.panics.WithLabelValues(service).Inc() }

// OverrideRejected counts a refused route value by its channel.
func (m *Metrics) OverrideRejected(channel string) { m.overrides.WithLabelValues(channel).Inc() }

// Reloaded counts a policy reload; ok false means that the last good policy
// holds.
func (m *Metrics) Reloaded(p *policy.Policy, ok bool) {
	if !ok {
		m.reloads.WithLabelValues("refused").Inc()
		m.reloadOK.Set(0)
		return
	}
	m.reloads.WithLabelValues("applied").Inc()
	m.Policy(p)
}

// Policy states which policy is in force and names its tenants, whose series
// are kept before others.
func (m *Metrics) Policy(p *policy.Policy) {
	m.reloadOK.Set(1)
	m.info.Reset()
	m.info.WithLabelValues(p.Hash, p.Mode.String()).Set(1)
	m.tenants.limit(p.Telemetry.Tenants)
	for _, t := range p.Tenants {
		m.tenants.pin(t.Match.Tenant)
	}
}

// Fault counts what does not fit, by kind ("protocol", "config").
func (m *Metrics) Fault(kind string) { m.faults.WithLabelValues(kind).Inc() }
