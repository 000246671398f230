package xds

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
)

// Stats are counts and warnings, as they were when asked for. Maps by type
// have the keys rtds, eds, cds.
type Stats struct {
	Nodes, Streams int
	Pushes         uint64 // snapshots that changed something
	Sent           map[string]uint64
	Acked          map[string]uint64
	Nacked         map[string]uint64
	Refused        map[string]uint64 // streams, by reason: group, nodes, streams, identity, names, types
	Unserved       map[string]uint64 // requests for types that are not served, by type URL, at most 20

	Inherited []string // clusters whose overrides are those of the state on disk
	Withdrawn uint64   // overrides that were inherited and not renewed
	Disk      DiskStats

	Unknown     []Unknown // what connected nodes ask for and the policy does not have
	Unclaimed   []string  // clusters whose endpoints are served and no connected node asks for
	Unsupported []string  // connected nodes of releases that are not supported
}

// DiskStats are of the state on disk. Zero times are never.
type DiskStats struct {
	Restored time.Time // when the state was saved that this server began with
	Refused  string    // why the state at start was not taken; "" = it was, or there was none
	Saved    time.Time
	Errors   uint64
	Error    string // of the last writing; "" = it went well
}

// Unknown is a name asked for in vain.
type Unknown struct{ Node, Type, Name string }

// maxListed bounds each list of names in Stats.
const maxListed = 1000

// Nodes are the connected Envoys, by id.
func (s *Server) Nodes() []Node { return s.roster.view(time.Now()) }

// Stats tells how the server does.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	out := Stats{Pushes: s.pushes, Inherited: s.book.inherited(), Withdrawn: s.gone, Disk: s.disk}
	served := make(map[string]bool)
	for name, r := range s.book.records {
		if r.served {
			served[name] = false
		}
	}
	s.mu.Unlock()

	r := s.roster
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.counts.clone()
	out.Streams, out.Sent, out.Acked, out.Nacked = len(r.streams), byShort(c.sent), byShort(c.acked), byShort(c.nacked)
	out.Refused, out.Unserved = c.refused, c.unserved
	for _, n := range r.nodes {
		if len(n.streams) == 0 {
			continue
		}
		out.Nodes++
		if !n.supported {
			out.Unsupported = append(out.Unsupported, n.id)
		}
		for st := range n.streams {
			for typeURL, k := range st.types {
				s.claims(&out, st, typeURL, k, served)
			}
		}
	}
	for name, claimed := range served {
		if !claimed {
			out.Unclaimed = append(out.Unclaimed, name)
		}
	}
	slices.SortFunc(out.Unknown, func(a, b Unknown) int {
		return cmp.Or(strings.Compare(a.Node, b.Node), strings.Compare(a.Type, b.Type), strings.Compare(a.Name, b.Name))
	})
	out.Unknown = cutTo(slices.Compact(out.Unknown))
	slices.Sort(out.Unclaimed)
	slices.Sort(out.Unsupported)
	out.Unclaimed, out.Unsupported = cutTo(out.Unclaimed), cutTo(out.Unsupported)
	return out
}

func cutTo[T any](list []T) []T { return list[:min(len(list), maxListed)] }

// claims holds what a stream asks for against what is served.
func (s *Server) claims(out *Stats, st *stream, typeURL string, k *talk, served map[string]bool) {
	for name := range k.names {
		if s.isUnknown(st, typeURL, name) {
			if len(out.Unknown) < 10*maxListed {
				out.Unknown = append(out.Unknown, Unknown{st.node.id, short(typeURL), name})
			}
			continue
		}
		if _, is := served[name]; is && typeURL == resourcev3.EndpointType {
			served[name] = true
		}
	}
}

// isUnknown reports whether a name will not be answered, as far as is known.
func (s *Server) isUnknown(st *stream, typeURL, name string) bool {
	sh := st.node.group.shelves[typeURL]
	return sh != nil && (typeURL == resourcev3.EndpointType || typeURL == resourcev3.RuntimeType) && sh.lacks(name)
}

// unknown lists those names that are asked for in vain and were not listed for
// the node before. The caller holds the roster.
func (s *Server) unknown(st *stream, typeURL string, names []string) []string {
	var out []string
	for _, name := range names {
		if len(st.node.unknown) >= maxUnknown {
			break
		}
		if name != "*" && !st.node.unknown[name] && s.isUnknown(st, typeURL, name) {
			st.node.unknown[name] = true
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// forget drops the memory of nodes that left long ago.
func (s *Server) forget(now time.Time) { s.forgetNodes(s.roster.expire(now)) }

func (s *Server) forgetNodes(gone []*node) {
	for _, n := range gone {
		for _, sh := range n.group.shelves {
			sh.forget(n)
		}
	}
}

// short is the usual name of a type.
func short(typeURL string) string {
	switch typeURL {
	case resourcev3.RuntimeType:
		return "rtds"
	case resourcev3.EndpointType:
		return "eds"
	case resourcev3.ClusterType:
		return "cds"
	}
	return typeURL
}

func byShort(m map[string]uint64) map[string]uint64 {
	out := map[string]uint64{"rtds": 0, "eds": 0, "cds": 0}
	for typeURL, n := range m {
		if s := short(typeURL); s != typeURL {
			out[s] = n
		}
	}
	return out
}

func sorted(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }

// cut bounds what a log line holds.
func cut(names []string) []string { return names[:min(len(names), 10)] }

// mentions reports whether text has name as a word.
func mentions(text, name string) bool {
	part := func(b byte) bool {
		return b == '_' || b == '-' || b == '.' || b >= '0' && b <= '9' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z'
	}
	for from := 0; name != ""; {
		i := strings.Index(text[from:], name)
		if i < 0 {
			return false
		}
		start, end := from+i, from+i+len(name)
		before := start > 0 && part(text[start-1])
		after := end < len(text) && part(text[end]) && (text[end] != '.' || end+1 < len(text) && part(text[end+1]))
		if !before && !after {
			return true
		}
		from = start + 1
	}
	return false
}
