package examples_test

import (
	"fmt"
	"math"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/weirproxy/weir/examples"
	"github.com/weirproxy/weir/identity"
	"github.com/weirproxy/weir/internal/envoytest"
	"github.com/weirproxy/weir/internal/modelsim"
	"github.com/weirproxy/weir/internal/simulate"
	"github.com/weirproxy/weir/policy"
)

// TestVirtualAndRealAgree plays scenarios/agree.yaml under the default policy
// through a real Envoy, a real weir and a simulated pool in real time, three
// times, with the very requests that the simulator draws. In the median, whole
// answers a second must be within 5 % of what the simulator says, and the 99th
// percentile of waits for a seat (x-weir-waited-ms of admitted tries: weir's
// own word, as in its access log and metrics) within 15 %.
//
// It takes two minutes and wants a machine that is not busy with other things,
// so it is not in the gate: make test-agree runs it. It is the only test that
// skips as a whole.
func TestVirtualAndRealAgree(t *testing.T) {
	if os.Getenv("WEIR_AGREE") == "" {
		t.Skip("three runs in real time: make test-agree runs them")
	}
	s, err := simulate.LoadFile("scenarios/agree.yaml")
	if err != nil {
		t.Fatal(err)
	}
	virtual := virtualRun(t, s)
	t.Logf("%-10s %s", "simulated", virtual)
	const runs = 3
	var goodputs, waits []float64
	for i := range runs {
		t.Run(fmt.Sprint(i+1), func(t *testing.T) {
			r := realRun(t, envoytest.Envoys(t)[0], s)
			t.Logf("%-10s %s", "real", r)
			goodputs, waits = append(goodputs, r.goodput), append(waits, r.wait)
		})
	}
	if len(goodputs) != runs {
		t.Fatalf("%d runs of %d came to their end", len(goodputs), runs)
	}
	slices.Sort(goodputs)
	slices.Sort(waits)
	for _, c := range []struct {
		what            string
		actual, virtual float64
		bound           float64
	}{
		{"goodput", goodputs[runs/2], virtual.goodput, 0.05},
		{"P99 wait", waits[runs/2], virtual.wait, 0.15},
	} {
		off := c.actual/c.virtual - 1
		t.Logf("%-8s simulated %.1f, real %.1f: %+.1f %%", c.what, c.virtual, c.actual, 100*off)
		if !(math.Abs(off) <= c.bound) {
			t.Errorf("%s: real and simulated are %.1f %% apart, want at most %.0f %%", c.what, 100*math.Abs(off), 100*c.bound)
		}
	}
}

// run is what is compared of two runs, and some more to see why they differ.
type run struct {
	goodput float64 // whole answers/s
	wait    float64 // ms, 99th percentile over all classes
	first   float64 // share of requests admitted at the first try
	late    float64 // ms, 99th percentile of how late first tries were sent: a busy machine shows here
	classes [policy.NumClasses]float64
	reasons map[string]int
}

func (r *run) String() string {
	return fmt.Sprintf("goodput %.1f/s, P99 wait %.0f ms (by class %.0f), %.1f %% in at the first try, sent late by %.1f ms (P99), %v",
		r.goodput, r.wait, r.classes, 100*r.first, r.late, r.reasons)
}

func defaultOver(t *testing.T, s *simulate.Scenario) (text []byte, p *policy.Policy) {
	t.Helper()
	raw, err := examples.Files.ReadFile("policies/default.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if text, err = s.Text("default.yaml", raw); err != nil {
		t.Fatal(err)
	}
	if p, err = s.Lay("default.yaml", raw); err != nil {
		t.Fatal(err)
	}
	return text, p
}

func virtualRun(t *testing.T, s *simulate.Scenario) *run {
	t.Helper()
	_, p := defaultOver(t, s)
	r, err := simulate.Run(s, simulate.Candidate{Name: "default", Policy: p}, false)
	if err != nil {
		t.Fatal(err)
	}
	if r.Violated != nil {
		t.Fatal(r.Violated)
	}
	out := &run{goodput: r.Goodput, wait: *r.WaitP99, first: *r.BurstAdmittedFirst, reasons: r.Reasons}
	for name, k := range r.Classes {
		class, _ := policy.ParseClass(name)
		out.classes[class] = k.WaitP99
	}
	return out
}

// crowd are the callers of a real run.
type crowd struct {
	world  *world
	s      *simulate.Scenario
	start  time.Time
	tokens map[*identity.Identity]string

	mu      sync.Mutex
	answers int // whole ones within the run's duration
	sent    int // requests first sent after the warm-up
	first   int // of them, admitted at the first try
	waits   [policy.NumClasses][]float64
	late    []float64 // the sender's own
	reasons map[string]int
	wrong   []string
}

