// Package discovery knows where a cluster's endpoints are (G2): from the
// policy, from a file, from DNS, or from a file with Kubernetes EndpointSlices;
// and, where there is another region to go to, whether they live: who misses
// three heartbeats, TCP connects, in a row is degraded until one succeeds.
//
// Sources: discovery.k8s.io/v1 EndpointSlice (conditions, ports, zone);
// envoy.config.endpoint.v3 (an endpoint is an IP address, priorities are
// counted from 0).
//
// Invariants: a View never changes once handed out, and two Views of one
// cluster with equal Version are equal. What cannot be read (a broken file, a
// name that does not resolve) leaves the last good list of its source as it
// is; an endpoint is lost only where a source says so. An address stands once
// in a View, under the first priority that has it. Heartbeats make a host worse,
// never better, than its source says, and say nothing where nobody answers.
//
// Reading text is pure (parseList, parseSlices), and so is putting lists
// together (ledger) and counting heartbeats (beats); Cluster is the shell that
// polls.
package discovery

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Health is an endpoint's health as its source tells it. The zero value is
// Healthy.
type Health uint8

// The healths. Unhealthy gets no new requests, nor does Draining, which also
// leaves soon; Degraded gets them when the healthy ones do not suffice.
const (
	Healthy Health = iota
	Degraded
	Unhealthy
	Draining
)

// String is the word used in files.
func (h Health) String() string {
	return [...]string{"healthy", "degraded", "unhealthy", "draining"}[min(h, Draining)]
}

// ParseHealth reads the word of a health.
func ParseHealth(s string) (Health, error) {
	for h := Healthy; h <= Draining; h++ {
		if h.String() == s {
			return h, nil
		}
	}
	return Healthy, fmt.Errorf("must be healthy, degraded, unhealthy or draining (got %.60q)", s)
}

// Endpoint is one host of a cluster.
type Endpoint struct {
	Address  netip.AddrPort
	Priority int    // 0 is used first
	Region   string // of the policy; "" = none
	Zone     string // of the EndpointSlice; "" = none
	Weight   uint32 // 1..128; 0 = not said, which is 1
	Health   Health
	Subset   Subset // what pools that share a cluster choose it by
}

// View is what is known of one cluster's endpoints. The zero value knows
// nothing. Immutable.
type View struct {
	Version   uint64     // grows with each change; 0 = nothing was read
	Endpoints []Endpoint // by priority, region, zone, address
	Unread    []int      // priorities of which a source was never read: not all of their hosts are known
}

// The bounds of one source.
const (
	maxEndpoints = 10_000
	maxWeight    = 128
	maxFile      = 16 << 20 // bytes
	maxMarks     = 600_000  // line ends and commas: what reading costs goes with them, not with bytes
)

// Order sorts by priority, region, zone and address.
func Order(a, b Endpoint) int {
	switch {
	case a.Priority != b.Priority:
		return a.Priority - b.Priority
	case a.Region != b.Region:
		return strings.Compare(a.Region, b.Region)
	case a.Zone != b.Zone:
		return strings.Compare(a.Zone, b.Zone)
	}
	return a.Address.Compare(b.Address)
}

// ledger puts the lists of a cluster's sources together. Not safe for
// concurrent use.
type ledger struct {
	sets []set
	view View
}

// set is the place of one source.
type set struct {
	priority int
	region   string
	subset   Subset
	read     bool
	list     []Endpoint
}

func newLedger(sets []set) *ledger {
	l := &ledger{sets: sets}
	l.view.Unread = l.unread()
	return l
}

// put takes a source's list and reports whether the view changed. The list
// is not kept.
func (l *ledger) put(i int, list []Endpoint) bool {
	s := &l.sets[i]
	own := slices.Clone(list)
	for j := range own {
		e := &own[j]
		e.Priority, e.Region, e.Subset = s.priority, s.region, s.subset.with(e.Subset)
	}
	slices.SortFunc(own, Order)
	if s.read && slices.Equal(own, s.list) {
		return false
	}
	s.list, s.read = own, true
	l.view = View{Version: l.view.Version + 1, Endpoints: l.merge(), Unread: l.unread()}
	return true
}

// merge keeps an address under the first priority, and there the first set,
// that has it.
func (l *ledger) merge() []Endpoint {
	var all []Endpoint
	for i := range l.sets {
		all = append(all, l.sets[i].list...)
	}
	slices.SortStableFunc(all, func(a, b Endpoint) int { return a.Priority - b.Priority })
	seen := make(map[netip.AddrPort]bool, len(all))
	all = slices.DeleteFunc(all, func(e Endpoint) bool {
		was := seen[e.Address]
		seen[e.Address] = true
		return was
	})
	slices.SortFunc(all, Order)
	return all
}

// unread are the priorities of which a set was never read, in order.
func (l *ledger) unread() []int {
	var out []int
	for i := range l.sets {
		if !l.sets[i].read {
			out = append(out, l.sets[i].priority)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
