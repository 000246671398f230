package simulate

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

// full has every key once, so that tables below can break one line each.
const full = `name: all
seed: 7
duration: 60s
warmup: 5s
capacity: 1256
topology:
  models: [{name: m, pools: [a]}]
  pools: [{name: a, variant: fp16, seats: {requests: 120}}]
overlay: {queue: {headroom: 0%}}
engines:
  a:
    service: {places: 120, time: 95ms, spread: 10%, beyond: fail}
    sensor: {every: 1s, delay: 500ms}
    failures:
      - {at: 30s, for: 5s, kind: slow, value: 3}
      - {at: 20s, for: 5s, kind: down}
arrivals:
  - {kind: steady, rate: 300, spacing: even}
  - {kind: pulse, rate: 1200, from: 10s, length: 10s, every: 20s, burst: true}
  - {kind: mixed, rate: 50, most: 800, every: 1s, to: 30s}
  - {kind: diurnal, rate: 10, swing: 50%, every: 60s}
  - kind: trace
    file: yesterday.csv.gz
    speed: 2
    fields: {tenant: customer}
    requests: [{share: 1, class: batch, prompt: 10, output: 10}]
    tenants: {name: rogue}
    clients: [{share: 100%, kind: stubborn}]
requests:
  - {share: 20%, class: critical, colour: red, tier: gold, model: m, priority: true, deadline: 2s, stream: true, prompt: 200, output: {uniform: [50, 100]}, maxTokens: 256}
  - {share: 0.5, prompt: {lognormal: {median: 200, p95: 900}}, output: {fixed: 20}, understate: 10%, stream: 30%}
  - {share: 30%, class: batch, embedding: true, prompt: 100}
tenants: {name: t, count: 100, keys: 2, highFrequency: {share: 20%, load: 80%}}
clients:
  - {share: 60%, kind: obedient, marks: true, patience: 30s, tries: 5, early: 50%}
  - {share: 40%, kind: backoff, every: 1s}
reload: [{at: 40s, policy: source}, {at: 20s, policy: other.yaml}]
clock: [{at: 5s, step: -1s}]
policies: [default, source, other.yaml]
`

func TestParseReadsEveryKey(t *testing.T) {
	s, err := Parse("dir/all.yaml", []byte(full))
	if err != nil {
		t.Fatal(err)
	}
	if s.Name != "all" || s.Seed != 7 || s.Duration != time.Minute || s.Warmup != 5*time.Second || s.Capacity != 1256 {
		t.Errorf("head: %+v", s)
	}
	e := s.Engines["a"]
	if *e.Service != (Service{120, 95 * time.Millisecond, 0.1, FailBeyond}) || e.Sensor != (Sensor{time.Second, 500 * time.Millisecond}) {
		t.Errorf("engine: %+v %+v", e.Service, e.Sensor)
	}
	if len(e.Failures) != 2 || e.Failures[0].Kind != Down || e.Failures[1] != (Failure{30 * time.Second, 5 * time.Second, Slow, 3}) {
		t.Errorf("failures are not by time: %+v", e.Failures)
	}
	if a := s.Arrivals; !a[0].Even || a[0].To != time.Minute || !a[1].Burst || a[2].Most != 800 || a[2].To != 30*time.Second || a[3].Swing != 0.5 {
		t.Errorf("arrivals: %+v", a)
	}
	tr := s.Arrivals[4]
	if tr.Trace.Format != CSV || tr.Trace.Speed != 2 || tr.Trace.Fields["tenant"] != "customer" || tr.Tenants.Name != "rogue" || tr.Clients[0].Every != 100*time.Millisecond || tr.Requests[0].Class != policy.Batch {
		t.Errorf("trace: %+v", tr)
	}
	want := Mix{Share: 0.2, Class: policy.Critical, Colour: policy.Red, Tier: "gold", Model: "m", Stream: 1, Priority: true,
		Deadline: 2 * time.Second, Prompt: Dist{Fixed, 200, 0}, Output: Dist{Uniform, 50, 100}, MaxTokens: 256}
	if s.Requests[0] != want {
		t.Errorf("mix: %+v, want %+v", s.Requests[0], want)
	}
	if m := s.Requests[1]; m.Class != policy.Standard || m.Prompt != (Dist{LogNormal, 200, 900}) || m.Understate != 0.1 || m.Stream != 0.3 {
		t.Errorf("a class that is not said must be standard: %+v", m)
	}
	if s.Tenants != (Tenants{"t", 100, 0, 0.2, 0.8, 2}) {
		t.Errorf("tenants: %+v", s.Tenants)
	}
	if s.Clients[0] != (Client{0.6, Obedient, true, 30 * time.Second, 5, 0.5, 0}) || s.Clients[1].Every != time.Second || s.Clients[1].Tries != 10 {
		t.Errorf("clients: %+v", s.Clients)
	}
	if s.Reloads[0].Policy != "other.yaml" || s.Clock[0].Step != -time.Second || len(s.Policies) != 3 {
		t.Errorf("reload %+v clock %+v policies %v", s.Reloads, s.Clock, s.Policies)
	}
	if got := s.Path("other.yaml"); got != "dir/other.yaml" {
		t.Errorf("path %q", got)
	}
}

