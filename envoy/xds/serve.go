package xds

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
)

// callbacks hear what go-control-plane receives and sends. A request's
// callback runs just before its watch is opened, on the same goroutine.
type callbacks struct{ s *Server }

func (c callbacks) OnStreamOpen(ctx context.Context, id int64, typeURL string) error {
	return c.s.roster.open(time.Now(), streamKey{false, id}, callerOf(ctx), typeURL)
}

func (c callbacks) OnDeltaStreamOpen(ctx context.Context, id int64, typeURL string) error {
	return c.s.roster.open(time.Now(), streamKey{true, id}, callerOf(ctx), typeURL)
}

func (c callbacks) OnStreamClosed(id int64, _ *corev3.Node) {
	c.s.roster.close(time.Now(), streamKey{false, id})
}

func (c callbacks) OnDeltaStreamClosed(id int64, _ *corev3.Node) {
	c.s.roster.close(time.Now(), streamKey{true, id})
}

// heard is what both kinds of requests say.
type heard struct {
	typeURL, nonce, version string // version: state of the world alone
	refused                 *status.Status
	names                   []string          // asked for
	known                   map[string]string // delta alone: what the client has, with its first request
}

func (c callbacks) OnStreamRequest(id int64, req *discoveryv3.DiscoveryRequest) error {
	h := heard{req.GetTypeUrl(), req.GetResponseNonce(), req.GetVersionInfo(), req.GetErrorDetail(), req.GetResourceNames(), nil}
	marker, err := c.s.hear(time.Now(), streamKey{false, id}, req.GetNode(), &h, func(k *talk, first bool) bool {
		return k.list(req.GetResourceNames(), first)
	})
	if err == nil {
		req.Node = marker
	}
	return err
}

func (c callbacks) OnStreamDeltaRequest(id int64, req *discoveryv3.DeltaDiscoveryRequest) error {
	h := heard{req.GetTypeUrl(), req.GetResponseNonce(), "", req.GetErrorDetail(), req.GetResourceNamesSubscribe(), req.GetInitialResourceVersions()}
	marker, err := c.s.hear(time.Now(), streamKey{true, id}, req.GetNode(), &h, func(k *talk, first bool) bool {
		k.ask(req.GetResourceNamesSubscribe(), req.GetResourceNamesUnsubscribe(), first)
		return first || len(req.GetResourceNamesSubscribe()) > 0
	})
	if err == nil {
		req.Node = marker
	}
	return err
}

// hear takes a request: who speaks, what it asks for, and its word on an
// answer. It returns the node that stands for the stream.
func (s *Server) hear(now time.Time, key streamKey, n *corev3.Node, h *heard, ask func(k *talk, first bool) bool) (*corev3.Node, error) {
	r := s.roster
	r.mu.Lock()
	st := r.streams[key]
	if st == nil {
		r.mu.Unlock()
		return nil, errors.New("xds: a request of no stream")
	}
	fresh, gone, err := r.meet(now, st, n, s.groups)
	if err != nil {
		r.mu.Unlock()
		s.words.say(now, slog.LevelWarn, "xds: stream refused", "node", cutText(n.GetId(), maxIdentity), "cluster", cutText(n.GetCluster(), maxIdentity),
			"peer", st.caller.address, "sans", st.caller.sans, "err", err)
		return nil, err
	}
	if n != nil && n != st.marker {
		strip(n)
	}
	if h.typeURL == "" {
		h.typeURL = st.only
	}
	if err := r.lawfulRequest(st, h); err != nil {
		r.mu.Unlock()
		return nil, err
	}
	k, first := st.talkOf(h.typeURL)
	var unknown []string
	before := k.weight
	if ask(k, first) {
		unknown = s.unknown(st, h.typeURL, h.names)
	}
	if err := r.hold(k, before, h, first); err != nil {
		r.mu.Unlock()
		return nil, err
	}
	a, spoken := k.take(h.nonce)
	nack := s.word(now, st, k, h, a, spoken)
	release, supported := st.node.release, st.node.supported // the same name may come with another one later
	r.mu.Unlock()

	s.forgetNodes(gone)
	if fresh != nil {
		s.greet(now, fresh, release, supported)
	}
	for _, name := range unknown {
		s.words.say(now, slog.LevelWarn, "xds: Envoy asks for what the policy does not have", "type", short(h.typeURL), "name", name, "node", st.node.id)
	}
	if nack != nil {
		s.refuse(st, h.typeURL, release, nack, a)
	}
	return st.marker, nil
}

