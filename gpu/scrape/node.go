package scrape

import (
	"time"

	"github.com/weirproxy/weir/gpu"
)

// node reads node-exporter's CPU counters (T4): the load is the share of time
// between two looks in which the node's CPUs were not idle. Time is the
// counters' own sum, so that neither a late look nor a clock that is set
// matters. Waiting for a disk is idle time: a CPU that waits can be had. A
// CPU whose counters fell (a restart) or that was not there is left out of
// one look.
type node struct {
	page
	cpus  map[uint64]*cpu
	round uint64
}

// cpu is the counters of one CPU at the last two looks that had it.
type cpu struct{ now, last times }

// times are seconds at one look.
type times struct {
	round     uint64
	idle, all float64
	partial   bool // a mode could not be read
}

func newNode(match map[string]string) *node {
	return &node{page: newPage(match), cpus: make(map[uint64]*cpu)}
}

func (n *node) begin(now time.Time) {
	n.page.begin(now)
	if len(n.cpus) > maxSeries {
		clear(n.cpus)
	}
	n.round++
}

func (n *node) want(name []byte) bool { return string(name) == "node_cpu_seconds_total" }

func (n *node) take(s *series) {
	if !n.fresh(s) {
		return
	}
	id := n.labels(s, filter{{name: "mode"}})
	c := n.cpus[id]
	if c == nil {
		c = new(cpu)
		n.cpus[id] = c
	}
	if c.now.round != n.round {
		c.now, c.last = times{round: n.round}, c.now
	}
	if !n.plausible(s.value, maxSeconds) {
		c.now.partial = true
		return
	}
	c.now.all += s.value
	if m := s.label("mode"); string(m) == "idle" || string(m) == "iowait" {
		c.now.idle += s.value
	}
}

// maxSeconds bounds a counter of CPU time: a thousand CPUs for a century.
const maxSeconds = 1e12

func (n *node) end() (gpu.Sample, error) {
	if !n.known {
		return gpu.Sample{}, errEmpty
	}
	var idle, all float64
	for _, c := range n.cpus {
		now, last := c.now, c.last
		if now.round != n.round || last.round == 0 || last.round != n.round-1 || now.partial || last.partial {
			continue
		}
		if now.idle < last.idle || now.all < last.all {
			n.faults[gpu.FaultReset]++
			continue
		}
		idle += now.idle - last.idle
		all += now.all - last.all
	}
	s := n.sample()
	if all > 0 {
		s.Load = gpu.Some(1 - min(idle/all, 1))
	}
	return s, nil
}