// TestParseNamesFieldLineAndReason breaks one line of the full scenario each
// time. A blank replacement takes the line out.
func TestParseNamesFieldLineAndReason(t *testing.T) {
	for _, c := range []struct{ old, new, want string }{
		{"seed: 7", "sead: 7", `s.yaml:2:1: sead: unknown key`},
		{"seed: 7", "seed: -1", `s.yaml:2:7: seed: must be a whole number between 0 and`},
		{"duration: 60s", "duration: 60", `s.yaml:3:11: duration: needs a unit`},
		{"duration: 60s", "duration: 900h", `duration: must lie between 1s and 168h0m0s (got "900h")`},
		{"duration: 60s\n", "", `duration: is missing`},
		{"warmup: 5s", "warmup: soon", `warmup: must be a duration such as`},
		{"capacity: 1256", "capacity: .inf", `capacity: must be a number (got ".inf")`},
		{"  models:", "  queue:", `s.yaml:7:3: topology.queue: unknown key; the keys here are models, pools, tenants, tiers; other keys of a policy belong to overlay`},
		{"overlay: {queue", "overlay: {pools", `overlay.pools: belongs to topology`},
		{"places: 120", "places: 0", `s.yaml:12:23: engines.a.service.places: must be a whole number between 1 and 1000000 (got "0")`},
		{"beyond: fail", "beyond: crash", `engines.a.service.beyond: must be one of queue, fail (got "crash")`},
		{"spread: 10%", "spread: 110%", `engines.a.service.spread: must lie between 0 and 1`},
		{"    service:", "    batch: {}\n    service:", `engines.a: must have one of batch and service`},
		{"kind: slow, value: 3", "kind: slow", `s.yaml:15:9: engines.a.failures[0].value: is missing`},
		{"kind: slow, value: 3", "kind: slow, value: 0.5", `engines.a.failures[0].value: must be 1 or more`},
		{"kind: down", "kind: down, value: 1", `engines.a.failures[1].value: is used by slow, errors and resize only`},
		{"  a:\n", "  b:\n", `s.yaml:11:3: engines.b: no such pool in topology; it has a`},
		{"kind: steady, rate: 300", "kind: steady, rate: 300, length: 1s", `arrivals[0].length: is not used by this kind; it has rate`},
		{"kind: steady, rate: 300", "kind: steady", `arrivals[0].rate: is missing`},
		{"kind: steady, rate: 300", "kind: steady, rate: 1e6, tenants: {count: 1}}\n  - {kind: steady, rate: 999999", `s.yaml:18:3: arrivals: come to about 120`},
		{"length: 10s, every: 20s", "length: 30s, every: 20s", `arrivals[1].length: must not exceed every, 20s (got "30s")`},
		{"from: 10s", "from: 70s", `arrivals[1]: lasts from 1m10s to 1m0s, must begin before it ends and end within duration, 1m0s`},
		{"most: 800", "most: 20", `arrivals[2].most: must not be below rate, 50`},
		{"kind: slow, value: 3", "kind: errors, value: 300%", `engines.a.failures[0].value: must lie between 0 and 1: the share of requests`},
		{"places: 120", "places: many", `engines.a.service.places: must be a whole number between 1 and 1000000 (got "many")`},
		{"burst: true", "burst: yes please", `arrivals[1].burst: must be true or false`},
		{"fields: {tenant: customer}", "fields: {tenent: customer}", `arrivals[4].fields.tenent: unknown key`},
		{"share: 20%, class", "share: 30%, class", `s.yaml:30:3: requests: the shares must add up to 1 (100%), not 1.1`},
		{"class: critical", "class: vip", `requests[0].class: must be one of critical, standard, batch (got "vip")`},
		{"uniform: [50, 100]", "uniform: [100, 50]", `requests[0].output: the larger end, 50, must not be below 100`},
		{"fixed: 20", "fixed: 20, uniform: [1, 2]", `requests[1].output: must be a number, or one of fixed, uniform, lognormal`},
		{"embedding: true, prompt: 100", "embedding: true, prompt: 100, output: 3", `requests[2].output: is missing, or must not be there`},
		{"count: 100", "count: 100, zipf: 1", `tenants: has zipf or highFrequency, not both`},
		{"early: 50%", "early: 0", `clients[0].early: must lie between 0.001 and 1`},
		{"share: 40%, kind: backoff", "share: 50%, kind: backoff", `clients: the shares must add up to 1 (100%), not 1.1`},
		{"reload: [{at: 40s, ", "reload: [{", `reload[0].at: is missing`},
		{"seed: 7", "seed: 7\nseed: 8", `s.yaml:3:1: seed: is written twice`},
		{"seed: 7", "seed: &x 7", `s.yaml:2:7: aliases, anchors and YAML tags are not taken`},
		{"seed: 7", "seed: [7", `is not YAML`},
	} {
		text := strings.Replace(full, c.old, c.new, 1)
		if text == full {
			t.Fatalf("%q is not in the scenario", c.old)
		}
		_, err := Parse("s.yaml", []byte(text))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q for %q:\ngot  %v\nwant %s", c.new, c.old, err, c.want)
		}
	}
}

