package xds

import (
	"errors"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/proto"
)

// gate is the cache that go-control-plane asks: it finds the shelf of the
// stream's group.
type gate struct{ s *Server }

func (g gate) CreateWatch(req *cachev3.Request, sub cachev3.Subscription, value chan cachev3.Response) (func(), error) {
	return g.s.watch(req.GetNode(), req.GetTypeUrl(), func(c store, forgotten map[string]bool) (func(), error) {
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
	sub = forget(sub, askedAgain(req, sub))
	return g.s.watch(req.GetNode(), req.GetTypeUrl(), func(c store, forgotten map[string]bool) (func(), error) {
		return c.CreateDeltaWatch(req, forget(sub, forgotten), value)
	})
}

// askedAgain are names that a request subscribes: they are sent, also where
// the client has their latest version by what it was sent. It may have dropped
// them (xDS protocol, "Subscribing to Resources"). What a first request says it
// has it has.
func askedAgain(req *cachev3.DeltaRequest, sub cachev3.Subscription) map[string]bool {
	if len(req.GetResourceNamesSubscribe()) == 0 || len(req.GetInitialResourceVersions()) > 0 {
		return nil
	}
	again := make(map[string]bool)
	for _, name := range req.GetResourceNamesSubscribe() {
		if name == "*" {
			for had := range sub.ReturnedResources() {
				again[had] = true
			}
		}
		again[name] = true
	}
	return again
}

// watch opens a watch on the shelf of a stream's group.
func (s *Server) watch(n *corev3.Node, typeURL string, start func(store, map[string]bool) (func(), error)) (func(), error) {
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
	s.roster.mu.Unlock()
	return sh.watch(st.node, w)
}

// warming is the endpoint watch of an ADS stream and which of its names are
// clusters that an answer brings, all where it does not say which changed.
// Envoy waits for a changed cluster's endpoints before it uses it, does not
// ask for them, and says nothing about the clusters until then. The caller
// holds the roster.
func (st *stream) warming(changed []*discoveryv3.Resource) (*watch, map[string]bool) {
	e := st.types[resourcev3.EndpointType]
	if !st.ads || e == nil || e.watch == nil {
		return nil, nil
	}
	names := make(map[string]bool)
	if st.delta {
		for _, c := range changed {
			if _, asked := e.names[c.GetName()]; asked {
				names[c.GetName()] = true
			}
		}
		return e.watch, names
	}
	for name := range e.names {
		names[name] = true
	}
	return e.watch, names
}
