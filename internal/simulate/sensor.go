package simulate

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/policy"
)

// sensor is weir's view of a machine: sources that look each at its period,
// and the pool's gauge, which sees what they saw a delay later.
type sensor struct {
	gauge  *gpu.Gauge
	rules  policy.Gauge
	infos  []gpu.SourceInfo
	last   []gpu.Sample // what each source said last
	busy   []float64    // each source's reading of the machine's work at its last look
	at     []time.Duration
	gen    uint64       // of its looks
	under  []gpu.Sample // under way to weir, in order
	silent bool
	frozen bool
}

// defaultEvery is the period of the engine source that stands in where the
// policy names no source.
const defaultEvery = time.Second

var errSilent = errors.New("no answer")

// watch gives the machine the sources that a policy names for its pool. A
// gauge whose rules and sources stay the same stays.
func (m *machine) watch(p *policy.Policy, pool *policy.Pool) {
	s := &m.sensor
	infos := m.sources(pool)
	if s.gauge != nil && s.rules == p.Gauge && slices.Equal(s.infos, infos) {
		return
	}
	s.gauge, s.rules, s.infos = gpu.NewGauge(p.Gauge, infos, m.w.clock()), p.Gauge, infos
	s.last, s.busy, s.at = make([]gpu.Sample, len(infos)), make([]float64, len(infos)), make([]time.Duration, len(infos))
	s.under = nil
	s.gen++
	m.note()
	for j := range infos {
		s.busy[j], s.at[j] = m.work(), m.w.now
		m.w.agenda.push(event{at: m.w.now, kind: looks, i: m.index, j: int32(j), gen: s.gen})
	}
}

func (m *machine) sources(pool *policy.Pool) (infos []gpu.SourceInfo) {
	set := m.spec.Sensor.Every
	for i, t := range pool.Telemetry {
		infos = append(infos, gpu.SourceInfo{Name: t.Kind + "-" + string(rune('a'+i)), Engine: t.Kind == "vllm", Every: cmp.Or(set, t.Every, gpu.DefaultEvery)})
	}
	if infos == nil {
		infos = []gpu.SourceInfo{{Name: "engine", Engine: true, Every: cmp.Or(set, defaultEvery)}}
	}
	return infos
}

// look is one look of a source. What it sees reaches the gauge after the
// sensor's delay; the sample bears the instant at which it came.
func (m *machine) look(j int32) {
	s, w := &m.sensor, m.w
	info := &s.infos[j]
	if !w.over() {
		w.agenda.push(event{at: w.now + info.Every, kind: looks, i: m.index, j: j, gen: s.gen})
	}
	if s.silent || m.down {
		s.gauge.Miss(info.Name, w.clock(), errSilent)
		return
	}
	if s.frozen && !s.last[j].At.IsZero() {
		s.gauge.Observe(s.last[j])
		return
	}
	sample := m.sample(j)
	sample.Source, sample.At = info.Name, w.clock().Add(m.spec.Sensor.Delay)
	s.last[j] = sample
	if m.spec.Sensor.Delay <= 0 {
		s.gauge.Observe(sample)
		return
	}
	s.under = append(s.under, sample)
	w.agenda.push(event{at: w.now + m.spec.Sensor.Delay, kind: sees, i: m.index, gen: s.gen})
}

// see takes the sample that has reached weir.
func (s *sensor) see() {
	s.gauge.Observe(s.under[0])
	s.under = s.under[1:]
}

// sample is what a source sees now.
func (m *machine) sample(j int32) gpu.Sample {
	if s := &m.sensor; !s.infos[j].Engine {
		m.note()
		before, since := s.busy[j], s.at[j]
		s.busy[j], s.at[j] = m.work(), m.w.now
		if m.w.now == since {
			return gpu.Sample{Util: gpu.Some(0), GPUs: 1}
		}
		return gpu.Sample{Util: gpu.Some(min(max((s.busy[j]-before)/(m.w.now-since).Seconds(), 0), 1)), GPUs: 1}
	}
	if m.batch == nil {
		return gpu.Sample{Waiting: gpu.Some(float64(m.waiting)), Running: gpu.Some(float64(m.busy))}
	}
	l := m.batch.Load()
	return gpu.Sample{
		Waiting: gpu.Some(float64(l.Waiting)),
		Running: gpu.Some(float64(l.Running)),
		KV:      gpu.Some(float64(l.KVUsed) / float64(l.KVTokens)),
	}
}

// work is what a GPU's utilisation is the growth of, in seconds: time spent in
// steps, or the places' mean time of work.
func (m *machine) work() float64 {
	if m.batch != nil {
		return m.spent.Seconds()
	}
	return m.ran / float64(max(m.places, 1))
}
