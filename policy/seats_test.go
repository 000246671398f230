package policy

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// full is minimal with every key of seats, shares, order and variants.
const full = `version: 1
identity: {issuers: [{issuer: https://id.example, audiences: [llm], jwks: {file: jwks.json}}]}
models: [{name: m, pools: [p, low]}, {name: other, pools: [p]}]
pools:
  - name: p
    variant: fp16
    seats: {adaptive: {min: 8, max: 256, ttft: 900ms}, tokens: 5000}
    cost: {base: 2.5, sla: 1s}
    engine: {priority: vllm}
  - {name: low, variant: int8, seats: {requests: 20}, rate: 60%, stage: true}
classes: [{name: critical, onExpiry: degrade}]
tiers: [{name: gold, weight: 3}, {name: silver, share: 30%}, {name: bronze, share: 0}, {name: vip, share: 50%}]
shares: {priority: 5%, streaming: 60%}
queue:
  order: {cheapTokens: 10, cheapTime: 20ms, streaming: false, ageing: 250ms}
  headroom: 12.5%
  watchdog: {after: 3s, step: 5%, max: 20%}
nonStreaming: {variant: fp16-dyn, maxWait: 150ms}
variants: {choose: cost, flip: 8s, sessionHeader: X-Session, sessionFor: 1m, notice: ""}
retryAfter: {share: 40%, grace: 2s}
profiles:
  edge:
    queue: {order: {ageing: 0}}
    nonStreaming: {maxWait: 50ms}
    variants: {choose: class, sessionHeader: "", notice: worse}
    retryAfter: {format: fractional, max: 5s}
`

// What the file says is what the rooms get, and a dump says it again.
func TestSeatsSharesAndVariants(t *testing.T) {
	p := load(t, "w.yaml", full)
	verify(t, []check{
		{"Q9 adaptive", p.Pools[0].Adaptive, &Adaptive{Min: 8, Max: 256, TTFT: 900 * time.Millisecond}},
		{"Q9 starts at the least", p.Pools[0].Seats, Seats{Requests: 8, Tokens: 5000}},
		{"Q9 fixed", p.Pools[1].Seats, Seats{Requests: 20}},
		{"V3 cost", []Cost{p.Pools[0].Cost, p.Pools[1].Cost}, []Cost{{2.5, time.Second}, {1, 500 * time.Millisecond}}},
		{"V2 rate", []Ratio{p.Pools[0].Rate, p.Pools[1].Rate}, []Ratio{1, 0.6}},
		{"engine", []EnginePriority{p.Pools[0].Priority, p.Pools[1].Priority}, []EnginePriority{VLLMPriority, NoPriority}},
		{"E4 stage", []bool{p.Pools[0].Stage, p.Pools[1].Stage}, []bool{false, true}},
		{"P9 tiers", p.Tiers, []Tier{{"gold", 3, 0.2}, {"silver", 1, 0.3}, {"bronze", 1, 0}, {"vip", 1, 0.5}}},
		{"P6 P8", p.Shares, Shares{Priority: 0.05, Streaming: 0.6}},
		{"P4 P6", p.Queue.Order, Order{CheapTokens: 10, CheapTime: 20 * time.Millisecond, Ageing: 250 * time.Millisecond}},
		{"T13", p.Queue.Headroom, Ratio(0.125)},
		{"Q9 watchdog", p.Queue.Watchdog, Watchdog{3 * time.Second, 0.05, 0.2}},
		{"P7", p.NonStreaming, &NonStreaming{FP16Dyn, 150 * time.Millisecond}},
		{"V3", p.Variants, Variants{ByCost: true, Flip: 8 * time.Second, Session: "X-Session", SessionFor: time.Minute}},
		{"Q5", p.RetryAfter, RetryAfter{Jitter: 0.2, Max: time.Minute, Share: 0.4, Grace: 2 * time.Second}},
	})
	if q := load(t, "w.yaml", string(p.Dump())); !same(p, q) || p.Hash != q.Hash {
		t.Errorf("the dump is another policy:\n%s\n%s", p.Dump(), q.Dump())
	}
}

// A profile changes what is judged by request, and inherits what pools and
// lines share.
func TestProfileOfVariants(t *testing.T) {
	p := load(t, "w.yaml", full)
	e, err := p.For(Overrides{Profile: "edge"})
	if err != nil {
		t.Fatal(err)
	}
	verify(t, []check{
		{"order", e.Queue.Order, Order{CheapTokens: 10, CheapTime: 20 * time.Millisecond}},
		{"P7", e.NonStreaming, &NonStreaming{FP16Dyn, 50 * time.Millisecond}},
		{"variants", e.Variants, Variants{Flip: 8 * time.Second, SessionFor: time.Minute, Notice: "worse"}},
		{"hints", e.RetryAfter, RetryAfter{Fractional: true, Jitter: 0.2, Max: 5 * time.Second, Share: 0.4, Grace: 2 * time.Second}},
		{"shares", e.Shares, p.Shares},
		{"headroom", e.Queue.Headroom, p.Queue.Headroom},
		{"base P7", p.NonStreaming.MaxWait, 150 * time.Millisecond},
	})
}