func realRun(t *testing.T, b envoytest.Binary, s *simulate.Scenario) *run {
	sends, err := simulate.Sends(s, false)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, b, setup{
		example: "one-filter.yaml", envoy: unhurried, policy: realPolicy(t, s), pools: []string{"chat-fp16"},
		sim: modelsim.Config{Engine: s.Engines["chat-fp16"].Batch, Seed: s.Seed},
	})
	c := &crowd{world: w, s: s, tokens: map[*identity.Identity]string{}, reasons: map[string]int{}}
	for i := range sends {
		if id := sends[i].Identity; c.tokens[id] == "" {
			c.tokens[id] = w.token(claims{"tenant": id.Tenant, "class": id.Class.String()})
		}
	}
	c.start = time.Now().Add(s.Warmup)
	var all sync.WaitGroup
	for i := range sends {
		at := c.start.Add(sends[i].At)
		waitUntil(t, at)
		c.late = append(c.late, float64(time.Since(at))/float64(time.Millisecond))
		all.Go(func() { c.live(t, &sends[i]) })
	}
	all.Wait()
	if len(c.wrong) > 0 {
		t.Fatalf("%d answers are neither whole nor a refusal of weir: %s", len(c.wrong), c.wrong[0])
	}
	return c.sum()
}

// realPolicy is the default policy laid over by the scenario, without what is
// of this machine or belongs to another room.
func realPolicy(t *testing.T, s *simulate.Scenario) string {
	t.Helper()
	text, _ := defaultOver(t, s)
	var tree map[string]any
	if err := yaml.Unmarshal(text, &tree); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"version", "server", "identity", "store"} {
		delete(tree, key) // the world's
	}
	delete(tree, "envoy") // patience
	text, err := yaml.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	return patience + string(text)
}

// waitUntil waits for an instant; the test's end ends it.
func waitUntil(t *testing.T, at time.Time) {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
	}
}

// live is one request with all its tries, by an obedient client.
func (c *crowd) live(t *testing.T, r *simulate.Send) {
	k := r.Client
	for try := 1; ; try++ {
		a := c.try(r, try)
		if !c.count(r, try, a) {
			return
		}
		hint := time.Duration(a.number("retry-after-ms") * float64(time.Millisecond))
		back := time.Now().Add(hint)
		if hint <= 0 || try >= k.Tries || back.Sub(c.start.Add(r.At)) > k.Patience {
			return
		}
		waitUntil(t, back)
	}
}

func (c *crowd) try(r *simulate.Send, try int) answer {
	w := c.world
	headers := []string{"Authorization", "Bearer " + c.tokens[r.Identity], modelsim.OutputHeader, strconv.FormatInt(r.Output, 10)}
	if k := r.Client; k.Marks && try > 1 {
		headers = append(headers, "x-stainless-retry-count", strconv.Itoa(try-1))
	}
	const perMessage = 3 // tokens that the pool counts beside the text
	text := strings.Repeat("weir", int(r.Prompt)-perMessage)
	body := fmt.Sprintf(`{"model":"deepseek-v4","max_tokens":%d,"stream":%v,"messages":[{"role":"user","content":%q}]}`, r.MaxTokens, r.Stream, text)
	return w.do(w.request(w.t.Context(), http.MethodPost, "/v1/chat/completions", body, headers...))
}

// count books a try and says whether its caller was refused.
func (c *crowd) count(r *simulate.Send, try int, a answer) (refused bool) {
	now := time.Since(c.start)
	c.mu.Lock()
	defer c.mu.Unlock()
	counts, reason := r.At >= 0, a.header.Get("x-weir-reason")
	if counts && try == 1 {
		c.sent++
	}
	if counts {
		c.reasons[reason]++
	}
	switch {
	case a.err == nil && a.code == http.StatusOK && (!r.Stream || a.done()):
		if now >= 0 && now < c.s.Duration {
			c.answers++
		}
		if counts {
			class := r.Identity.Class
			c.waits[class] = append(c.waits[class], a.number("x-weir-waited-ms"))
		}
		if counts && try == 1 {
			c.first++
		}
		return false
	case a.err == nil && reason != "" && (a.code == http.StatusTooManyRequests || a.code == http.StatusServiceUnavailable):
		return true
	}
	c.wrong = append(c.wrong, fmt.Sprintf("%d %v %.200s", a.code, a.err, a.body))
	return false
}

func (c *crowd) sum() *run {
	r := &run{goodput: float64(c.answers) / c.s.Duration.Seconds(), first: float64(c.first) / float64(c.sent), late: p99(c.late), reasons: c.reasons}
	var all []float64
	for class, waits := range c.waits {
		r.classes[class] = p99(waits)
		all = append(all, waits...)
	}
	r.wait = p99(all)
	return r
}

// p99 is the least value that 99 % of the list do not exceed.
func p99(list []float64) float64 {
	if len(list) == 0 {
		return 0
	}
	slices.Sort(list)
	return list[max(int(math.Ceil(0.99*float64(len(list))))-1, 0)]
}