func TestParseTellsAllViolationsInOrder(t *testing.T) {
	text := strings.NewReplacer("seed: 7", "sead: 7", "count: 100", "count: none", "early: 50%", "early: 0").Replace(full)
	_, err := Parse("s.yaml", []byte(text))
	var wrong policy.Errors
	if !errors.As(err, &wrong) || len(wrong) != 3 || wrong[0].Field != "sead" || wrong[1].Field != "tenants.count" || wrong[2].Field != "clients[0].early" {
		t.Errorf("got %v", err)
	}
}

func TestEmptyAndForeignFiles(t *testing.T) {
	for _, text := range []string{"", "# nothing\n", "[]", "a", "a: 1\n---\nb: 2\n", "\x00", strings.Repeat("#", maxScenario+1)} {
		if _, err := Parse("s.yaml", []byte(text)); err == nil {
			t.Errorf("%.20q was taken", text)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(full)
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse("s.yaml", []byte(text))
		if err != nil {
			var wrong policy.Errors
			if !errors.As(err, &wrong) || len(wrong) == 0 {
				t.Fatalf("no violations: %v", err)
			}
			return
		}
		if s.Duration <= 0 || len(s.Requests) == 0 || len(s.Clients) == 0 || len(s.Policies) == 0 {
			t.Fatalf("incomplete: %+v", s)
		}
	})
}

const small = `version: 1
models: [{name: own, pools: [own]}]
pools: [{name: own, variant: fp16, seats: {requests: 1}}]
queue:
  softLimit: 70%
  length: {max: 90}
identity: {issuers: [{issuer: https://id.example, audiences: [llm], jwks: {file: jwks.json}}]}
`

