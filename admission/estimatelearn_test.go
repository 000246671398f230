package admission

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/weirproxy/weir/policy"
)

// teach lets a tenant's answers be learnt.
func teach(x *Estimator, r *Request, n int, in, out int64) {
	for range n {
		x.Learn(r, &Usage{Known: true, InputKnown: true, Input: in, Output: out, Choices: min(max(r.Choices, 1), ManyChoices)})
	}
}

func askOf(e *policy.Effective, tenant string, prompt int64) *Request {
	r := ask(e, "a", tenant, policy.Standard)
	r.Prompt, r.MaxOut = prompt, 0
	return r
}

// Short prompts teach the overhead and nothing about long ones, to others or to
// the tenant itself.
func TestShortPromptsTeachNothingAboutLongOnes(t *testing.T) {
	e := effective(t, house(1))
	for _, n := range []int{20, 44, 100, 5000} {
		x := NewEstimator()
		teach(x, askOf(e, "a", 2), n, 9, 1)
		if in, out := x.Predict(askOf(e, "b", 12_000), 0); in != 3000 || out != 512 {
			t.Errorf("%d short prompts of a: %d in, %d out for b, want 3000, 512", n, in, out)
		}
		if in, _ := x.Predict(askOf(e, "a", 12_000), 0); in < 3000 || in > 3030 {
			t.Errorf("%d short prompts of a: %d in for its own long one, want 3000 and an overhead", n, in)
		}
		if in, _ := x.Predict(askOf(e, "a", 2), 0); in < 8 || in > 10 {
			t.Errorf("%d short prompts of a: %d in for another, want 9", n, in)
		}
	}
}

// Overhead and bytes per token are told apart where prompts differ in length,
// in any mix of long and short ones.
func TestOverheadAndRatioAreLearntApart(t *testing.T) {
	e := effective(t, house(1))
	for _, c := range []struct {
		overhead, ratio float64
		short           int // of ten
	}{{9, 4, 5}, {9, 4, 9}, {200, 3, 5}, {0, 6, 5}, {1500, 4, 9}, {30, 1.5, 1}} {
		x, rng := NewEstimator(), rand.New(rand.NewPCG(1, 2))
		counted := func(bytes int64) int64 { return int64(math.Round(c.overhead + float64(bytes)/c.ratio)) }
		for range 400 {
			bytes := 2 + rng.Int64N(100)
			if rng.IntN(10) >= c.short {
				bytes = 2000 + rng.Int64N(20_000)
			}
			teach(x, askOf(e, "a", bytes), 1, counted(bytes), 10)
		}
		for _, bytes := range []int64{2, 500, 12_000, 100_000} {
			want := counted(bytes)
			if in, _ := x.Predict(askOf(e, "a", bytes), 0); math.Abs(float64(in-want)) > 0.05*float64(want)+5 {
				t.Errorf("%+v: %d in for %d bytes, want %d", c, in, bytes, want)
			}
		}
	}
}

// What one tenant does moves no other's estimate, not even a new one's.
func TestTenantsLearnApart(t *testing.T) {
	e := effective(t, house(1))
	x := NewEstimator()
	for i := range 9 {
		teach(x, askOf(e, fmt.Sprint("usual-", i), 400), 2*warm, int64(95+i), int64(76+i))
	}
	predict := func(tenant string) [2]int64 {
		in, out := x.Predict(askOf(e, tenant, 400), 0)
		return [2]int64{in, out}
	}
	before, fresh := predict("usual-3"), predict("new")
	if fresh[0] < 90 || fresh[0] > 110 || fresh[1] < 70 || fresh[1] > 90 {
		t.Errorf("a new tenant starts at %v, want about 100 in, 80 out as the model's tenants", fresh)
	}
	teach(x, askOf(e, "odd", 2), 20_000, 60_000, 1_000_000)
	if got := predict("usual-3"); got != before {
		t.Errorf("%v became %v by another tenant's odd use", before, got)
	}
	got := predict("new")
	for i := range got {
		if math.Abs(float64(got[i]-fresh[i])) > 0.06*float64(fresh[i]) {
			t.Errorf("a new tenant's %v became %v: one vote among ten moves the median by one place", fresh, got)
		}
	}
}

// Fewer than five tenants do not move where a new one starts.
func TestFewTenantsAreNoPrior(t *testing.T) {
	e := effective(t, house(1))
	x := NewEstimator()
	for i := range electors - 1 {
		teach(x, askOf(e, fmt.Sprint("t", i), 400), 100, 390, 9000)
	}
	if in, out := x.Predict(askOf(e, "new", 400), 0); in != 100 || out != 512 {
		t.Errorf("%d in, %d out, want the policy's 100, 512", in, out)
	}
}

