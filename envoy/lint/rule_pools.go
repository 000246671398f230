package lint

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/weirproxy/weir/policy"
)

const poolHeader = "x-weir-pool"

// checkPoolRoutes: what weir decides is carried out by routes that ask for
// x-weir-pool. A pool without one runs, and is billed, as another.
func checkPoolRoutes(l *linter) {
	if l.Policy == nil {
		return
	}
	for _, m := range l.scene.managers {
		if m.proc == nil || slices.ContainsFunc(m.routes, func(r *route) bool { return r.GetRoute().GetClusterHeader() != "" }) {
			continue
		}
		for _, h := range m.hcm.GetRouteConfig().GetVirtualHosts() {
			l.poolRoutes(h)
		}
	}
}

// poolRoutes judges one virtual host, if it leads to a pool at all.
func (l *linter) poolRoutes(h *routev3.VirtualHost) {
	leads, served := map[string]bool{}, map[string]bool{} // clusters without the header, pools with it
	for _, r := range h.GetRoutes() {
		values, any := poolsOf(r)
		if any {
			return // a pattern: what it takes is not worked out
		}
		for _, name := range values {
			served[name] = true
			l.poolRoute(r, name)
		}
		if len(values) == 0 {
			for _, c := range clustersOf(r.GetRoute()) {
				leads[c] = true
			}
		}
	}
	reached := slices.ContainsFunc(l.Policy.Pools, func(p policy.Pool) bool { return leads[p.Cluster] || served[p.Name] })
	for i := range l.Policy.Pools {
		if p := &l.Policy.Pools[i]; reached && !served[p.Name] && !leads[p.Cluster] {
			l.fail(l.doc.of(h), fmt.Sprintf("no route of virtual host %s leads to pool %s: what weir sends there runs on another and is billed as %s", quote(h.GetName()), quote(p.Name), p.Variant),
				fmt.Sprintf("add a route with headers: [{name: %s, string_match: {exact: %s}}] to cluster %s", poolHeader, p.Name, p.Cluster))
		}
	}
}

// poolRoute judges a route that asks for a pool by its name.
func (l *linter) poolRoute(r *routev3.Route, name string) {
	i := slices.IndexFunc(l.Policy.Pools, func(p policy.Pool) bool { return p.Name == name })
	if i < 0 {
		advice, best := "the pools are "+strings.Join(poolNames(l.Policy), ", "), min(4, len(name)/2+1)
		for _, p := range poolNames(l.Policy) {
			if d := distance(p, name); d < best {
				best, advice = d, "did you mean "+p+"?"
			}
		}
		l.fail(l.doc.of(r), "the policy has no pool "+quote(name)+": the route is never taken", advice)
		return
	}
	clusters := clustersOf(r.GetRoute())
	if want := l.Policy.Pools[i].Cluster; len(clusters) > 0 && !slices.Contains(clusters, want) {
		l.fail(l.doc.of(r), fmt.Sprintf("pool %s leads to cluster %s, in the policy to %s: calls run on one and are billed as the other", quote(name), quote(clusters[0]), quote(want)), "set cluster: "+want)
	}
}

// poolsOf are the pools that a route asks for; any is a pattern.
func poolsOf(r *routev3.Route) (names []string, any bool) {
	for _, h := range r.GetMatch().GetHeaders() {
		if !strings.EqualFold(h.GetName(), poolHeader) {
			continue
		}
		exact := h.GetStringMatch().GetExact()
		if exact == "" {
			exact = h.GetExactMatch() //nolint:staticcheck // the old field, still read by Envoy
		}
		if exact == "" || h.GetInvertMatch() {
			any = any || !h.GetInvertMatch() && h.GetHeaderMatchSpecifier() != nil
			continue
		}
		names = append(names, exact)
	}
	return names, any
}

func poolNames(p *policy.Policy) []string {
	var names []string
	for i := range p.Pools {
		names = append(names, p.Pools[i].Name)
	}
	return names
}

// checkPorts: Envoy asks weir where weir listens, and nobody else stands there.
func checkPorts(l *linter) {
	if l.Policy == nil {
		return
	}
	_, listen, tcp := cutPort(l.Policy.Server.GRPC)
	admin := l.doc.root.GetAdmin().GetAddress().GetSocketAddress()
	for _, address := range []string{l.Policy.Server.GRPC, l.Policy.Server.Admin} {
		if _, port, ok := cutPort(address); ok && admin.GetPortValue() == port && port != 0 {
			l.fail(l.doc.of(admin), fmt.Sprintf("Envoy's admin address has port %d, on which weir listens (%s)", port, address), "give one of them another port")
		}
	}
	l.each(l.scene.weir, func(c *clusterv3.Cluster) {
		for _, group := range c.GetLoadAssignment().GetEndpoints() {
			for _, e := range group.GetLbEndpoints() {
				l.weirEndpoint(c, e.GetEndpoint().GetAddress(), listen, tcp)
			}
		}
	})
}

func (l *linter) weirEndpoint(c *clusterv3.Cluster, a *corev3.Address, listen uint32, tcp bool) {
	grpc := l.Policy.Server.GRPC
	switch s := a.GetSocketAddress(); {
	case s != nil && tcp && s.GetPortValue() != listen && !loopback(s.GetAddress()):
		return // a service may map ports
	case s != nil && tcp && s.GetPortValue() != listen:
		l.fail(l.doc.field(s, "port_value"), fmt.Sprintf("cluster %s asks port %d, weir listens on %s (server.grpc)", quote(c.GetName()), s.GetPortValue(), grpc), fmt.Sprintf("set port_value: %d", listen))
	case s != nil && !tcp:
		l.warn(l.doc.of(s), fmt.Sprintf("cluster %s asks a port, weir listens on %s (server.grpc)", quote(c.GetName()), grpc), "write pipe: {path: ...}, or change server.grpc")
	case a.GetPipe() != nil && tcp:
		l.warn(l.doc.of(a.GetPipe()), fmt.Sprintf("cluster %s asks a socket, weir listens on %s (server.grpc)", quote(c.GetName()), grpc), "write socket_address, or change server.grpc")
	}
}

func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// cutPort is the host and port of a TCP address.
func cutPort(address string) (host string, port uint32, ok bool) {
	i := strings.LastIndexByte(address, ':')
	if i < 0 || strings.HasPrefix(address, "unix:") {
		return "", 0, false
	}
	n, err := strconv.ParseUint(address[i+1:], 10, 16)
	return address[:i], uint32(n), err == nil
}
