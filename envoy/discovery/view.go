// Package discovery knows where a cluster's endpoints are (G2): from the
// policy, from a file, from DNS, or from a file with Kubernetes EndpointSlices.
//
// Sources: discovery.k8s.io/v1 EndpointSlice (conditions, ports, zone);
// envoy.config.endpoint.v3 (an endpoint is an IP address, priorities are
// counted from 0).
//
// Invariants: a View never changes once handed out, and two Views of one
// cluster with equal Version are equal. What cannot be read (a broken file, a
// name that does not resolve) leaves the last good list of its source as it
// is; an endpoint is lost only where a source says so. An address stands once
// in a View, under the first priority that has it.
//
// Reading text is pure (parseList, parseSlices), and so is putting lists
// together (ledger); Cluster is the shell that polls.
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
	return Healthy, fmt.Errorf("must be healthy, degraded, unhealthy or draining (got %q)", s)
}

// Endpoint is one host of a cluster.
type Endpoint struct {
	Address  netip.AddrPort
	Priority int    // 0 is used first
	Region   string // of the policy; "" = none
	Zone     string // of the EndpointSlice; "" = none
	Weight   uint32 // 1..128; 0 = not said, which is 1
	Health   Health
}

// View is what is known of one cluster's endpoints. The zero value knows
// nothing. Immutable.
type View struct {
	Version   uint64     // grows with each change; 0 = nothing was read
	Endpoints []Endpoint // by priority, region, zone, address
	Unread    []int      // priorities whose source was never read: nothing is known of their hosts
}

// The bounds of one source.
const (
	maxEndpoints = 10_000
	maxWeight    = 128
	maxFile      = 16 << 20 // bytes
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
	lists [][]Endpoint // by priority
	read  []bool
	view  View
}

func newLedger(priorities int) *ledger {
	l := &ledger{lists: make([][]Endpoint, priorities), read: make([]bool, priorities)}
	l.view.Unread = l.unread()
	return l
}

// put takes a source's list and reports whether the view changed. The list
// is not kept.
func (l *ledger) put(priority int, region string, list []Endpoint) bool {
	own := slices.Clone(list)
	for i := range own {
		own[i].Priority, own[i].Region = priority, region
	}
	slices.SortFunc(own, Order)
	if l.read[priority] && slices.Equal(own, l.lists[priority]) {
		return false
	}
	l.lists[priority], l.read[priority] = own, true
	l.view = View{Version: l.view.Version + 1, Endpoints: l.merge(), Unread: l.unread()}
	return true
}

// merge keeps an address under the first priority that has it.
func (l *ledger) merge() []Endpoint {
	var all []Endpoint
	seen := make(map[netip.AddrPort]bool)
	for _, list := range l.lists {
		for _, e := range list {
			if !seen[e.Address] {
				seen[e.Address] = true
				all = append(all, e)
			}
		}
	}
	return all
}

func (l *ledger) unread() []int {
	var out []int
	for p, read := range l.read {
		if !read {
			out = append(out, p)
		}
	}
	return out
}
