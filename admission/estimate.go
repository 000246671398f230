package admission

import (
	"maps"
	"math"
	"sync"
	"sync/atomic"

	"github.com/weirproxy/weir/policy"
)

// Estimator predicts the tokens of a request per (model, API): prompt bytes
// by the learnt ratio, plus the learnt 95th percentile of output, capped by
// what the caller or the model allows. It starts from the policy's cold
// values and is not persisted. Safe for concurrent use: predicting takes no
// lock, learning locks one flow. The number of flows is that of the policy's
// models times its APIs.
type Estimator struct {
	flows atomic.Pointer[map[flowKey]*flow]
	mu    sync.Mutex // of writers of flows
}

type flowKey struct{ model, path string }

// Numbers of the learnt values.
const (
	warm      = 20     // samples before the learnt values are taken
	ratioStep = 0.05   // weight of one sample once warm
	halveAt   = 2048.0 // the histogram is halved here: it follows the last few thousand answers
	perOctave = 8      // buckets per doubling: the percentile is exact to 9 %
	buckets   = perOctave*20 + 1
	maxFlows  = 10000 // kept; policies that come and go do not add up
)

// flow is what was learnt of one (model, API).
type flow struct {
	ratio  atomic.Uint64 // bytes per token, as float64 bits; 0 = cold
	output atomic.Int64  // 95th percentile; 0 = cold

	mu    sync.Mutex
	ins   int // samples of the ratio
	outs  int // samples of the histogram
	mean  float64
	total float64
	hist  [buckets]float64
}

// NewEstimator makes a cold estimator.
func NewEstimator() *Estimator {
	e := &Estimator{}
	e.flows.Store(&map[flowKey]*flow{})
	return e
}

// Predict is the expected input and output of a request for a model whose
// answers are capped at maxOut (0 = the policy's cap).
func (e *Estimator) Predict(r *Request, maxOut int64) (input, output int64) {
	if r.Fixed > 0 {
		return r.Fixed, 0
	}
	if r.Prompt <= 0 {
		return apiCost(r.API), 0
	}
	c := &r.Policy.Estimate
	f := e.find(keyOf(r))
	input = int64(math.Ceil(float64(r.Prompt) / f.bytesPerToken(c)))
	if r.API != nil && r.API.Kind == policy.OpenAIEmbeddings {
		return max(input, 1), 0
	}
	limit := r.MaxOut
	if limit <= 0 {
		limit = maxOut
	}
	if limit <= 0 {
		limit = c.MaxOutput
	}
	output = c.Output
	if f != nil {
		if learnt := f.output.Load(); learnt > 0 {
			output = learnt
		}
	}
	if limit > 0 {
		output = min(output, limit)
	}
	return max(input, 1), max(output, 0)
}

// Learn takes the counts of one whole answer.
func (e *Estimator) Learn(r *Request, u *Usage) {
	if !u.Known || r.Fixed > 0 || r.Prompt <= 0 {
		return
	}
	f := e.find(keyOf(r))
	if f == nil {
		f = e.add(keyOf(r))
	}
	f.learn(float64(r.Prompt), u)
}

func keyOf(r *Request) flowKey {
	k := flowKey{model: r.Model}
	if r.API != nil {
		k.path = r.API.Path
	}
	return k
}

func apiCost(a *policy.API) int64 {
	if a == nil {
		return 1
	}
	return max(a.Cost, 1)
}

func (e *Estimator) find(k flowKey) *flow { return (*e.flows.Load())[k] }

func (e *Estimator) add(k flowKey) *flow {
	e.mu.Lock()
	defer e.mu.Unlock()
	old := *e.flows.Load()
	if f := old[k]; f != nil {
		return f
	}
	if len(old) >= maxFlows {
		return &flow{} // learns for nobody
	}
	next, f := maps.Clone(old), &flow{}
	next[k] = f
	e.flows.Store(&next)
	return f
}

// bytesPerToken is within the policy's bounds; a nil flow is cold.
func (f *flow) bytesPerToken(c *policy.Estimate) float64 {
	ratio := c.BytesPerToken
	if f != nil {
		if bits := f.ratio.Load(); bits != 0 {
			ratio = math.Float64frombits(bits)
		}
	}
	if c.MaxBytesPerToken > 0 {
		ratio = min(ratio, c.MaxBytesPerToken)
	}
	ratio = max(ratio, c.MinBytesPerToken)
	if !(ratio > 0) {
		return 1
	}
	return ratio
}

func (f *flow) learn(prompt float64, u *Usage) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if u.Input > 0 {
		f.ins++
		step := max(ratioStep, 1/float64(f.ins))
		f.mean += step * (prompt/float64(u.Input) - f.mean)
		if f.ins >= warm {
			f.ratio.Store(math.Float64bits(f.mean))
		}
	}
	if u.Output > 0 {
		f.outs++
		f.hist[bucket(u.Output)]++
		f.total++
		if f.total >= halveAt {
			f.halve()
		}
		if f.outs >= warm {
			f.output.Store(f.quantile(0.95))
		}
	}
}

func (f *flow) halve() {
	f.total = 0
	for i := range f.hist {
		f.hist[i] /= 2
		f.total += f.hist[i]
	}
}

// quantile is the upper edge of the bucket where the share q is reached.
func (f *flow) quantile(q float64) int64 {
	sum := 0.0
	for i := range f.hist {
		sum += f.hist[i]
		if sum >= q*f.total {
			return edge(i)
		}
	}
	return edge(buckets - 1)
}

// bucket i holds the counts in (edge(i-1), edge(i)].
func bucket(n int64) int {
	i := int(math.Ceil(math.Log2(float64(n)) * perOctave))
	return min(max(i, 0), buckets-1)
}

func edge(i int) int64 { return int64(math.Floor(math.Exp2(float64(i) / perOctave))) }
