package lint

import (
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	authzv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_authz/v3"
	procv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weirproxy/weir/policy"
)

// scene is what the rules look at: who is who in the file.
type scene struct {
	namespace string // of route metadata that is weir's
	clusters  map[string]*clusterv3.Cluster
	cds       bool            // clusters may come from elsewhere
	ads       string          // cluster of the aggregated source; "" = none
	weir      map[string]bool // clusters where weir listens
	managers  []*manager
	models    map[string]bool // clusters that routes behind weir lead to
	runtime   map[string]*structpb.Value
}

// manager is one HTTP connection manager with its chain and routes.
type manager struct {
	hcm      *hcmv3.HttpConnectionManager
	listener *listenerv3.Listener // nil where it is not in one
	filters  []httpFilter
	routes   []*route
	authz    *authzv3.ExtAuthz         // weir's; nil where there is none
	proc     *procv3.ExternalProcessor // weir's; nil where there is none
	authzAt  int                       // index in filters; -1
	procAt   int
}

// httpFilter is a filter of a chain with its configuration, nil where that
// comes from elsewhere.
type httpFilter struct {
	filter *hcmv3.HttpFilter
	config proto.Message
}

// route is a route with the virtual host around it.
type route struct {
	*routev3.Route
	host *routev3.VirtualHost
}

func (d *document) scene(p *policy.Policy) *scene {
	s := &scene{namespace: "weir.policy", clusters: map[string]*clusterv3.Cluster{}, weir: map[string]bool{}, models: map[string]bool{}, runtime: map[string]*structpb.Value{}}
	if p != nil {
		s.namespace = p.Envoy.Namespace
	}
	s.cds = d.root.GetDynamicResources().GetCdsConfig() != nil || len(d.root.GetStaticResources().GetClusters()) == 0
	for _, c := range d.root.GetStaticResources().GetClusters() {
		if s.clusters[c.GetName()] == nil {
			s.clusters[c.GetName()] = c
		}
		if strings.Contains(strings.ToLower(c.GetName()), "weir") || p != nil && reaches(c, p.Server.GRPC) {
			s.weir[c.GetName()] = true
		}
	}
	for _, layer := range d.root.GetLayeredRuntime().GetLayers() {
		flatten(s.runtime, "", layer.GetStaticLayer())
	}
	all(d, func(h *hcmv3.HttpConnectionManager) { s.managers = append(s.managers, d.manager(h)) })
	for _, g := range d.root.GetDynamicResources().GetAdsConfig().GetGrpcServices() {
		s.ads = g.GetEnvoyGrpc().GetClusterName()
	}
	for _, m := range s.managers {
		s.find(m, p)
		if m.proc == nil && m.authz == nil {
			continue
		}
		for _, r := range m.routes {
			for _, c := range clustersOf(r.GetRoute()) {
				s.models[c] = true
			}
		}
	}
	return s
}

// flatten reads a runtime layer, which may be nested or dotted.
func flatten(to map[string]*structpb.Value, prefix string, s *structpb.Struct) {
	for k, v := range s.GetFields() {
		if inner := v.GetStructValue(); inner != nil && len(prefix) < 256 {
			flatten(to, prefix+k+".", inner)
			continue
		}
		to[prefix+k] = v
	}
}

func (d *document) manager(h *hcmv3.HttpConnectionManager) *manager {
	m := &manager{hcm: h, authzAt: -1, procAt: -1}
	m.listener, _ = within[*listenerv3.Listener](d, h)
	for _, f := range h.GetHttpFilters() {
		m.filters = append(m.filters, httpFilter{f, d.open(f.GetTypedConfig())})
	}
	for _, vh := range h.GetRouteConfig().GetVirtualHosts() {
		for _, r := range vh.GetRoutes() {
			m.routes = append(m.routes, &route{r, vh})
		}
	}
	return m
}