// TestNonStreamingNarrows (E2, P7): a route's maxWait shortens the wait of
// calls that do not stream; only where routes may loosen it lengthens it.
func TestNonStreamingNarrows(t *testing.T) {
	strict := load(t, "w.yaml", full)
	loose := load(t, "w.yaml", full+"envoy: {allowLoosen: true}\n")
	for _, tt := range []struct {
		p       *Policy
		maxWait string
		want    time.Duration
		longest time.Duration // of critical
	}{
		{strict, "", 150 * time.Millisecond, 200 * time.Millisecond},
		{strict, "50ms", 50 * time.Millisecond, 50 * time.Millisecond},
		{strict, "180ms", 150 * time.Millisecond, 180 * time.Millisecond},
		{strict, "0", 0, 0},
		{loose, "2s", 2 * time.Second, 2 * time.Second},
	} {
		e, err := tt.p.For(Overrides{MaxWait: tt.maxWait})
		if err != nil {
			t.Errorf("%s: %v", tt.maxWait, err)
			continue
		}
		if e.NonStreaming.MaxWait != tt.want || e.NonStreaming.Variant != FP16Dyn || e.Longest(Critical) != tt.longest {
			t.Errorf("maxWait %q: %+v, critical held for %s at most; want %s, %s", tt.maxWait, *e.NonStreaming, e.Longest(Critical), tt.want, tt.longest)
		}
	}
	if strict.NonStreaming.MaxWait != 150*time.Millisecond {
		t.Error("a route changed the policy")
	}
	only := load(t, "w.yaml", minimal+"nonStreaming: {maxWait: 3s}\n")
	if e, err := only.For(Overrides{MaxWait: "2s"}); err != nil || e.NonStreaming.MaxWait != 2*time.Second || e.Longest(Critical) != 2*time.Second {
		t.Errorf("shortens this wait alone: %v", err)
	}
	if _, err := only.For(Overrides{MaxWait: "4s"}); err == nil || !strings.Contains(err.Error(), "may only shorten: at most 3s here") {
		t.Errorf("4s: %v", err)
	}
}

// TestNotes: what a valid policy means where that may surprise.
func TestNotes(t *testing.T) {
	three := "identity: {issuers: [{issuer: i, audiences: [a], jwks: {file: j}}]}\nversion: 1\n" +
		"pools: [{name: p, variant: fp16, seats: {requests: 9}}, {name: q, variant: int8, seats: {requests: 9}}]\n" +
		"models: [{name: m, pools: [p, q]}, {name: n, pools: [p]}]\n"
	for _, tt := range []struct {
		name, text string
		want       []string
	}{
		{"missing pools", three, []string{
			"model m: class standard asks for fp16-dyn, no pool has it: p (fp16) is used, the next higher precision",
			"model n: class standard asks for fp16-dyn, no pool has it: p (fp16) is used, the next higher precision",
			"model n: class standard degrades when its wait is over, but no pool is below fp16: it gets 429 then",
			"model n: class batch asks for int8, no pool has it: p (fp16) is used, the next higher precision",
		}},
		{"nonStreaming", three + "nonStreaming: {variant: fp16-dyn}\n", []string{
			"model m: nonStreaming asks for fp16-dyn, no pool has it: p (fp16) is used, the next higher precision"}},
		{"degrade in one model", three + "classes: [{name: standard, onExpiry: degrade}]\n", []string{
			"model n: class standard degrades when its wait is over, but no pool is below fp16: it gets 429 then"}},
		{"ageing", three + "classes: [{name: critical, maxWait: 100ms}]\n", []string{
			"class critical waits 100ms, no longer than queue.order.ageing, 100ms: its long requests may be overtaken as long as they wait"}},
		{"ageing of a profile", three + "profiles: {slow: {queue: {order: {ageing: 500ms}}}}\n", []string{
			"profile slow: class standard waits 500ms, no longer than queue.order.ageing, 500ms: its long requests may be overtaken as long as they wait"}},
		{"tier without a share", three + "tiers: [{name: vip}]\n", []string{
			"tier vip has no share of the seats: it runs only on what other tiers leave"}},
		{"one seat", three + "server: {replicas: 5}\nstore: {redis: {addresses: [\"r:6379\"]}}\n", []string{
			"pool p: each weir has one seat to give: there is none for the priority lane",
			"pool q: each weir has one seat to give: there is none for the priority lane"}},
	} {
		got := load(t, "w.yaml", tt.text).Notes()
		for _, want := range tt.want {
			if !slices.Contains(got, want) {
				t.Errorf("%s: missing %q in\n%s", tt.name, want, strings.Join(got, "\n"))
			}
		}
	}
	for name, text := range map[string]string{
		"no lane":   "shares: {priority: 0}\nserver: {replicas: 4}\n",
		"no header": "priorityHeaders: []\nserver: {replicas: 4}\n",
		"no shares": "tiers: [{name: gold, share: 0}, {name: silver, share: 0}, {name: bronze, share: 0}]\n",
		"no queue":  "queue: {length: {max: 0}, order: {ageing: 10s}}\n",
	} {
		for _, n := range load(t, "w.yaml", minimal+text).Notes() {
			if strings.Contains(n, "lane") || strings.Contains(n, "share of the seats") || strings.Contains(n, "ageing") {
				t.Errorf("%s: %s", name, n)
			}
		}
	}
}