func scenario(t *testing.T, changes ...string) *Scenario {
	t.Helper()
	s, err := Parse("dir/all.yaml", []byte(strings.NewReplacer(changes...).Replace(full)))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestLayPutsTheScenarioOverAPolicy(t *testing.T) {
	s := scenario(t, "{queue: {headroom: 0%}}", "{queue: {perTenant: 10%, length: {min: 20}}, classes: [{name: batch, weight: 5}, {name: standard, onExpiry: drop}]}")
	p, err := s.Lay("p.yaml", []byte(small+"classes: [{name: critical, maxWait: 100ms}, {name: batch, weight: 4, maxWait: 3s}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Pools) != 1 || p.Pools[0].Name != "a" || p.Pools[0].Seats.Requests != 120 || p.Models[0].Name != "m" {
		t.Errorf("topology: %+v %+v", p.Models, p.Pools)
	}
	if q := p.Queue; q.SoftLimit != 0.7 || q.PerTenant != 0.1 || q.Length.Max != 90 || q.Length.Min != 20 {
		t.Errorf("mappings must be laid key by key: %+v", q)
	}
	if c := p.Classes; c[0].MaxWait != 100*time.Millisecond || c[1].OnExpiry != policy.ExpireDrop || c[2].Weight != 5 || c[2].MaxWait != 3*time.Second {
		t.Errorf("classes must be laid by name: %+v", c)
	}
}

func TestLayTakesKeysOut(t *testing.T) {
	s := scenario(t, "{queue: {headroom: 0%}}", "{queue: {softLimit: null, perTenant: null}, classes: [{name: batch, weight: null, maxWait: 2s}], estimate: null, gauge: {neutral: null}}")
	p, err := s.Lay("p.yaml", []byte(small+"classes: [{name: batch, weight: 4}]\nestimate: {output: 7}\n"))
	if err != nil {
		t.Fatal(err)
	}
	d := policy.Default()
	if p.Queue.SoftLimit != d.Queue.SoftLimit || p.Queue.Length.Max != 90 || p.Estimate != d.Estimate || p.Gauge != d.Gauge {
		t.Errorf("what is taken out has its default: %+v %+v", p.Queue, p.Estimate)
	}
	if c := p.Classes[policy.Batch]; c.Weight != d.Classes[policy.Batch].Weight || c.MaxWait != 2*time.Second {
		t.Errorf("batch: %+v", c)
	}
}

func TestLayTellsInWhichFileTheFaultLies(t *testing.T) {
	s := scenario(t, "headroom: 0%", "perTenant: 300%")
	_, err := s.Lay("p.yaml", []byte(small))
	if err == nil || !strings.Contains(err.Error(), "dir/all.yaml:9:30: queue.perTenant") {
		t.Errorf("got %v", err)
	}
	s = scenario(t, "{queue: {headroom: 0%}}", "{queue: {perTenant: 10%}}")
	_, err = s.Lay("p.yaml", []byte(strings.Replace(small, "softLimit: 70%", "softLimit: x", 1)))
	if err == nil || !strings.Contains(err.Error(), "p.yaml:5:14: queue.softLimit") {
		t.Errorf("got %v", err)
	}
	for _, text := range []string{"", "[]", "a: [", "a: &x 1\nb: *x\n"} {
		if _, err := s.Lay("p.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), "p.yaml") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestLayWantsAnEngineForEveryPool(t *testing.T) {
	s := scenario(t)
	s.Overlay = nil
	if _, err := s.Lay("p.yaml", []byte(small)); err == nil || !strings.Contains(err.Error(), "dir/all.yaml: engines.own: is missing: p.yaml has this pool; the engines are of a") {
		t.Errorf("got %v", err)
	}
}

func TestBurstIsTheTimeOfItsStreams(t *testing.T) {
	s := scenario(t)
	for at, want := range map[time.Duration]bool{0: false, 9999 * time.Millisecond: false, 10 * time.Second: true, 19999 * time.Millisecond: true, 20 * time.Second: false, 30 * time.Second: true, 55 * time.Second: true} {
		if s.InBurst(at) != want {
			t.Errorf("at %v: %v", at, !want)
		}
	}
	want := []Span{{10 * time.Second, 20 * time.Second}, {30 * time.Second, 40 * time.Second}, {50 * time.Second, time.Minute}}
	got := s.Arrivals[1].Spans()
	if len(got) != 3 || got[0] != want[0] || got[1] != want[1] || got[2] != want[2] {
		t.Errorf("spans %v, want %v", got, want)
	}
}

func TestStretchReachesTheNumber(t *testing.T) {
	s := scenario(t)
	long := s.Stretch(1_000_000)
	if got := long.expected(); got < 1_000_000 || got > 1_006_000 {
		t.Errorf("%v first sends are expected", got)
	}
	if short := s.Stretch(10); short.Duration != s.Duration {
		t.Errorf("a scenario that sends more lasts %v", short.Duration)
	}
	trace := *s
	trace.Arrivals = s.Arrivals[4:]
	if long := trace.Stretch(1000); long.Duration != s.Duration {
		t.Errorf("a trace alone sends no more by lasting %v", long.Duration)
	}
	if s.Arrivals[0].To != time.Minute || s.Duration != time.Minute {
		t.Error("the scenario itself was changed")
	}
	if long.Arrivals[2].To != 30*time.Second {
		t.Error("a stream that ends before the scenario went on")
	}
}

func TestDrawsHaveTheirMean(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, d := range []Dist{{Fixed, 200, 0}, {Uniform, 50, 150}, {LogNormal, 200, 900}} {
		sum, above, n := 0.0, 0, 200_000
		for range n {
			v := d.Draw(rng)
			if v < 1 {
				t.Fatalf("%+v drew %d", d, v)
			}
			sum += float64(v)
			if float64(v) > d.B {
				above++
			}
		}
		if got := sum / float64(n); math.Abs(got/d.Mean()-1) > 0.03 {
			t.Errorf("%+v: mean %.1f, said %.1f", d, got, d.Mean())
		}
		if share := float64(above) / float64(n); d.Kind == LogNormal && math.Abs(share-0.05) > 0.005 {
			t.Errorf("%.3f lie above the 95th percentile", share)
		}
	}
	if (Dist{}).Draw(rng) != 0 {
		t.Error("nothing must draw nothing")
	}
}
