package protect

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/policy"
)

// start is when the tests begin.
func start() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

// street is a policy with cluster "chat" of pools "big" (300 seats) and
// "small" (100), "infer" of pool "infer" (200), and "aside" without a pool.
func street(change func(*policy.Policy)) *policy.Policy {
	p := policy.Default()
	p.Envoy.Protection.Calm = 5 * time.Second
	p.Pools = []policy.Pool{
		{Name: "big", Cluster: "chat", Seats: policy.Seats{Requests: 300}},
		{Name: "small", Cluster: "chat", Seats: policy.Seats{Requests: 100}},
		{Name: "infer", Cluster: "infer", Seats: policy.Seats{Requests: 200}},
	}
	p.Envoy.Clusters = nil
	for _, name := range []string{"chat", "infer", "aside"} {
		p.Envoy.Clusters = append(p.Envoy.Clusters, policy.Cluster{
			Name: name, MaxConnections: 1024, MaxPending: 1024, MaxRequests: 1000, MaxRetries: 3, Budget: 0.2, MinRetries: 3,
		})
	}
	if change != nil {
		change(p)
	}
	return p.Finish()
}

func shares(soft, hard policy.Ratio) func(*policy.Policy) {
	return func(p *policy.Policy) {
		p.Envoy.Protection.SoftDrop, p.Envoy.Protection.HardDrop = soft, hard
		p.Envoy.Protection.Shedding = policy.Maintenance
	}
}

func pools(states ...breaker.State) []State {
	var all []State
	for i, s := range states {
		p := State{Pool: [...]string{"big", "small"}[i], State: s, Since: start()}
		if s == breaker.HalfOpen {
			p.Level, p.Release = breaker.Hard, 0.25
		}
		all = append(all, p)
	}
	return all
}

// numbers writes the told numbers of s: key without its prefix = value.
func numbers(s Settings) string {
	var all []string
	for key, v := range s.Runtime() {
		key = strings.TrimPrefix(strings.TrimPrefix(key, "circuit_breakers."+s.Cluster+".default."), "upstream.")
		all = append(all, fmt.Sprint(key, "=", v))
	}
	if s.Drop != 0 {
		all = append(all, fmt.Sprint("drop=", s.Drop))
	}
	for _, host := range slices.Sorted(maps.Keys(s.Health)) {
		all = append(all, host+"="+s.Health[host].String())
	}
	return strings.Join(all, " ")
}

const (
	stopped = "max_retries=0 retry_budget.budget_percent=0 retry_budget.min_retry_concurrency=0"
	halved  = "retry_budget.budget_percent=10 retry_budget.min_retry_concurrency=1"
)

