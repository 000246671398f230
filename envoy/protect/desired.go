package protect

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/policy"
)

// plan is what of a policy protection needs, looked up once. It is immutable;
// make it with newPlan.
type plan struct {
	protection policy.Protection
	scopes     []scope // by name
	byName     map[string]int
}

// scope is one cluster of a plan.
type scope struct {
	policy.Cluster
	pools []pool
	lane  int64 // seats that P8 keeps in its pools
}

type pool struct {
	name  string
	seats int64
}

// newPlan reads a policy.
func newPlan(p *policy.Policy) *plan {
	clusters := p.ProtectedClusters()
	pl := &plan{protection: p.Envoy.Protection, scopes: make([]scope, len(clusters)), byName: make(map[string]int, len(clusters))}
	for i, c := range clusters {
		pl.scopes[i].Cluster = c
		pl.byName[c.Name] = i
	}
	for i := range p.Pools {
		q := &p.Pools[i]
		s := &pl.scopes[pl.byName[q.Cluster]]
		seats := q.Seats.Requests
		if q.Adaptive != nil {
			seats = q.Adaptive.Max
		}
		s.pools = append(s.pools, pool{q.Name, max(seats, 1)})
		s.lane += int64(math.Ceil(float64(p.Shares.Priority)*float64(seats) - 1e-9))
	}
	return pl
}

// desired is what one cluster should have by itself, without hysteresis.
func (pl *plan) desired(c *scope, in *Input) Settings {
	s := Settings{Cluster: c.Name}
	if pl.protection.Off {
		return s
	}
	states, worst := c.states(in)
	switch {
	case worst == breaker.Hard || worst == breaker.HalfOpen || in.Storm || in.Protect:
		s.MaxRetries, s.BudgetPercent, s.MinRetries = new(int64), new(int64), new(int64)
	case worst == breaker.Soft:
		c.halveRetries(&s)
	}
	s.openReasons(states, breaker.Hard)
	dropped := pl.drop(c, states, &s)
	if in.Storm {
		s.because("B7", seen("storm of GOAWAYs: no retries", in.Seen))
	}
	if in.Protect {
		pl.protect(c, in, &s)
	}
	s.openReasons(states, breaker.HalfOpen)
	s.openReasons(states, breaker.Soft)
	if dropped != "" {
		s.because("B10", dropped)
	}
	s.unwell(in)
	return s
}

// states are those of the cluster's pools, nil where a pool's is not told, and
// the worst of them in what it says of retries. Of two that are told for one
// pool the last counts; pools of other clusters do not.
func (c *scope) states(in *Input) (states []*State, worst breaker.State) {
	if len(in.Breakers) == 0 {
		return nil, breaker.Closed
	}
	states = make([]*State, len(c.pools))
	for i := range in.Breakers {
		if k := slices.IndexFunc(c.pools, func(p pool) bool { return p.name == in.Breakers[i].Pool }); k >= 0 {
			states[k] = &in.Breakers[i]
		}
	}
	for _, s := range states {
		if s != nil && s.State <= breaker.HalfOpen {
			worst = max(worst, s.State) // closed, soft, hard, half-open
		}
	}
	return states, worst
}

// halveRetries of a budget, or of the number where there is none.
func (c *scope) halveRetries(s *Settings) {
	half := func(n int64) *int64 { n /= 2; return &n }
	if c.Budget == 0 {
		s.MaxRetries = half(c.MaxRetries)
		return
	}
	s.BudgetPercent, s.MinRetries = half(int64(math.Round(100*float64(c.Budget)))), half(c.MinRetries)
}

// drop sets the share that Envoy drops by dice, and says how it came about; ""
// = the policy has none dropped.
func (pl *plan) drop(c *scope, states []*State, s *Settings) string {
	if pl.protection.HardDrop == 0 || !slices.ContainsFunc(states, open) {
		return ""
	}
	var sum, seats float64
	var parts []string
	for i, p := range c.pools {
		if !open(states[i]) {
			return "nothing is dropped: pool " + p.name + " of this cluster is not open"
		}
		share := pl.shareDropped(states[i])
		sum += share * float64(p.seats)
		seats += float64(p.seats)
		parts = append(parts, fmt.Sprintf("%s %.4g %% (%d seats)", p.name, 100*share, p.seats))
	}
	percent := int64(math.Floor(100*sum/seats + 1e-9))
	if percent <= 0 {
		return ""
	}
	means := "drop_overloads"
	if pl.protection.Shedding == policy.Maintenance {
		means, s.Maintenance = "maintenance", percent
	} else {
		s.Drop = percent
	}
	return fmt.Sprintf("%s %d %%: %s", means, percent, strings.Join(parts, ", "))
}

