package xds

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
)

// Node is a connected Envoy, as it was when asked for.
type Node struct {
	ID, Cluster string // of its bootstrap
	Group       string // that admitted it; "" where there are no groups
	SANs        string // of its certificate, a space between; "" = none. Two of one name over other certificates are two
	Peer        string // address of its latest stream
	Release     string // "1.40.0"; "" = it does not say
	Supported   bool   // Release is one that is tested
	Since       time.Time
	Streams     int
	Types       []Type // by name
	Nacks       uint64 // since Since
	LastNack    *Nack  // nil = none
}

// Type is what a node gets of one resource type.
type Type struct {
	Name    string   // "rtds", "eds", "cds"
	Delta   bool     // on its latest stream; else state of the world
	ADS     bool     // on its latest stream
	Streams int      // that carry it
	Names   []string // asked for, in order; "*" = all; 1000 of them where there are more
	Sent    string   // version of the last answer; "" = none
	Acked   string   // version of the last one acknowledged
	// Lag is how long the oldest answer is not acknowledged yet; 0 = none is.
	Lag time.Duration
}

// Nack is a refusal.
type Nack struct {
	At      time.Time
	Type    string
	Version string // of the answer
	Text    string // Envoy's words, cut at 2048 bytes
	Names   []string
}

// node is a Node while it is known.
type node struct {
	id, cluster, release string
	sans                 string
	supported            bool
	group                *group
	peer                 string
	since, left          time.Time
	streams              map[*stream]struct{}
	nacks                uint64
	last                 *Nack
	unknown              map[string]bool // clusters asked for that nobody serves
}

// stream is one xDS stream.
type stream struct {
	caller caller
	delta  bool
	ads    bool
	only   string // type URL of a stream that is not ADS
	opened time.Time
	node   *node        // nil until the first request
	marker *corev3.Node // the one that all its requests carry
	types  map[string]*talk
}

// talk is one type on one stream.
type talk struct {
	names       map[string]struct{}
	listed      []string // of the last state-of-the-world request
	all         bool
	pending     []answer // not acknowledged, oldest first
	sent, acked string
	watch       *watch
	weight      int64 // of the names, see weigh
}

// answer is one response that was sent.
type answer struct {
	nonce, version string
	at             time.Time
	hashes         func() map[string]string // of its resources, by name
}

// minRelease is the oldest minor release of Envoy that is tested.
const minRelease = 36

// releaseOf reads what a node says of its build.
func releaseOf(n *corev3.Node) (release string, supported bool) {
	v := n.GetUserAgentBuildVersion().GetVersion()
	if v == nil || n.GetUserAgentName() != "envoy" {
		return cutText(n.GetUserAgentVersion(), maxRelease), false
	}
	return fmt.Sprintf("%d.%d.%d", v.GetMajorNumber(), v.GetMinorNumber(), v.GetPatch()),
		v.GetMajorNumber() > 1 || v.GetMajorNumber() == 1 && v.GetMinorNumber() >= minRelease
}

// strip leaves of a node its name alone: a node lists all its extensions, 60 KB
// and more for each stream.
func strip(n *corev3.Node) {
	id, cluster := n.GetId(), n.GetCluster()
	proto.Reset(n)
	n.Id, n.Cluster = id, cluster
}

// view is the public form of a node.
func (n *node) view(now time.Time) Node {
	out := Node{
		ID: n.id, Cluster: n.cluster, Group: n.group.name, SANs: n.sans, Peer: n.peer, Release: n.release, Supported: n.supported,
		Since: n.since, Streams: len(n.streams), Nacks: n.nacks,
	}
	if n.last != nil {
		last := *n.last
		out.LastNack = &last
	}
	byType := make(map[string]*Type)
	latest := make(map[string]time.Time)
	for s := range n.streams {
		for typeURL, k := range s.types {
			t := byType[typeURL]
			if t == nil {
				t = &Type{Name: short(typeURL)}
				byType[typeURL] = t
			}
			k.addTo(t, now)
			if !s.opened.Before(latest[typeURL]) {
				latest[typeURL] = s.opened
				t.Delta, t.ADS, t.Sent, t.Acked = s.delta, s.ads, k.sent, k.acked
			}
		}
	}
	for _, t := range byType {
		slices.Sort(t.Names)
		t.Names = slices.Compact(t.Names)
		out.Types = append(out.Types, *t)
	}
	slices.SortFunc(out.Types, func(a, b Type) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func (k *talk) addTo(t *Type, now time.Time) {
	t.Streams++
	if k.all {
		t.Names = append(t.Names, "*")
	}
	for name := range k.names {
		if len(t.Names) >= maxListed {
			break // of a hundred thousand nobody reads all
		}
		t.Names = append(t.Names, name)
	}
	if len(k.pending) > 0 {
		t.Lag = max(t.Lag, now.Sub(k.pending[0].at))
	}
}

// ask takes the names of a delta request.
func (k *talk) ask(subscribe, unsubscribe []string, first bool) {
	if first && len(subscribe) == 0 {
		k.all = true
	}
	for _, name := range subscribe {
		if name == "*" {
			k.all = true
			continue
		}
		if _, had := k.names[name]; !had {
			k.names[name] = struct{}{}
			k.weight += weigh(name)
		}
	}
	for _, name := range unsubscribe {
		if name == "*" {
			k.all = false
			continue
		}
		if _, had := k.names[name]; had {
			delete(k.names, name)
			k.weight -= weigh(name)
		}
	}
}

// list takes the names of a state-of-the-world request; it reports whether
// they are others than before.
func (k *talk) list(names []string, first bool) bool {
	if !first && slices.Equal(names, k.listed) {
		return false
	}
	if len(names) == 0 && (first || k.all && len(k.names) == 0) {
		k.all, k.listed = true, nil
		return true
	}
	k.listed, k.all = names, false
	clear(k.names)
	k.weight = 0
	for _, name := range names {
		if name == "*" {
			k.all = true
			continue
		}
		k.names[name] = struct{}{}
		k.weight += weigh(name)
	}
	return true
}

// take finds the answer that a request speaks of and forgets those before it.
func (k *talk) take(nonce string) (answer, bool) {
	for i, a := range k.pending {
		if a.nonce == nonce {
			k.pending = slices.Delete(k.pending, 0, i+1)
			return a, true
		}
	}
	return answer{}, false
}

func (k *talk) expect(a answer) {
	if len(k.pending) == maxPending {
		k.pending = slices.Delete(k.pending, 0, 1)
	}
	k.pending = append(k.pending, a)
	k.sent = a.version
}
