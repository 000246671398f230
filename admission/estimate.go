package admission

import (
	"math"
	"sync/atomic"

	"github.com/weirproxy/weir/policy"
)

// Estimator predicts the tokens of a request (T8):
//
//	input  = prompts x overhead + text bytes x tokens per byte + token ids + media
//	output = choices x min(95th percentile of one answer, cap)
//
// Overhead, tokens per byte and the percentile are learnt per tenant and
// model from whole answers. Until a tenant has enough of its own, those of the
// model count: the medians of its tenants, each with one vote; and until the
// model has enough tenants, the policy's cold values. Nothing is persisted.
// Safe for concurrent use; tenants are spread over shards, each with a lock
// of its own.
type Estimator struct {
	shards [estimateShards]shard
	models models
}

// Numbers of the learnt values.
const (
	warm           = 20      // answers before a tenant's own values are taken
	estimateShards = 16      // each with a lock
	maxTokens      = 1 << 48 // the largest prediction: sums and products of it do not overflow
	mediaTokens    = 1000    // an image, a sound, a video, a file
)

// learnt is what a tenant's answers of a model taught. Readers take no lock.
type learnt struct {
	overhead atomic.Uint64 // tokens per prompt, as float64 bits
	perByte  atomic.Uint64 // tokens, as float64 bits; 0 = cold
	output   atomic.Int64  // 95th percentile of one answer; 0 = cold
}

// NewEstimator makes a cold estimator.
func NewEstimator() *Estimator {
	e := &Estimator{}
	e.models.open()
	return e
}

// Predict is the expected input and output of a request for a model whose
// answers are capped at maxOut each (0 = the policy's cap).
func (e *Estimator) Predict(r *Request, maxOut int64) (input, output int64) {
	if r.Fixed > 0 {
		return min(r.Fixed, maxTokens), 0
	}
	c := &r.Policy.Estimate
	own, model := e.find(r), e.models.find(r.Model)
	text := overheadOf(own, model)*float64(r.prompts()) + perByteOf(c, own, model)*float64(max(r.Prompt, 0))
	input = count(math.Ceil(text-fuzz) + float64(r.exact()))
	input = max(input, 1)
	if r.API != nil && r.API.Kind == policy.OpenAIEmbeddings {
		return input, 0
	}
	return input, r.output(outputOf(c, own, model), maxOut)
}

// fuzz is of a sum that is whole: 400 bytes at 0.25 are 100 tokens.
const fuzz = 1e-6

// output is what so many tokens for each answer come to.
func (r *Request) output(each, maxOut int64) int64 {
	choices := float64(max(r.Choices, 1))
	limit := float64(r.MaxOut)
	if r.MaxOut <= 0 {
		most := maxOut
		if most <= 0 {
			most = r.Policy.Estimate.MaxOutput
		}
		limit = float64(most) * choices
	}
	out := float64(each) * choices
	if r.ToTheEnd || limit > 0 && out > limit {
		out = limit
	}
	return count(max(out, float64(r.leastOutput()), 0))
}

// least is what a request takes whatever was learnt: a stated cost, token ids,
// text at as few tokens as there can be, and the output that the caller demands.
// Only this much can be refused for good (Q9, T7).
func (r *Request) least() (input, output int64) {
	if r.Fixed > 0 {
		return min(r.Fixed, maxTokens), 0
	}
	text := 0.0
	if most := r.Policy.Estimate.FinalBytesPerToken; most > 0 {
		text = math.Ceil(float64(max(r.Prompt, 0))/most - fuzz)
	}
	return count(text + float64(max(r.Tokens, 0))), r.leastOutput()
}

func (r *Request) leastOutput() int64 {
	least := max(r.MinOut, 0)
	if r.MaxOut > 0 {
		least = min(least, r.MaxOut)
	}
	return min(least, maxTokens)
}

// exact is the part of the input that is no text.
func (r *Request) exact() int64 {
	return count(float64(max(r.Tokens, 0)) + mediaTokens*float64(max(r.Media, 0)))
}

// perChoice is the part of one choice in an output, rounded up: choices are
// generated at the same time.
func (r *Request) perChoice(output int64) int64 {
	choices := max(r.Choices, 1)
	return output/choices + min(output%choices, 1)
}

func (r *Request) prompts() int64 { return max(r.Prompts, 1) }

// count is a sum of tokens within what can be added up.
func count(v float64) int64 {
	if !(v > 0) {
		return 0
	}
	return int64(min(v, maxTokens))
}

func overheadOf(own, model *learnt) float64 {
	switch {
	case own.warm():
		return math.Float64frombits(own.overhead.Load())
	case model.warm():
		return math.Float64frombits(model.overhead.Load())
	}
	return 0
}

// perByteOf is within the policy's bounds.
func perByteOf(c *policy.Estimate, own, model *learnt) float64 {
	v := 1 / c.BytesPerToken
	switch {
	case own.warm():
		v = math.Float64frombits(own.perByte.Load())
	case model.warm():
		v = math.Float64frombits(model.perByte.Load())
	}
	return boundPerByte(c, v)
}

// boundPerByte keeps tokens per byte within the policy's bounds.
func boundPerByte(c *policy.Estimate, v float64) float64 {
	if c.MaxBytesPerToken > 0 {
		v = max(v, 1/c.MaxBytesPerToken)
	}
	if c.MinBytesPerToken > 0 {
		v = min(v, 1/c.MinBytesPerToken)
	}
	if !(v > 0) || math.IsInf(v, 0) {
		return 1
	}
	return v
}

func outputOf(c *policy.Estimate, own, model *learnt) int64 {
	for _, l := range [2]*learnt{own, model} {
		if l != nil {
			if v := l.output.Load(); v > 0 {
				return v
			}
		}
	}
	return c.Output
}

func (l *learnt) warm() bool { return l != nil && l.perByte.Load() != 0 }
