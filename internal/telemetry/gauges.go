package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/gpu"
)

// PoolGauge is the reading of one pool's telemetry.
type PoolGauge struct {
	Pool    string
	Reading *gpu.Reading
}

// Gauges registers the series of pools with telemetry: what their engines,
// GPUs and nodes say, and how well their sources are (O1, resources). readings
// is asked at scrape time.
func (m *Metrics) Gauges(readings func() []PoolGauge) { m.Registry.MustRegister(&gauges{readings}) }

type gauges struct{ readings func() []PoolGauge }

// The series of a pool's telemetry, in the order of docs/metrics.md.
var (
	gaugeKV       = desc("gauge_kv_use", "KV-cache use of the fullest engine, 0..1.")
	gaugeWaiting  = desc("gauge_engine_waiting", "Requests waiting in the engines.")
	gaugeRunning  = desc("gauge_engine_running", "Requests running in the engines.")
	gaugePart     = desc("gauge_part", "A part of the pressure: smoothed, as a share of its target, aged (Q2, Q3, Q8).", "source", "signal")
	gaugeCapacity = desc("gauge_capacity", "Share of the GPUs that are neither faulty nor lost.")
	gaugeCards    = desc("gauge_cards", "GPUs and MIG instances, by health.", "health")
	gaugeHidden   = desc("gauge_cards_hidden", "GPUs and MIG instances without series of their own: too many, or their names clash.")
	gaugePlaces   = desc("gauge_endpoints", "Model endpoints, by what their GPUs say of them.", "health")
	gaugeLoad     = desc("gauge_node_load", "CPU load of the model nodes, 0..1 (T4).")

	sourceSamples  = desc("gauge_samples_total", "Samples of a telemetry source.", "source")
	sourceMissed   = desc("gauge_missed_total", "Samples that a telemetry source did not give.", "source")
	sourceDropped  = desc("gauge_dropped_total", "Readings dropped as sentinel, blank, not a number or out of range.", "source")
	sourceRepeated = desc("gauge_repeated_total", "Samples ignored because they were not newer than the one before.", "source")
	sourceFaults   = desc("gauge_faults_total", "Looks and readings left out, by kind; absent until it happened.", "source", "kind")
	sourceAge      = desc("gauge_source_age_seconds", "Age of the last sample of a source.", "source")
	sourceSuspect  = desc("gauge_suspect", "1 while a source is not believed as long as another one speaks.", "source")
)

// Describe sends nothing: sources and cards follow the policy and the nodes.
func (g *gauges) Describe(chan<- *prometheus.Desc) {}

// Collect reads each pool's picture once.
func (g *gauges) Collect(out chan<- prometheus.Metric) {
	now, readings := time.Now(), g.readings()
	cards, counts := make([][]gpu.CardState, len(readings)), make([]int, len(readings))
	for i, p := range readings {
		cards[i] = p.Reading.Cards()
		counts[i] = len(cards[i])
	}
	most := share(counts)
	for i, p := range readings {
		s := &scrape{out, p.Pool}
		s.loads(p.Reading, now)
		for k := range p.Reading.Sources {
			s.source(&p.Reading.Sources[k], now)
		}
		s.cards(p.Reading, cards[i], most, now)
	}
}

// value sends what is known.
func (s *scrape) value(d *prometheus.Desc, v gpu.Value, labels ...string) {
	if v.OK {
		s.gauge(d, v.V, labels...)
	}
}

// loads sends how full the pool is, in parts.
func (s *scrape) loads(r *gpu.Reading, now time.Time) {
	e := r.Engine(now)
	s.value(gaugeKV, e.KV)
	s.value(gaugeWaiting, e.Waiting)
	s.value(gaugeRunning, e.Running)
	s.value(gaugeLoad, r.Load(now))
	s.gauge(gaugeCapacity, r.Capacity(now))
	for _, p := range r.PartsAt(now) {
		s.gauge(gaugePart, p.Value, p.Source, p.Signal)
	}
	well, ill := 0, 0
	for _, e := range r.Endpoints(now) {
		if e.Healthy {
			well++
		} else {
			ill++
		}
	}
	if well+ill > 0 {
		s.gauge(gaugePlaces, float64(well), "healthy")
		s.gauge(gaugePlaces, float64(ill), "unhealthy")
	}
}

// source sends how well a source is.
func (s *scrape) source(src *gpu.SourceState, now time.Time) {
	s.count(sourceSamples, src.Samples, src.Name)
	s.count(sourceMissed, src.Missed, src.Name)
	s.count(sourceDropped, src.Dropped, src.Name)
	s.count(sourceRepeated, src.Repeated, src.Name)
	for f := range gpu.NumFaults {
		if n := src.Faults[f]; n > 0 {
			s.count(sourceFaults, n, src.Name, f.String())
		}
	}
	if !src.At.IsZero() {
		s.gauge(sourceAge, now.Sub(src.At).Seconds(), src.Name)
	}
	s.flag(sourceSuspect, src.Suspect != "", src.Name)
}