// word counts what a request says of an answer; a refusal is returned.
func (s *Server) word(now time.Time, st *stream, k *talk, h *heard, a answer, spoken bool) *Nack {
	if !spoken {
		return nil
	}
	if h.refused == nil {
		if !st.delta && h.version != a.version {
			return nil // other names are asked for while the answer stays refused
		}
		k.acked = a.version
		s.roster.counts.acked[h.typeURL]++
		return nil
	}
	nack := &Nack{At: now, Type: short(h.typeURL), Version: a.version, Text: cutText(h.refused.GetMessage(), maxWords)}
	st.node.nacks++
	st.node.last = nack
	s.roster.counts.nacked[h.typeURL]++
	return nack
}

// refuse keeps a refused answer's resources from the node: those that its
// words name, else all.
func (s *Server) refuse(st *stream, typeURL, release string, nack *Nack, a answer) {
	hashes := a.hashes()
	named := make(map[string]string)
	for name, hash := range hashes {
		if mentions(nack.Text, name) {
			named[name] = hash
		}
	}
	if len(named) > 0 {
		hashes = named
	}
	names := sorted(hashes)
	s.roster.mu.Lock()
	nack.Names = names
	s.roster.mu.Unlock()
	kept := false
	if sh := st.node.group.shelves[typeURL]; sh != nil {
		kept = sh.refuse(st.node, hashes)
	}
	s.words.say(nack.At, slog.LevelError, "xds: Envoy refuses what it was sent", "node", st.node.id, "release", release, "type", nack.Type, "names", cut(names), "err", nack.Text, "last_good_served", kept)
}

// greet says of a new node what an operator should know.
func (s *Server) greet(now time.Time, n *node, release string, supported bool) {
	if supported {
		s.words.say(now, slog.LevelInfo, "xds: Envoy connected", "node", n.id, "cluster", n.cluster, "group", n.group.name, "release", release)
		return
	}
	s.words.say(now, slog.LevelWarn, "xds: Envoy connected whose release is not supported", "node", n.id, "cluster", n.cluster, "group", n.group.name,
		"release", release, "want", fmt.Sprintf("1.%d or newer", minRelease))
}

func (c callbacks) OnStreamResponse(_ context.Context, id int64, req *discoveryv3.DiscoveryRequest, resp *discoveryv3.DiscoveryResponse) {
	c.s.told(streamKey{false, id}, req.GetTypeUrl(), answer{
		nonce: resp.GetNonce(), version: resp.GetVersionInfo(), at: time.Now(),
		hashes: func() map[string]string {
			out := make(map[string]string, len(resp.GetResources()))
			for _, any := range resp.GetResources() {
				if m, err := any.UnmarshalNew(); err == nil {
					out[cachev3.GetResourceName(m)] = cachev3.HashResource(any.GetValue())
				}
			}
			return out
		},
	}, nil)
}

func (c callbacks) OnStreamDeltaResponse(id int64, req *discoveryv3.DeltaDiscoveryRequest, resp *discoveryv3.DeltaDiscoveryResponse) {
	c.s.told(streamKey{true, id}, req.GetTypeUrl(), answer{
		nonce: resp.GetNonce(), version: resp.GetSystemVersionInfo(), at: time.Now(),
		hashes: func() map[string]string {
			out := make(map[string]string, len(resp.GetResources()))
			for _, r := range resp.GetResources() {
				out[r.GetName()] = r.GetVersion()
			}
			return out
		},
	}, resp.GetResources())
}

// told notes what a stream is sent. Clusters on ADS are followed by their
// endpoints, on the same stream, so behind them. changed are the resources
// that a delta answer brings.
func (s *Server) told(key streamKey, typeURL string, a answer, changed []*discoveryv3.Resource) {
	r := s.roster
	r.mu.Lock()
	st := r.streams[key]
	if st == nil {
		r.mu.Unlock()
		return
	}
	k, _ := st.talkOf(typeURL)
	k.expect(a)
	r.counts.sent[typeURL]++
	var endpoints *watch
	var names map[string]bool
	if typeURL == resourcev3.ClusterType {
		endpoints, names = st.warming(changed)
	}
	r.mu.Unlock()
	if len(names) > 0 {
		s.report(endpoints.again(names))
	}
}
