package admission

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// speeds is how fast a pool runs (P4, V3): per model the time to the first
// token, as a constant and a part per prompt token, and the time per output
// token. The sum is a request's run time. It is learnt from whole answers, as
// exponential means and a least-squares line of the same memory, starts cold
// (nothing is predicted before so many ends as warm says), and is not
// persisted. Safe for concurrent use: predicting takes no lock, learning
// locks the pool's speeds.
type speeds struct {
	models atomic.Pointer[map[string]*speed]

	latency atomic.Int64 // recent time to first token, over all models; 0 = none yet
	heard   atomic.Int64 // when the last was learnt, Unix nanoseconds

	mu    sync.Mutex // of learning
	first mean       // behind latency
}

// Numbers of the learnt speeds.
const (
	speedStep  = 0.05             // weight of one end once warm
	maxSpeeds  = 1000             // models kept; policies that come and go do not add up
	maxRun     = 10 * time.Minute // the longest time that is learnt or predicted
	latencyFor = 30 * time.Second // a latency that nobody confirms for so long is forgotten
)

// speed is what was learnt of one model.
type speed struct {
	base, prompt, output atomic.Uint64 // seconds, per token the last two, as float64 bits
	warm                 atomic.Bool

	ends  int
	first trend // seconds to the first token, over prompt tokens
	token mean  // seconds per output token
}

// Speed is what a pool has learnt of a model; the zero value is cold.
type Speed struct {
	Model       string
	FirstToken  time.Duration // without the prompt's part
	PromptToken time.Duration // added to FirstToken by each token of prompt
	OutputToken time.Duration
}

func newSpeeds() *speeds {
	s := &speeds{}
	s.models.Store(&map[string]*speed{})
	return s
}

// predict is the expected run time; false while the model is cold here.
func (s *speeds) predict(model string, input, output int64) (time.Duration, bool) {
	m := (*s.models.Load())[model]
	if m == nil || !m.warm.Load() {
		return 0, false
	}
	run := load(&m.base) + load(&m.prompt)*float64(input) + load(&m.output)*float64(output)
	return seconds(run), true
}

// recent is the pool's time to first token of late, over all models; 0 where
// nothing was heard of it for latencyFor: a pool that was avoided for its
// latency is tried again.
func (s *speeds) recent(now time.Time) time.Duration {
	if now.UnixNano()-s.heard.Load() > int64(latencyFor) {
		return 0
	}
	return time.Duration(s.latency.Load())
}

// learn takes a whole answer. first is its time to first byte, which tells the
// time to the first token of a stream alone (0 = not known): an answer that
// does not stream begins when it is complete, so with no output its total is
// that time, and with some the rest is the output's.
func (s *speeds) learn(now time.Time, model string, stream bool, first, total time.Duration, u *Usage) {
	first, total = min(max(first, 0), maxRun), min(max(total, 0), maxRun)
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.find(model)
	if m == nil {
		return
	}
	m.ends++
	input := float64(max(u.Input, 0))
	begin := m.first.at(input)
	if stream && first > 0 || u.Output <= 0 {
		if u.Output <= 0 {
			first = total
		}
		begin = first.Seconds()
		m.first.add(input, begin)
		s.first.add(begin)
		s.latency.Store(max(int64(seconds(s.first.value)), 1))
		s.heard.Store(now.UnixNano())
	}
	if u.Output > 0 {
		m.token.add(max(total.Seconds()-begin, 0) / float64(u.Output))
	}
	base, prompt := m.first.line()
	store(&m.base, base)
	store(&m.prompt, prompt)
	store(&m.output, m.token.value)
	m.warm.Store(m.ends >= warm)
}

// find gives the model's speed, made on first use; nil when there are too
// many. The lock is held.
func (s *speeds) find(model string) *speed {
	old := *s.models.Load()
	if m := old[model]; m != nil || len(old) >= maxSpeeds {
		return m
	}
	next, m := maps.Clone(old), &speed{}
	next[model] = m
	s.models.Store(&next)
	return m
}

// list is what was learnt of the models that are warm, by name.
func (s *speeds) list() []Speed {
	var out []Speed
	for name, m := range *s.models.Load() {
		if m.warm.Load() {
			out = append(out, Speed{name, seconds(load(&m.base)), seconds(load(&m.prompt)), seconds(load(&m.output))})
		}
	}
	slices.SortFunc(out, func(a, b Speed) int { return cmp.Compare(a.Model, b.Model) })
	return out
}

// mean is an exponential mean; it begins as the mean of what there is.
type mean struct {
	n     int
	value float64
}

func (m *mean) add(v float64) {
	m.n++
	m.value += max(speedStep, 1/float64(m.n)) * (v - m.value)
}

// trend is a line through samples (x, y), both not negative, by least squares
// with exponentially falling weights.
type trend struct {
	n            int
	x, y, xx, xy float64 // means, variance of x, covariance
}

func (t *trend) add(x, y float64) {
	t.n++
	step := max(speedStep, 1/float64(t.n))
	dx, dy := x-t.x, y-t.y
	t.x += step * dx
	t.y += step * dy
	t.xx = (1 - step) * (t.xx + step*dx*dx)
	t.xy = (1 - step) * (t.xy + step*dx*dy)
}

// line is base + slope*x; neither is negative, so the slope is at most that
// of the line through the origin.
func (t *trend) line() (base, slope float64) {
	if t.xx > 0 && t.xy > 0 {
		slope = min(t.xy/t.xx, t.y/t.x)
	}
	return max(t.y-slope*t.x, 0), slope
}

func (t *trend) at(x float64) float64 {
	base, slope := t.line()
	return base + slope*x
}

func load(a *atomic.Uint64) float64 { return math.Float64frombits(a.Load()) }

func store(a *atomic.Uint64, v float64) { a.Store(math.Float64bits(v)) }

// seconds is a time of so many seconds, at most maxRun.
func seconds(s float64) time.Duration {
	return time.Duration(min(s, maxRun.Seconds()) * float64(time.Second))
}
