package xds

import (
	"errors"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/proto"
)

// maxTypes bounds the names of types that are counted though not served.
const maxTypes = 20

// gate is the cache that go-control-plane asks: it finds the shelf of the
// stream's group.
type gate struct{ s *Server }

func (g gate) CreateWatch(req *cachev3.Request, sub cachev3.Subscription, value chan cachev3.Response) (func(), error) {
	return g.s.watch(req.GetNode(), req.GetTypeUrl(), req.GetResponseNonce(), func(c store, forgotten map[string]bool) (func(), error) {
		r := req
		if req.GetErrorDetail() != nil {
			// A cache answers whoever has no version of its own. One that refused
			// the answer would be sent it again and again.
			r = proto.CloneOf(req)
			r.VersionInfo, r.Node = c.prefix+"refused", req.GetNode()
		}
		return c.CreateWatch(r, forget(sub, forgotten), value)
	})
}

func (g gate) CreateDeltaWatch(req *cachev3.DeltaRequest, sub cachev3.Subscription, value chan cachev3.DeltaResponse) (func(), error) {
	return g.s.watch(req.GetNode(), req.GetTypeUrl(), req.GetResponseNonce(), func(c store, forgotten map[string]bool) (func(), error) {
		return c.CreateDeltaWatch(req, forget(sub, forgotten), value)
	})
}

// watch opens a watch on a shelf. A word on an answer of clusters, on ADS, has
// the endpoints of those clusters sent once more: Envoy waits for them before
// it uses a cluster that changed, and does not ask.
func (s *Server) watch(n *corev3.Node, typeURL, nonce string, start func(store, map[string]bool) (func(), error)) (func(), error) {
	st := s.roster.nodeStream(n)
	if st == nil {
		return nil, errors.New("xds: a watch of no stream")
	}
	sh := st.node.group.shelves[typeURL]
	if sh == nil {
		s.roster.mu.Lock()
		if u := s.roster.counts.unserved; len(u) < maxTypes || u[typeURL] > 0 {
			u[typeURL]++
		}
		s.roster.mu.Unlock()
		return func() {}, nil // left open: on ADS, the other types go on
	}
	w := &watch{start: start}
	s.roster.mu.Lock()
	k, _ := st.talkOf(typeURL)
	k.watch = w
	var warming *watch
	var names map[string]bool
	if typeURL == resourcev3.ClusterType && nonce != "" {
		warming, names = st.warming(k)
	}
	s.roster.mu.Unlock()
	stop, err := sh.watch(st.node, w)
	if err == nil && warming != nil && len(names) > 0 {
		err = warming.again(names)
	}
	return stop, err
}

// warming is the endpoint watch of an ADS stream and which of its names are
// clusters that were sent since the last word on them.
func (st *stream) warming(clusters *talk) (*watch, map[string]bool) {
	changed, all := clusters.changed, clusters.changedAll
	clusters.changed, clusters.changedAll = nil, false
	e := st.types[resourcev3.EndpointType]
	if !st.ads || e == nil {
		return nil, nil
	}
	names := make(map[string]bool)
	for name := range e.names {
		if all || changed[name] {
			names[name] = true
		}
	}
	return e.watch, names
}