// find looks for weir's filters in a chain: those that ask a cluster of
// weir's, or name its metadata; else the only ext_proc. An ext_authz of another
// cluster is a neighbour's unless the policy takes identity from one.
func (s *scene) find(m *manager, p *policy.Policy) {
	var procs, authzs []int
	for i, f := range m.filters {
		switch c := f.config.(type) {
		case *procv3.ExternalProcessor:
			procs = append(procs, i)
			if m.procAt < 0 && (s.weir[grpcCluster(c.GetGrpcService())] || speaksOfWeir(c)) {
				m.procAt = i
			}
		case *authzv3.ExtAuthz:
			authzs = append(authzs, i)
			if m.authzAt < 0 && s.weir[grpcCluster(c.GetGrpcService())] {
				m.authzAt = i
			}
		}
	}
	if m.procAt < 0 && len(procs) == 1 {
		m.procAt = procs[0]
	}
	if m.procAt >= 0 {
		m.proc, _ = m.filters[m.procAt].config.(*procv3.ExternalProcessor)
		s.serves(grpcCluster(m.proc.GetGrpcService()))
	}
	if m.authzAt < 0 && len(authzs) == 1 && m.procAt >= 0 {
		c, _ := m.filters[authzs[0]].config.(*authzv3.ExtAuthz)
		if cluster := grpcCluster(c.GetGrpcService()); s.weir[cluster] || cluster != "" && p != nil && p.Identity.From == policy.FromAuthz {
			m.authzAt = authzs[0]
		}
	}
	if m.authzAt >= 0 {
		m.authz, _ = m.filters[m.authzAt].config.(*authzv3.ExtAuthz)
		s.serves(grpcCluster(m.authz.GetGrpcService()))
	}
}

func (s *scene) serves(cluster string) {
	if cluster != "" {
		s.weir[cluster] = true
	}
}

func speaksOfWeir(c *procv3.ExternalProcessor) bool {
	for _, n := range c.GetMetadataOptions().GetReceivingNamespaces().GetUntyped() {
		if strings.HasPrefix(n, "weir.") {
			return true
		}
	}
	return false
}

// asks is whether weir is what an xDS source asks.
func (s *scene) asks(src *corev3.ConfigSource) bool {
	if src.GetAds() != nil {
		return s.weir[s.ads]
	}
	for _, g := range src.GetApiConfigSource().GetGrpcServices() {
		if s.weir[grpcCluster(g)] {
			return true
		}
	}
	return false
}

func grpcCluster(g *corev3.GrpcService) string { return g.GetEnvoyGrpc().GetClusterName() }

// clustersOf are the clusters an action leads to, by name.
func clustersOf(a *routev3.RouteAction) []string {
	var names []string
	if c := a.GetCluster(); c != "" {
		names = append(names, c)
	}
	for _, w := range a.GetWeightedClusters().GetClusters() {
		if w.GetName() != "" {
			names = append(names, w.GetName())
		}
	}
	return names
}

// reaches is whether an endpoint of the cluster is the address weir listens on.
func reaches(c *clusterv3.Cluster, listen string) bool {
	for _, group := range c.GetLoadAssignment().GetEndpoints() {
		for _, e := range group.GetLbEndpoints() {
			if sameAddress(e.GetEndpoint(), listen) {
				return true
			}
		}
	}
	return false
}

func sameAddress(e *endpointv3.Endpoint, listen string) bool {
	if path, ok := strings.CutPrefix(listen, "unix:"); ok {
		return e.GetAddress().GetPipe().GetPath() == path
	}
	return false // another host may listen on the same port
}

// routeEntry is what a per-route entry holds, out of a FilterConfig too. nil
// where it holds nothing, or what is told already.
func (d *document) routeEntry(a *anypb.Any) proto.Message {
	m := d.open(a)
	if wrapped, ok := m.(*routev3.FilterConfig); ok {
		return d.open(wrapped.GetConfig())
	}
	return m
}

// upstream is a cluster's HTTP options; nil where there are none.
func (d *document) upstream(c *clusterv3.Cluster) *httpv3.HttpProtocolOptions {
	options := c.GetTypedExtensionProtocolOptions()
	for _, name := range sortedKeys(options) {
		if o, ok := d.open(options[name]).(*httpv3.HttpProtocolOptions); ok {
			return o
		}
	}
	return nil
}

// http2 is a cluster's HTTP/2 options; nil where it does not speak it.
func (d *document) http2(c *clusterv3.Cluster) *corev3.Http2ProtocolOptions {
	o := d.upstream(c)
	switch {
	case o.GetExplicitHttpConfig().GetHttp2ProtocolOptions() != nil:
		return o.GetExplicitHttpConfig().GetHttp2ProtocolOptions()
	case o.GetAutoConfig() != nil:
		if h := o.GetAutoConfig().GetHttp2ProtocolOptions(); h != nil {
			return h
		}
		return &corev3.Http2ProtocolOptions{}
	case o.GetUseDownstreamProtocolConfig() != nil:
		return o.GetUseDownstreamProtocolConfig().GetHttp2ProtocolOptions()
	}
	return c.GetHttp2ProtocolOptions() //nolint:staticcheck // the old place, still read by Envoy
}