func open(s *State) bool {
	return s != nil && (s.State == breaker.Soft || s.State == breaker.Hard || s.State == breaker.HalfOpen)
}

// shareDropped of the traffic of a pool that is not closed.
func (pl *plan) shareDropped(s *State) float64 {
	level, held := s.State, 1.0
	if level == breaker.HalfOpen {
		level, held = s.Level, 1-unit(s.Release)
	}
	if level == breaker.Soft {
		return held * unit(float64(pl.protection.SoftDrop))
	}
	return held * unit(float64(pl.protection.HardDrop))
}

// protect scales max_requests (B8).
func (pl *plan) protect(c *scope, in *Input, s *Settings) {
	normal := c.MaxRequests
	share := unit(in.Share)
	twentieths := math.Ceil(20*share - 1e-9)
	n := int64(math.Ceil(twentieths * float64(normal) / 20))
	bound := ""
	for _, b := range []struct {
		least int64
		why   string
	}{
		{1, "never 0"},
		{int64(math.Ceil(unit(float64(pl.protection.Floor))*float64(normal) - 1e-9)), "the floor"},
		{c.lane, "what the priority lane needs"},
		{in.Running, "what is under way"},
	} {
		if n < b.least {
			n, bound = b.least, ", "+b.why
		}
	}
	text := fmt.Sprintf("protect mode, %.0f %% of the usual connections: no retries", 100*share)
	if n < normal {
		s.MaxRequests = &n
		text += fmt.Sprintf(", max_requests %d of %d%s", n, normal, bound)
	}
	s.because("B8", seen(text, in.Seen))
}

// unwell tells endpoints.
func (s *Settings) unwell(in *Input) {
	unwell := 0
	for _, bad := range in.Unwell {
		if bad {
			unwell++
		}
	}
	if unwell == 0 {
		return
	}
	health := Unhealthy
	of := ""
	if in.Hosts > 0 {
		of = fmt.Sprintf(" of %d", in.Hosts)
	}
	if 2*unwell > in.Hosts {
		health = Degraded
	}
	s.Health = make(map[string]Health, unwell)
	for host, bad := range in.Unwell {
		if bad {
			s.Health[host] = health
		}
	}
	s.because("B10", fmt.Sprintf("%d%s endpoints %s by their telemetry: %s", unwell, of, health, some(s.Health)))
}

func (s *Settings) because(rule, text string) { s.Because = append(s.Because, Reason{rule, text}) }

// openReasons are those of the pools in one state.
func (s *Settings) openReasons(states []*State, state breaker.State) {
	for _, p := range states {
		if p == nil || p.State != state {
			continue
		}
		var text string
		switch state {
		case breaker.Hard:
			text = "open at the hard level" + since(p.Since) + ": no retries"
		case breaker.HalfOpen:
			text = fmt.Sprintf("half-open%s, %.4g %% released: no retries", since(p.Since), 100*unit(p.Release))
		default:
			text = "open at the soft level" + since(p.Since)
			if s.BudgetPercent == nil || *s.BudgetPercent > 0 {
				text += ": retries halved"
			}
		}
		if p.Held {
			text += ", held by hand"
		}
		s.because("B10", "pool "+p.Pool+" "+text)
	}
}

func since(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return " since " + clock(t)
}

func clock(t time.Time) string { return t.UTC().Format("15:04:05.000Z") }

func seen(text, seen string) string {
	if seen == "" {
		return text
	}
	return text + " (" + seen + ")"
}

// unit keeps a share within 0..1; what is no number is 0.
func unit(x float64) float64 {
	if !(x > 0) {
		return 0
	}
	return min(x, 1)
}

// some names at most five hosts.
func some(m map[string]Health) string {
	names := slices.Sorted(maps.Keys(m))
	if len(names) > 5 {
		return strings.Join(names[:5], ", ") + fmt.Sprintf(" and %d more", len(names)-5)
	}
	return strings.Join(names, ", ")
}

// union of the hosts of both, sorted.
func union(a, b map[string]Health) []string {
	names := slices.Collect(maps.Keys(a))
	for name := range b {
		if _, both := a[name]; !both {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
