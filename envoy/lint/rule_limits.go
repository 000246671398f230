package lint

import (
	"fmt"
	"slices"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	procv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weirproxy/weir/policy"
)

// Envoy's defaults.
const (
	defaultThreshold     = 1024
	defaultBuffer        = 1 << 20
	defaultControlFrames = 10000
)

// each calls f with each cluster in the order of the file.
func (l *linter) each(names map[string]bool, f func(*clusterv3.Cluster)) {
	for _, c := range l.doc.root.GetStaticResources().GetClusters() {
		if names[c.GetName()] {
			f(c)
		}
	}
}

func checkWeirCluster(l *linter) {
	l.each(l.scene.weir, func(c *clusterv3.Cluster) {
		if l.doc.http2(c) == nil {
			l.fail(l.doc.of(c), "cluster "+quote(c.GetName())+" does not speak HTTP/2: no call to weir works", "add HttpProtocolOptions with explicit_http_config: {http2_protocol_options: {}}")
		}
	})
}

// thresholds are those of the default priority, the first of which counts.
func thresholds(c *clusterv3.Cluster) *clusterv3.CircuitBreakers_Thresholds {
	for _, t := range c.GetCircuitBreakers().GetThresholds() {
		if t.GetPriority() == corev3.RoutingPriority_DEFAULT {
			return t
		}
	}
	return nil
}

func bound(v *wrapperspb.UInt32Value) int64 {
	if v == nil {
		return defaultThreshold
	}
	return int64(v.GetValue())
}

// seats are what a pool may run at once.
func seats(p *policy.Pool) int64 {
	if p.Adaptive != nil {
		return max(p.Seats.Requests, p.Adaptive.Max)
	}
	return p.Seats.Requests
}

func checkMaxRequests(l *linter) {
	l.each(l.scene.weir, func(c *clusterv3.Cluster) {
		t := thresholds(c)
		p := l.doc.of(c)
		if l.doc.has(t, "max_requests") {
			p = l.doc.field(t, "max_requests")
		} else if t != nil {
			p = l.doc.of(t)
		}
		have := bound(t.GetMaxRequests())
		if l.Policy == nil {
			if have <= defaultThreshold {
				l.warn(p, fmt.Sprintf("cluster %s takes %d requests at once: as many answers can run, the next caller gets an error", quote(c.GetName()), have), "set max_requests and max_pending_requests: 50000")
			}
			return
		}
		var need int64
		for i := range l.Policy.Pools {
			need += seats(&l.Policy.Pools[i]) + int64(l.Policy.Queue.Length.Max) + int64(l.Policy.Queue.RetryQueue.Length)
		}
		switch {
		case have < need:
			l.fail(p, fmt.Sprintf("cluster %s takes %d requests at once, below the %d of seats and queues of the policy", quote(c.GetName()), have, need), fmt.Sprintf("set max_requests: %d", l.Policy.Envoy.MaxRequests))
		case have < int64(l.Policy.Envoy.MaxRequests):
			l.warn(p, fmt.Sprintf("max_requests %d is below envoy.maxRequests %d of the policy", have, l.Policy.Envoy.MaxRequests), "make both equal")
		}
	})
	if l.Policy != nil {
		l.each(l.scene.models, l.modelThresholds)
	}
}

func (l *linter) modelThresholds(c *clusterv3.Cluster) {
	var need int64
	for i := range l.Policy.Pools {
		if p := &l.Policy.Pools[i]; p.Cluster == c.GetName() {
			need += seats(p)
		}
	}
	t := thresholds(c)
	where := func(field string) at {
		if t == nil {
			return l.doc.of(c)
		}
		return l.doc.field(t, field)
	}
	if have := bound(t.GetMaxRequests()); have < need {
		l.fail(where("max_requests"), fmt.Sprintf("cluster %s takes %d requests at once, its pools have %d seats", quote(c.GetName()), have, need), fmt.Sprintf("set max_requests: %d or more", need))
	}
	if have := bound(t.GetMaxConnections()) + bound(t.GetMaxPendingRequests()); l.doc.http2(c) == nil && have < need {
		l.fail(where("max_connections"), fmt.Sprintf("cluster %s takes %d connections and waiting requests, its pools have %d seats", quote(c.GetName()), have, need), fmt.Sprintf("set max_connections: %d or more", need))
	}
}

func checkControlFrames(l *linter) {
	l.each(l.scene.weir, func(c *clusterv3.Cluster) {
		h := l.doc.http2(c)
		if h == nil {
			return
		}
		have := int64(defaultControlFrames)
		p := l.doc.of(c)
		if v := h.GetMaxOutboundControlFrames(); v != nil {
			have, p = int64(v.GetValue()), l.doc.field(h, "max_outbound_control_frames")
		} else if l.doc.places[h] != nil {
			p = l.doc.of(h)
		}
		if have <= defaultControlFrames {
			l.warn(p, fmt.Sprintf("%d control frames: releasing more than 1,000 held requests at once closes the connection to weir", have), "set max_outbound_control_frames: 100000")
		}
	})
}

