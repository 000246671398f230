package scrape

import (
	"slices"
	"strings"
	"time"

	"github.com/weirproxy/weir/gpu"
)

// containers reads cAdvisor's CPU counters (T4): the load is the CPU time
// that the matching control groups used between two looks, of what they may
// use: their quotas, or the whole machine where one has none. Without a match
// it is the root group, the machine. Of groups within each other the outer
// one counts. Time is the series' own stamp, since cAdvisor serves figures of
// up to some seconds ago, else that of the look.
type containers struct {
	page
	all    bool // without a match
	groups map[string]*group
	round  uint64
	cores  gpu.Value // of the machine
}

// group is a control group.
type group struct {
	round         uint64
	path          string    // its id, with a separator that sorts first
	used          gpu.Value // CPU seconds
	at            time.Time
	quota, period gpu.Value // microseconds
	usage         counter
	rate          gpu.Value // CPUs in use
	moved         time.Time // when the rate was made
}

// maxHold is how long the rate of a group whose figures did not move stays:
// cAdvisor looks at each group at most every some seconds, in its own time.
const maxHold = time.Minute

func newContainers(match map[string]string) *containers {
	return &containers{page: newPage(match), all: len(match) == 0, groups: make(map[string]*group)}
}

func (c *containers) begin(now time.Time) {
	c.page.begin(now)
	if len(c.groups) > maxSeries {
		clear(c.groups)
	}
	c.round++
	c.cores = gpu.Value{}
}

func (c *containers) want(name []byte) bool {
	switch string(name) {
	case "container_cpu_usage_seconds_total", "container_spec_cpu_quota", "container_spec_cpu_period", "machine_cpu_cores":
		return true
	}
	return false
}

func (c *containers) take(s *series) {
	if string(s.name) == "machine_cpu_cores" { // its labels are the machine's
		if c.plausible(s.value, 1e6) && s.value > 0 {
			c.cores = gpu.Some(s.value)
		}
		return
	}
	if c.all && string(s.label("id")) != "/" {
		return
	}
	if cpu := s.label("cpu"); len(cpu) > 0 && string(cpu) != "total" {
		return // one CPU's share
	}
	if !c.match.pass(s) {
		return
	}
	g := c.group(s.label("id"))
	switch string(s.name) {
	case "container_spec_cpu_quota":
		if s.value > 0 && c.plausible(s.value, maxSeconds) { // below 0 = no quota
			g.quota = gpu.Some(s.value)
		}
	case "container_spec_cpu_period":
		if c.plausible(s.value, maxSeconds) {
			g.period = gpu.Some(s.value)
		}
	default:
		if c.fresh(s) && c.plausible(s.value, maxSeconds) {
			g.used, g.at = gpu.Some(s.value), c.now
			if s.stamp > 0 {
				g.at = time.UnixMilli(s.stamp)
			}
		}
	}
}

func (c *containers) group(id []byte) *group {
	g := c.groups[string(id)]
	if g == nil {
		g = &group{path: strings.ReplaceAll(string(id), "/", "\x00")}
		c.groups[string(id)] = g
	}
	if g.round != c.round {
		*g = group{round: c.round, path: g.path, usage: g.usage, rate: g.rate, moved: g.moved}
	}
	return g
}

func (c *containers) end() (gpu.Sample, error) {
	if !c.known {
		return gpu.Sample{}, errEmpty
	}
	var used, quotas sum
	outer := c.outer()
	for _, g := range outer {
		used.take(c.rate(g))
		if g.quota.OK && g.period.V > 0 {
			quotas.take(gpu.Some(g.quota.V / g.period.V))
		}
	}
	s := c.sample()
	capacity := c.cores
	if quotas.n == len(outer) {
		capacity = gpu.Some(quotas.v)
	}
	if used.n > 0 && used.n == len(outer) && capacity.V > 0 {
		s.Load = gpu.Some(min(used.v/capacity.V, 1))
	}
	return s, nil
}

// sum gathers values, and how many there were.
type sum struct {
	v float64
	n int
}

func (s *sum) take(v gpu.Value) {
	if v.OK {
		s.v += v.V
		s.n++
	}
}

// rate is the CPUs that a group uses.
func (c *containers) rate(g *group) gpu.Value {
	if g.at.Equal(g.usage.at) && c.now.Sub(g.moved).Abs() <= maxHold {
		return g.rate
	}
	rate, reset := g.usage.grow(g.used, g.at)
	if reset {
		c.faults[gpu.FaultReset]++
	}
	g.rate, g.moved = rate, c.now
	return rate
}

// outer are the groups of this look that lie in no other one.
func (c *containers) outer() []*group {
	var list []*group
	for _, g := range c.groups {
		if g.round == c.round && g.used.OK {
			list = append(list, g)
		}
	}
	slices.SortFunc(list, func(a, b *group) int { return strings.Compare(a.path, b.path) })
	var last *group
	return slices.DeleteFunc(list, func(g *group) bool {
		if last != nil && strings.HasPrefix(g.path, strings.TrimSuffix(last.path, "\x00")+"\x00") {
			return true
		}
		last = g
		return false
	})
}