// By default a class may degrade to nowhere, a file may not say so: unless it
// does not wait, or a stand-in (V1) leaves a pool below.
func TestDegradeTarget(t *testing.T) {
	stand := strings.NewReplacer("pools: [p]}]", "pools: [p, q]}]", "{requests: 4}}]", "{requests: 4}}, {name: q, variant: int8, seats: {requests: 4}}]").Replace(minimal)
	for name, text := range map[string]string{
		"default":          minimal,
		"said of one else": minimal + "classes: [{name: batch, onExpiry: drop}]\n",
		"does not wait":    minimal + "classes: [{name: standard, maxWait: 0, onExpiry: degrade}]\n",
		"stand-in":         stand + "classes: [{name: standard, onExpiry: degrade}]\n",
	} {
		p, err := Load("w.yaml", []byte(text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if q := load(t, "w.yaml", string(p.Dump())); !same(p, q) {
			t.Errorf("%s: the dump is another policy", name)
		}
	}
	if _, err := Load("w.yaml", []byte(stand+"classes: [{name: batch, onExpiry: degrade}]\n")); err == nil || !strings.Contains(err.Error(), "class batch has nowhere to go") {
		t.Errorf("below int8 there is nothing: %v", err)
	}
}

// None of these keys waits for a restart.
func TestChangesAreHot(t *testing.T) {
	running, p := load(t, "w.yaml", minimal), load(t, "w.yaml", full)
	merged, restart, err := p.WithRunning(running)
	if err != nil || restart != nil || merged != p {
		t.Errorf("%v, %v", restart, err)
	}
	// One that must wait leaves all others in force.
	p = load(t, "w.yaml", full+"server: {replicas: 2}\n")
	merged, restart, err = p.WithRunning(running)
	if err != nil || !reflect.DeepEqual(restart, []string{"server"}) || merged.Shares != p.Shares || merged.Pools[0].Adaptive.Max != 256 {
		t.Errorf("%v, %v", restart, err)
	}
	// And what does not fit the replicas that run is refused.
	running = load(t, "w.yaml", strings.Replace(minimal, "requests: 4", "requests: 64", 1)+"server: {replicas: 10}\n")
	if _, _, err = load(t, "w.yaml", full).WithRunning(running); err == nil || !strings.Contains(err.Error(), "pools[0].seats.adaptive.min: must be at least server.replicas, 10") {
		t.Errorf("%v", err)
	}
}

func TestReportOfSeats(t *testing.T) {
	p := load(t, "w.yaml", full)
	contains(t, Report(p),
		"#     critical  p (fp16, 8 to 256 seats for a ttft of 900ms, 5000 tokens)\n",
		"#     batch     low (int8, 20 seats, another weir behind)\n#     by cost: of the pools at or below these the cheapest\n#   other\n",
		"#   without streaming, any class: a free seat of fp16-dyn, else waits 150ms, then 429\n",
		"# seats of a pool (idle shares are lent)\n#   headroom             12.5%\n#   priority lane        5% of the rest\n"+
			"#   tier gold            20% of what remains\n#   tier silver          30% of what remains\n#   tier bronze          0% of what remains\n"+
			"#   tier vip             50% of what remains\n#   streaming            60% of a tier's at most, while others of it wait\n",
		"#   queue.order.ageing: 0s\n", "#   nonStreaming.maxWait: 50ms\n", "#   variants.choose: class\n",
	)
	got, err := ReportSample(p, Sample{Tenant: "x", Tier: "vip", Path: "/v1/chat/completions", Model: "m", Class: "critical"})
	if err != nil {
		t.Fatal(err)
	}
	contains(t, got, "seats     50% guaranteed to the tier\n", "          without streaming: p (fp16, 8 to", "          by cost: of the pools at or below the cheapest\n",
		"          without streaming: a free seat of fp16-dyn, else waits 150ms, then 429\n", "held      200ms at most")
	got, err = ReportSample(p, Sample{Tenant: "x", Tier: "unknown", Path: "/v1/chat/completions", Model: "other"})
	if err != nil {
		t.Fatal(err)
	}
	contains(t, got, "seats     30% guaranteed to the tier\n")
	if strings.Contains(got, "by cost") {
		t.Errorf("one pool, and a choice:\n%s", got)
	}
}
