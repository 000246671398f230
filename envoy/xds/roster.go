package xds

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// roster knows who is connected. A node that left is remembered for a while
// with what it refused. Safe for concurrent use.
type roster struct {
	maxNodes, maxStreams int
	maxHeld              int64

	mu      sync.Mutex
	streams map[streamKey]*stream
	markers map[*corev3.Node]*stream
	nodes   map[nodeKey]*node
	held    int64 // weight of the names of all streams
	counts  counts
}

// streamKey is the caches' number of a stream; delta streams count apart.
type streamKey struct {
	delta bool
	id    int64
}

// nodeKey is who a node is: what it says of itself, and what its certificate
// says, so that none can refuse in the name of another.
type nodeKey struct {
	id, cluster, sans string
	group             *group
}

type counts struct {
	sent, acked, nacked map[string]uint64 // by type URL
	refused             map[string]uint64 // streams, by reason
	unserved            map[string]uint64 // requests for types that are not served
}

// The reasons for refusing a stream.
const (
	refusedGroup   = "group"
	refusedNodes   = "nodes"
	refusedStreams = "streams"
	refusedNode    = "identity"
	refusedNames   = "names"
	refusedTypes   = "types"
)

// remember is how long a node that left is known.
const remember = 10 * time.Minute

func newRoster(o *Options) *roster {
	return &roster{
		maxNodes: o.MaxNodes, maxStreams: o.MaxStreams, maxHeld: maxHeld,
		streams: make(map[streamKey]*stream), markers: make(map[*corev3.Node]*stream), nodes: make(map[nodeKey]*node),
		counts: counts{
			sent: make(map[string]uint64), acked: make(map[string]uint64), nacked: make(map[string]uint64),
			refused: make(map[string]uint64), unserved: make(map[string]uint64),
		},
	}
}

// open takes a stream.
func (r *roster) open(now time.Time, key streamKey, c caller, typeURL string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.streams) >= r.maxStreams {
		r.counts.refused[refusedStreams]++
		return status.Errorf(codes.ResourceExhausted, "weir has %d xDS streams and takes no more", r.maxStreams)
	}
	r.streams[key] = &stream{
		caller: c, delta: key.delta, ads: typeURL == resourcev3.AnyType, only: typeURL, opened: now, types: make(map[string]*talk),
	}
	return nil
}

// close forgets a stream.
func (r *roster) close(now time.Time, key streamKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.streams[key]
	delete(r.streams, key)
	if s == nil {
		return
	}
	for _, k := range s.types {
		r.held -= k.weight
	}
	if s.node == nil {
		return
	}
	delete(r.markers, s.marker)
	delete(s.node.streams, s)
	if len(s.node.streams) == 0 {
		s.node.left = now
	}
}

// meet gives a stream its node at its first request and holds it to it. It
// returns the node where this is its first stream, and nodes that had to be
// forgotten for it. The caller holds mu.
func (r *roster) meet(now time.Time, s *stream, n *corev3.Node, groups []*group) (fresh *node, gone []*node, err error) {
	if s.node != nil {
		if n.GetId() != "" && (n.GetId() != s.node.id || n.GetCluster() != s.node.cluster) {
			r.counts.refused[refusedNode]++
			return nil, nil, status.Errorf(codes.InvalidArgument, "node %q was %q before on this stream", cutText(n.GetId(), maxIdentity), s.node.id)
		}
		return nil, nil, nil
	}
	if len(n.GetId()) > maxIdentity || len(n.GetCluster()) > maxIdentity {
		r.counts.refused[refusedNode]++
		return nil, nil, status.Errorf(codes.InvalidArgument, "node.id and node.cluster must have at most %d bytes (got %d and %d)", maxIdentity, len(n.GetId()), len(n.GetCluster()))
	}
	i := slices.IndexFunc(groups, func(g *group) bool { return admits(&g.match, n.GetId(), n.GetCluster(), s.caller) })
	if i < 0 {
		r.counts.refused[refusedGroup]++
		return nil, nil, status.Errorf(codes.PermissionDenied, "no group of envoy.xds.nodes admits node %q of cluster %q", n.GetId(), n.GetCluster())
	}
	key := nodeKey{n.GetId(), n.GetCluster(), strings.Join(s.caller.sans, " "), groups[i]}
	known := r.nodes[key]
	if known == nil {
		if gone = r.room(); gone == nil && len(r.nodes) >= r.maxNodes {
			r.counts.refused[refusedNodes]++
			return nil, nil, status.Errorf(codes.ResourceExhausted, "weir serves %d nodes and takes no more", r.maxNodes)
		}
		known = &node{id: key.id, cluster: key.cluster, sans: key.sans, group: groups[i], streams: make(map[*stream]struct{}), unknown: make(map[string]bool)}
		r.nodes[key] = known
	}
	if len(known.streams) == 0 {
		fresh, known.since = known, now
		known.release, known.supported = releaseOf(n)
	}
	if n == nil {
		n = new(corev3.Node)
	}
	strip(n)
	s.node, s.marker = known, n
	known.peer, known.left = s.caller.address, time.Time{}
	known.streams[s] = struct{}{}
	r.markers[n] = s
	return fresh, gone, nil
}

// room makes room for one node among those that left.
func (r *roster) room() []*node {
	if len(r.nodes) < r.maxNodes {
		return nil
	}
	for key, n := range r.nodes {
		if len(n.streams) == 0 {
			delete(r.nodes, key)
			return []*node{n}
		}
	}
	return nil
}

// expire forgets nodes that left long ago and returns them.
func (r *roster) expire(now time.Time) []*node {
	r.mu.Lock()
	defer r.mu.Unlock()
	var gone []*node
	for key, n := range r.nodes {
		if len(n.streams) == 0 && now.Sub(n.left) >= remember {
			delete(r.nodes, key)
			gone = append(gone, n)
		}
	}
	return gone
}

// nodeStream finds the stream whose requests carry this node.
func (r *roster) nodeStream(n *corev3.Node) *stream {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.markers[n]
}

// talkOf is a type's talk on a stream; the second result tells a first one.
func (s *stream) talkOf(typeURL string) (*talk, bool) {
	k, known := s.types[typeURL]
	if !known {
		k = &talk{names: make(map[string]struct{})}
		s.types[typeURL] = k
	}
	return k, !known
}

// view lists the connected nodes by id.
func (r *roster) view(now time.Time) []Node {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []Node
	for _, n := range r.nodes {
		if len(n.streams) > 0 {
			out = append(out, n.view(now))
		}
	}
	slices.SortFunc(out, func(a, b Node) int {
		return cmp.Or(strings.Compare(a.ID, b.ID), strings.Compare(a.Cluster, b.Cluster), strings.Compare(a.Group, b.Group), strings.Compare(a.SANs, b.SANs))
	})
	return out
}

func (c *counts) clone() counts {
	return counts{maps.Clone(c.sent), maps.Clone(c.acked), maps.Clone(c.nacked), maps.Clone(c.refused), maps.Clone(c.unserved)}
}