// checkMaxRetries: what bridges a restart of weir shares the cluster's
// retries, of which there are 3 by default.
func checkMaxRetries(l *linter) {
	for _, m := range l.scene.managers {
		g := m.proc.GetGrpcService()
		c := l.scene.clusters[g.GetEnvoyGrpc().GetClusterName()]
		if g.GetRetryPolicy().GetRetryOn() == "" || c == nil {
			continue
		}
		t := thresholds(c)
		if t.GetRetryBudget() == nil && (t.GetMaxRetries() == nil || t.GetMaxRetries().GetValue() < 100) {
			p := l.doc.of(c)
			if t != nil {
				p = l.doc.field(t, "max_retries")
			}
			l.warn(p, "cluster "+quote(c.GetName())+" retries too few calls at once to bridge a restart of weir (default 3)", "set max_retries: 1000")
		}
	}
}

// checkBuffers compares what a buffered body may be with what weir takes.
func checkBuffers(l *linter) {
	want := int64(0)
	if l.Policy != nil {
		want = l.Policy.Server.MaxBody
	}
	for _, m := range l.scene.managers {
		if m.proc == nil {
			continue
		}
		for _, r := range m.routes {
			mode := m.proc.GetProcessingMode()
			if o := l.doc.procOf(m, r).GetOverrides().GetProcessingMode(); o != nil {
				mode = o
			}
			if r.GetRoute() == nil || mode.GetRequestBodyMode() != procv3.ProcessingMode_BUFFERED {
				continue
			}
			have, p := l.buffer(m, r)
			switch {
			case want > 0 && have < want:
				l.fail(p, fmt.Sprintf("bodies beyond %d bytes get 413, the policy takes %d (server.maxBody)", have, want), fmt.Sprintf("set per_connection_buffer_limit_bytes: %d on the listener", want))
			case want > 0 && have > l.Policy.Server.MaxMessage():
				l.warn(p, fmt.Sprintf("bodies of unknown length beyond %d bytes get 503: a message to weir has no more (server.maxBody is %d)", l.Policy.Server.MaxMessage(), want),
					fmt.Sprintf("set per_connection_buffer_limit_bytes: %d on the listener", want))
			case want == 0 && have < defaultBuffer:
				l.fail(p, fmt.Sprintf("bodies beyond %d bytes get 413: normal prompts do", have), "set per_connection_buffer_limit_bytes: 4194304 on the listener")
			case want == 0 && have == defaultBuffer:
				l.warn(p, "bodies beyond 1 MiB get 413: long prompts do", "set per_connection_buffer_limit_bytes: 4194304 on the listener")
			}
		}
	}
}

// buffer is the limit for a route and where it stands.
func (l *linter) buffer(m *manager, r *route) (int64, at) {
	for _, holder := range []interface {
		proto.Message
		GetRequestBodyBufferLimit() *wrapperspb.UInt64Value
	}{r.Route, r.host} {
		if v := holder.GetRequestBodyBufferLimit(); v != nil && !l.before(37) { // 1.36 has the field and does not use it here
			return int64(min(v.GetValue(), 1<<40)), l.doc.field(holder, "request_body_buffer_limit") //nolint:gosec // bounded
		}
	}
	if v := m.listener.GetPerConnectionBufferLimitBytes(); v != nil {
		return int64(v.GetValue()), l.doc.field(m.listener, "per_connection_buffer_limit_bytes")
	}
	if m.listener != nil {
		return defaultBuffer, l.doc.of(m.listener)
	}
	return defaultBuffer, l.doc.of(m.hcm)
}

// stage is whether a cluster is another weir's Envoy, by the policy.
func (l *linter) stage(cluster string) bool {
	return l.Policy != nil && slices.ContainsFunc(l.Policy.Pools, func(p policy.Pool) bool { return p.Cluster == cluster && p.Stage })
}

// checkKeepalive: gRPC servers answer pings more often than every 5 minutes
// with GOAWAY too_many_pings.
func checkKeepalive(l *linter) {
	l.each(l.scene.models, func(c *clusterv3.Cluster) {
		k := l.doc.http2(c).GetConnectionKeepalive()
		if l.stage(c.GetName()) {
			return // an Envoy stands there
		}
		if k.GetInterval() != nil && k.GetInterval().AsDuration() < 5*time.Minute && !l.scene.weir[c.GetName()] {
			l.warn(l.doc.field(k, "interval"), fmt.Sprintf("cluster %s is pinged every %v: a gRPC server with default settings answers GOAWAY too_many_pings below 300 s", quote(c.GetName()), k.GetInterval().AsDuration()), "set interval: 300s, or leave keepalive off")
		}
	})
}