func TestDesired(t *testing.T) {
	const closed, soft, hard, half = breaker.Closed, breaker.Soft, breaker.Hard, breaker.HalfOpen
	for _, c := range []struct {
		name   string
		change func(*policy.Policy)
		in     Input
		want   string
		says   string // all of it, separated by |, is in the reasons, in this order
	}{
		{name: "nothing is known", in: Input{Cluster: "chat"}},
		{name: "closed", in: Input{Cluster: "chat", Breakers: pools(closed, closed)}},
		{name: "soft", in: Input{Cluster: "chat", Breakers: pools(soft, closed)}, want: halved,
			says: "pool big open at the soft level since 12:00:00.000Z: retries halved"},
		{name: "soft without a budget", change: func(p *policy.Policy) { p.Envoy.Clusters[0].Budget = 0 },
			in: Input{Cluster: "chat", Breakers: pools(soft, closed)}, want: "max_retries=1"},
		{name: "hard", in: Input{Cluster: "chat", Breakers: pools(closed, hard)}, want: stopped,
			says: "pool small open at the hard level since 12:00:00.000Z: no retries"},
		{name: "half-open", in: Input{Cluster: "chat", Breakers: pools(half, closed)}, want: stopped,
			says: "pool big half-open since 12:00:00.000Z, 25 % released: no retries"},
		{name: "the worst pool counts", in: Input{Cluster: "chat", Breakers: pools(soft, hard)}, want: stopped,
			says: "pool small open at the hard level|pool big open at the soft level"},
		{name: "held by hand", in: Input{Cluster: "chat", Breakers: []State{{Pool: "big", State: hard, Held: true}}}, want: stopped,
			says: "pool big open at the hard level: no retries, held by hand"},
		{name: "a pool of another cluster", in: Input{Cluster: "infer", Breakers: pools(hard, hard)}},
		{name: "told twice", in: Input{Cluster: "chat", Breakers: append(pools(hard), pools(closed)...)}},
		{name: "a state that does not exist", in: Input{Cluster: "chat", Breakers: pools(17, closed)}},
		{name: "storm", in: Input{Cluster: "infer", Storm: true, Seen: "9 GOAWAYs/s, 60 % of 40 connections"}, want: stopped,
			says: "storm of GOAWAYs: no retries (9 GOAWAYs/s, 60 % of 40 connections)"},
		{name: "protected, a third left", in: Input{Cluster: "chat", Protect: true, Share: 1. / 3}, want: "max_requests=350 " + stopped,
			says: "protect mode, 33 % of the usual connections: no retries, max_requests 350 of 1000"},
		{name: "protected, nothing left: floor", in: Input{Cluster: "chat", Protect: true}, want: "max_requests=100 " + stopped,
			says: "max_requests 100 of 1000, the floor"},
		{name: "the lane is above the floor", change: func(p *policy.Policy) { p.Shares.Priority = 0.5 },
			in: Input{Cluster: "chat", Protect: true}, want: "max_requests=200 " + stopped, says: "what the priority lane needs"},
		{name: "an adaptive pool's lane", change: func(p *policy.Policy) { p.Pools[0].Adaptive = &policy.Adaptive{Min: 1, Max: 3000} },
			in: Input{Cluster: "chat", Protect: true}, want: "max_requests=310 " + stopped},
		{name: "what runs is above both", in: Input{Cluster: "chat", Protect: true, Share: 0.1, Running: 432}, want: "max_requests=432 " + stopped,
			says: "what is under way"},
		{name: "more runs than the file allows", in: Input{Cluster: "chat", Protect: true, Running: 5000}, want: stopped},
		{name: "a floor of 0", change: func(p *policy.Policy) { p.Envoy.Protection.Floor, p.Shares.Priority = 0, 0 },
			in: Input{Cluster: "chat", Protect: true}, want: "max_requests=1 " + stopped},
		{name: "a share that is no number", in: Input{Cluster: "chat", Protect: true, Share: math.NaN()}, want: "max_requests=100 " + stopped},
		{name: "a share above 1", in: Input{Cluster: "chat", Protect: true, Share: math.Inf(1)}, want: stopped},
		{name: "storm and protected and hard", in: Input{Cluster: "chat", Protect: true, Share: 0.5, Storm: true, Breakers: pools(hard, closed)},
			want: "max_requests=500 " + stopped, says: "pool big open|storm of GOAWAYs|protect mode"},

		{name: "dropped at the hard level", change: shares(0.2, 0.6), in: Input{Cluster: "chat", Breakers: pools(hard, hard)},
			want: stopped + " maintenance_mode.chat=60"},
		{name: "dropped by seats", change: shares(0.2, 0.6), in: Input{Cluster: "chat", Breakers: pools(hard, soft)},
			want: stopped + " maintenance_mode.chat=50", says: "pool big|pool small|maintenance 50 %: big 60 % (300 seats), small 20 % (100 seats)"},
		{name: "half-open drops what is not released", change: shares(0.2, 0.6), in: Input{Cluster: "chat", Breakers: pools(half, hard)},
			want: stopped + " maintenance_mode.chat=48"}, // (0.45*300 + 0.6*100) / 400 = 48.75
		{name: "the other pool is closed", change: shares(0.2, 0.6), in: Input{Cluster: "chat", Breakers: pools(hard, closed)},
			want: stopped, says: "pool big open|nothing is dropped: pool small of this cluster is not open"},
		{name: "nothing is known of the other pool", change: shares(0.2, 0.6), in: Input{Cluster: "chat", Breakers: pools(hard)}, want: stopped},
		{name: "by drop_overloads", change: func(p *policy.Policy) {
			shares(0.2, 0.6)(p)
			p.Envoy.Protection.Shedding = policy.DropOverload
		}, in: Input{Cluster: "chat", Breakers: pools(soft, soft)}, want: halved + " drop=20", says: "drop_overloads 20 %"},

		{name: "one of three unwell", in: Input{Cluster: "chat", Hosts: 3, Unwell: map[string]bool{"10.0.0.1:80": true, "10.0.0.2:80": false}},
			want: "10.0.0.1:80=unhealthy", says: "1 of 3 endpoints unhealthy by their telemetry: 10.0.0.1:80"},
		{name: "two of three unwell", in: Input{Cluster: "chat", Hosts: 3, Unwell: map[string]bool{"10.0.0.1:80": true, "10.0.0.2:80": true}},
			want: "10.0.0.1:80=degraded 10.0.0.2:80=degraded"},
		{name: "of how many nobody knows", in: Input{Cluster: "chat", Unwell: map[string]bool{"10.0.0.1:80": true}}, want: "10.0.0.1:80=degraded"},
		{name: "all well", in: Input{Cluster: "chat", Hosts: 1, Unwell: map[string]bool{"10.0.0.1:80": false}}},

		{name: "switched off", change: func(p *policy.Policy) { p.Envoy.Protection.Off = true },
			in: Input{Cluster: "chat", Storm: true, Protect: true, Breakers: pools(hard, hard), Unwell: map[string]bool{"a": true}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := wanted(newPlan(street(c.change)), c.in)
			if got := numbers(s); got != c.want {
				t.Errorf("desired %q, want %q", got, c.want)
			}
			if (len(s.Because) > 0) != (c.want != "") {
				t.Errorf("%d reasons for %q", len(s.Because), c.want)
			}
			var texts []string
			for _, r := range s.Because {
				texts = append(texts, r.Text)
			}
			rest := strings.Join(texts, "\n")
			for part := range strings.SplitSeq(c.says, "|") {
				_, after, found := strings.Cut(rest, part)
				if !found {
					t.Fatalf("the reasons do not say %q here:\n%s", part, strings.Join(texts, "\n"))
				}
				rest = after
			}
		})
	}
}