// Tenants are kept up to the policy's bound, the last seen of them, with their
// votes, at about 600 bytes each.
func TestEstimatorIsBounded(t *testing.T) {
	const tenants = 1600
	p := house(1)
	p.Estimate.Tenants = tenants
	e := effective(t, p)
	x := NewEstimator()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range 10 * tenants {
		teach(x, askOf(e, fmt.Sprint("t", i), 400), 1, 100, 10)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	kept := 0
	for i := range x.shards {
		kept += len(x.shards[i].flows)
	}
	each := float64(after.HeapAlloc-before.HeapAlloc) / tenants
	t.Logf("%d kept, %.0f bytes each", kept, each)
	if kept > tenants || kept < tenants/2 || each > 700 {
		t.Errorf("%d of at most %d tenants kept, %.0f bytes each", kept, tenants, each)
	}
	if f := x.find(askOf(e, fmt.Sprint("t", 10*tenants-1), 1)); f == nil {
		t.Error("the last one is not kept")
	}
	if m := x.models.of("deepseek-v4"); int(m.perByte.votes) > kept {
		t.Errorf("%d votes of %d tenants", m.perByte.votes, kept)
	}
	runtime.KeepAlive(x)
}

// A smaller bound holds from the next answers on.
func TestEstimatorShrinks(t *testing.T) {
	p := house(1)
	p.Estimate.Tenants = 1600
	x := NewEstimator()
	for i := range 1600 {
		teach(x, askOf(effective(t, p), fmt.Sprint("t", i), 400), 1, 100, 10)
	}
	p = house(1)
	p.Estimate.Tenants = 160
	for i := range 500 {
		teach(x, askOf(effective(t, p), fmt.Sprint("u", i), 400), 1, 100, 10)
	}
	kept := 0
	for i := range x.shards {
		kept += len(x.shards[i].flows)
	}
	if kept > 160 {
		t.Errorf("%d are kept, want 160", kept)
	}
}

// Votes of those who are dropped are taken back.
func TestDroppedVotesGo(t *testing.T) {
	p := house(1)
	p.Estimate.Tenants = estimateShards
	e := effective(t, p)
	x := NewEstimator()
	for i := range 500 {
		teach(x, askOf(e, fmt.Sprint("t", i), 400), warm, 100, 10)
	}
	m, sum := x.models.of("deepseek-v4"), uint32(0)
	for _, n := range m.output.of {
		sum += n
	}
	if m.output.votes > estimateShards || sum != m.output.votes {
		t.Errorf("%d votes, %d in buckets, want at most %d", m.output.votes, sum, estimateShards)
	}
}

// Answers cut at a small cap do not make those without one look short.
func TestCapsTeachNoShortAnswers(t *testing.T) {
	e := effective(t, house(1))
	x := NewEstimator()
	r := askOf(e, "t", 400)
	for i, c := range []struct{ limit, out, want int64 }{{1, 1, 512}, {600, 600, 600}, {50, 50, 600}, {0, 80, 80}} {
		r.MaxOut = c.limit
		teach(x, r, 3000, 100, c.out)
		r.MaxOut = 0
		if _, out := x.Predict(r, 0); out < c.want || out > c.want*110/100 {
			t.Errorf("%d: %d out, want %d", i, out, c.want)
		}
	}
}

// Choices and prompts multiply what is expected, what is learnt is of one.
func TestChoicesAndPrompts(t *testing.T) {
	e := effective(t, house(1))
	for _, c := range []struct {
		name    string
		edit    func(*Request)
		in, out int64
	}{
		{"one", func(*Request) {}, 100, 512},
		{"n: 128", func(r *Request) { r.Choices = 128 }, 100, 128 * 512},
		{"n: 128, capped", func(r *Request) { r.Choices, r.MaxOut = 128, 128*100 }, 100, 128 * 100},
		{"ten prompts of n: 3", func(r *Request) { r.Prompts, r.Choices = 10, 30 }, 100, 30 * 512},
		{"demanded", func(r *Request) { r.Choices, r.MinOut = 2, 4000 }, 100, 4000},
		{"demanded beyond the cap", func(r *Request) { r.MinOut, r.MaxOut = 4000, 600 }, 100, 600},
		{"ids", func(r *Request) { r.Tokens = 50 }, 150, 512},
		{"media", func(r *Request) { r.Media = 2 }, 2100, 512},
		{"nothing but choices", func(r *Request) { r.Prompt, r.Choices = 0, 9 }, 1, 9 * 512},
		{"absurd", func(r *Request) { r.Prompt, r.Choices, r.MaxOut = math.MaxInt64, math.MaxInt64, math.MaxInt64 }, maxTokens, maxTokens},
	} {
		r := askOf(e, "t", 400)
		c.edit(r)
		if in, out := NewEstimator().Predict(r, 0); in != c.in || out != c.out {
			t.Errorf("%s: %d in, %d out, want %d, %d", c.name, in, out, c.in, c.out)
		}
	}
	x := NewEstimator()
	r := askOf(e, "t", 400)
	r.Choices = 128
	teach(x, r, 2*warm, 100, 128*1000)
	if _, out := x.Predict(r, 0); out < 128*1000 || out > 128*1100 {
		t.Errorf("%d out, want that of 128 answers of 1000", out)
	}
	for range 5 * warm { // asked for 128, and one came
		x.Learn(r, &Usage{Known: true, InputKnown: true, Input: 100, Output: 1000, Choices: 1})
	}
	r.Choices = 1
	if _, out := x.Predict(r, 0); out < 1000 || out > 1100 {
		t.Errorf("%d out, want that of one answer of 1000", out)
	}
}

// A prediction is never negative, never overflows, and never falls when there
// are more bytes, prompts, choices or a larger cap.
func FuzzPredictIsMonotone(f *testing.F) {
	f.Add(int64(400), int64(0), int64(0), int64(1), int64(1), int64(0), int64(0))
	f.Add(int64(1)<<62, int64(1)<<62, int64(1)<<62, int64(1)<<62, int64(1)<<62, int64(1)<<62, int64(1)<<62)
	f.Add(int64(-1), int64(-1), int64(-1), int64(-1), int64(-1), int64(-1), int64(-1))
	e := effective(f, house(1))
	x := NewEstimator()
	teach(x, askOf(e, "t", 4000), 50, 2000, 700)
	f.Fuzz(func(t *testing.T, text, ids, media, prompts, choices, maxOut, minOut int64) {
		make := func(change func(*Request)) (in, out int64) {
			r := askOf(e, "t", text)
			r.Tokens, r.Media, r.Prompts, r.Choices, r.MaxOut, r.MinOut = ids, media, prompts, choices, maxOut, minOut
			change(r)
			in, out = x.Predict(r, 0)
			leastIn, leastOut := r.least()
			if in < 1 || out < 0 || in > maxTokens || out > maxTokens || in+out < 0 || leastIn > in || leastOut > out {
				t.Fatalf("%d in, %d out, at least %d, %d of %+v", in, out, leastIn, leastOut, r)
			}
			return in, out
		}
		in, out := make(func(*Request) {})
		for i, grow := range []func(*Request){
			func(r *Request) { r.Prompt = more(r.Prompt) },
			func(r *Request) { r.Prompts = more(r.Prompts) },
			func(r *Request) { r.Choices = more(r.Choices) },
			func(r *Request) {
				if r.MaxOut > 0 {
					r.MaxOut = more(r.MaxOut)
				}
			},
			func(r *Request) { r.MinOut = more(r.MinOut) },
		} {
			if i2, o2 := make(grow); i2 < in || o2 < out {
				t.Fatalf("change %d: %d in, %d out became %d, %d", i, in, out, i2, o2)
			}
		}
	})
}

func more(v int64) int64 {
	if v > math.MaxInt64/2 {
		return math.MaxInt64
	}
	return max(v*2, v+1)
}

// A tenant that taught short answers with all its might reserves too little for
// its own long ones until a twentieth of what is kept are long: some hundred
// answers, each charged at its end.
func TestOwnShortAnswersAreOutgrown(t *testing.T) {
	e := effective(t, house(1))
	for _, before := range []int{20, 2000, 50_000} {
		x := NewEstimator()
		r := askOf(e, "a", 400)
		teach(x, r, before, 100, 1)
		n := 0
		for out := int64(0); out < 4000 && n < 1000; n++ {
			teach(x, r, 1, 100, 4000)
			_, out = x.Predict(r, 0)
		}
		if n > 110 {
			t.Errorf("after %d short answers, %d long ones until one is reserved", before, n)
		}
		t.Logf("after %d short answers: %d long ones", before, n)
	}
}

// Requests of any size predict and teach without a panic, and nothing
// overflows or is below nothing.
func FuzzEstimator(f *testing.F) {
	f.Add(int64(400), int64(1), int64(1), int64(0), int64(0), int64(100), int64(500), false)
	f.Add(int64(math.MaxInt64), int64(math.MaxInt64), int64(math.MaxInt64), int64(math.MaxInt64), int64(math.MaxInt64), int64(math.MaxInt64), int64(math.MaxInt64), true)
	f.Add(int64(-1), int64(-1), int64(-1), int64(-1), int64(-1), int64(-1), int64(-1), true)
	e := effective(f, house(1))
	f.Fuzz(func(t *testing.T, prompt, prompts, choices, maxOut, minOut, in, out int64, end bool) {
		x := NewEstimator()
		r := askOf(e, "a", prompt)
		r.Prompts, r.Choices, r.MaxOut, r.MinOut, r.Tokens, r.Media, r.ToTheEnd = prompts, choices, maxOut, minOut, prompt, 0, end
		for range 2 * warm {
			x.Learn(r, &Usage{Known: true, InputKnown: true, Input: in, Output: out, Choices: ManyChoices})
		}
		for _, r := range []*Request{r, askOf(e, "a", 400)} {
			input, output := x.Predict(r, maxOut)
			least, leastOut := r.least()
			if input < 0 || output < 0 || input > maxTokens || output > maxTokens || least < 0 || leastOut < 0 || least+leastOut < 0 || output < leastOut {
				t.Fatalf("%+v: %d in, %d out; at least %d, %d", r, input, output, least, leastOut)
			}
		}
	})
}
