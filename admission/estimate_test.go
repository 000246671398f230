package admission

import (
	"math/rand/v2"
	"testing"

	"github.com/weirproxy/weir/policy"
)

func TestPredictCold(t *testing.T) {
	e := effective(t, house(1))
	x := NewEstimator()
	for _, c := range []struct {
		name    string
		edit    func(*Request)
		in, out int64
	}{
		{"by the cold ratio, capped by the caller", func(*Request) {}, 100, 100},
		{"caller without a cap", func(r *Request) { r.MaxOut = 0 }, 100, 512},
		{"caller with a wide cap", func(r *Request) { r.MaxOut = 100000 }, 100, 512},
		{"to the cap", func(r *Request) { r.ToTheEnd = true }, 100, 100},
		{"to the cap, of each choice", func(r *Request) { r.ToTheEnd, r.MaxOut, r.Choices = true, 90000, 3 }, 100, 90000},
		{"to the policy's cap", func(r *Request) { r.ToTheEnd, r.MaxOut, r.Choices = true, 0, 3 }, 100, 3 * 4096},
		{"rounded up", func(r *Request) { r.Prompt = 401 }, 101, 100},
		{"one byte", func(r *Request) { r.Prompt = 1 }, 1, 100},
		{"fixed cost", func(r *Request) { r.Fixed = 1000 }, 1000, 0},
		{"no prompt, many choices", func(r *Request) {
			r.Prompt, r.MaxOut, r.Choices, r.API = 0, 0, 9, &policy.API{Kind: policy.OpenAICompletions, Cost: 700}
		}, 1, 9 * 512},
		{"embeddings have no output", func(r *Request) { r.API = &policy.API{Kind: policy.OpenAIEmbeddings} }, 100, 0},
	} {
		r := ask(e, "a", "t", policy.Standard)
		c.edit(r)
		if in, out := x.Predict(r, 0); in != c.in || out != c.out {
			t.Errorf("%s: %d in, %d out, want %d, %d", c.name, in, out, c.in, c.out)
		}
	}
}

// After enough answers the ratio is theirs and the output their 95th
// percentile, to the width of a bucket (9 %); it follows when they change.
func TestLearn(t *testing.T) {
	e := effective(t, house(1))
	x := NewEstimator()
	r := ask(e, "a", "t", policy.Standard)
	r.Prompt, r.MaxOut = 3000, 0
	rng := rand.New(rand.NewPCG(3, 4))
	learn := func(n int, in, from, to int64) {
		for range n {
			x.Learn(r, &Usage{Known: true, InputKnown: true, Input: in, Output: from + rng.Int64N(to-from+1)})
		}
	}
	learn(warm-1, 1000, 200, 200)
	if in, out := x.Predict(r, 0); in != 750 || out != 512 {
		t.Errorf("still cold: %d in, %d out, want 750, 512", in, out)
	}
	learn(1000, 1000, 1, 1000) // 3 bytes a token, p95 = 950
	in, out := x.Predict(r, 0)
	if in < 980 || in > 1020 || out < 900 || out > 1050 {
		t.Errorf("learnt %d in, %d out, want 1000 and 950..1036", in, out)
	}
	learn(20000, 1500, 10, 20)
	in, out = x.Predict(r, 0)
	if in < 1470 || in > 1530 || out < 19 || out > 22 {
		t.Errorf("followed to %d in, %d out, want 1500 and 20", in, out)
	}
	x.Learn(r, &Usage{Known: false, Output: 9})
	r.MaxOut = 5
	if _, out := x.Predict(r, 0); out != 5 {
		t.Errorf("output %d, want the caller's cap 5", out)
	}
}

// The ratio stays within the policy's bounds, whatever callers send.
func TestRatioBounds(t *testing.T) {
	e := effective(t, house(1))
	for _, c := range []struct{ tokens, least, most int64 }{{1, 1000 / 8, 1000 / 8}, {1 << 50, 1000, 1000 + maxOverhead}} {
		x := NewEstimator()
		r := ask(e, "a", "t", policy.Standard)
		r.Prompt = 1000
		for range 2 * warm {
			x.Learn(r, &Usage{Known: true, InputKnown: true, Input: c.tokens, Output: 1})
		}
		if in, _ := x.Predict(r, 0); in > c.most || in < c.least {
			t.Errorf("%d tokens for 1000 bytes: predicts %d, want %d to %d", c.tokens, in, c.least, c.most)
		}
	}
}