// wanted is what the input's cluster should have by itself.
func wanted(pl *plan, in Input) Settings { return pl.desired(&pl.scopes[pl.byName[in.Cluster]], &in) }

func TestUnknownClusterIsPassedOver(t *testing.T) {
	p := street(nil)
	s, changed, _ := new(Keeper).Step(start(), []Input{{Cluster: "nobody", Storm: true}}, p)
	if len(s) != len(p.Envoy.Clusters) || len(changed) != 0 {
		t.Errorf("%d clusters and changes %v for one that the policy does not have", len(s), changed)
	}
}

// TestRuntimeKeys holds the keys against those that Envoy was seen to obey;
// also with names as Istio writes them.
func TestRuntimeKeys(t *testing.T) {
	n := func(v int64) *int64 { return &v }
	const c = "outbound|8080||m.ns.svc.cluster.local"
	s := Settings{Cluster: c, MaxConnections: n(1), MaxPending: n(2), MaxRequests: n(3), MaxRetries: n(4), BudgetPercent: n(5), MinRetries: n(6), Maintenance: 7, Drop: 8}
	want := map[string]int64{
		"circuit_breakers." + c + ".default.max_connections":                    1,
		"circuit_breakers." + c + ".default.max_pending_requests":               2,
		"circuit_breakers." + c + ".default.max_requests":                       3,
		"circuit_breakers." + c + ".default.max_retries":                        4,
		"circuit_breakers." + c + ".default.retry_budget.budget_percent":        5,
		"circuit_breakers." + c + ".default.retry_budget.min_retry_concurrency": 6,
		"upstream.maintenance_mode." + c:                                        7,
	}
	if got := maps.Collect(s.Runtime()); !maps.Equal(got, want) {
		t.Errorf("keys are %v, want %v", got, want)
	}
	if back := measureOf(&s).settings(c); numbers(back) != numbers(s) {
		t.Errorf("%q became %q", numbers(s), numbers(back))
	}
}
