package policy

import (
	"fmt"
	"math"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"
)

func envoyTable() codec[Envoy] {
	return object(
		key("messageTimeout", func(e *Envoy) *time.Duration { return &e.MessageTimeout }, duration(10*time.Millisecond, time.Hour, false)),
		key("maxMessageTimeout", func(e *Envoy) *time.Duration { return &e.MaxMessageTimeout }, duration(10*time.Millisecond, time.Hour, true)),
		key("maxRequests", func(e *Envoy) *int { return &e.MaxRequests }, whole[int](1, 10_000_000)),
		key("allowLoosen", func(e *Envoy) *bool { return &e.AllowLoosen }, boolean()),
		key("trustCallers", func(e *Envoy) *bool { return &e.TrustCallers }, boolean()),
		key("namespace", func(e *Envoy) *string { return &e.Namespace }, namespace()),
		key("authzNamespace", func(e *Envoy) *string { return &e.AuthzNamespace }, namespace()),
		key("clusters", func(e *Envoy) *[]Cluster { return &e.Clusters }, maybe(list(clusterTable(), defaultCluster, 0, 10_000), emptyList)),
		key("watch", func(e *Envoy) *Watch { return &e.Watch }, watchTable()),
		key("protection", func(e *Envoy) *Protection { return &e.Protection }, protectionTable()),
		key("xds", func(e *Envoy) **XDS { return &e.XDS }, pointer(xdsTable(), defaultXDS)),
	)
}

func protocol() codec[Protocol] {
	return enum(choice[Protocol]{"http", HTTP}, choice[Protocol]{"grpc", GRPCProtocol})
}

// clusterProtocol keeps apart a cluster that says its protocol from one that
// has that of its pools.
func clusterProtocol() codec[Cluster] {
	c := protocol()
	return codec[Cluster]{
		shape: c.shape,
		read: func(d *decoder, n *yaml.Node, at string, k *Cluster) {
			c.read(d, n, at, &k.Protocol)
			k.protocolSet = true
		},
		write: func(e *encoder, k *Cluster) *yaml.Node {
			if !k.protocolSet {
				return nil
			}
			return c.write(e, &k.Protocol)
		},
	}
}

// maxThreshold is the largest number that Envoy's thresholds hold; operators
// write it for "no bound".
const maxThreshold int64 = math.MaxUint32

func clusterTable() codec[Cluster] {
	threshold := func(least int64) codec[int64] { return whole(least, maxThreshold) }
	return object(
		key("name", func(c *Cluster) *string { return &c.Name }, text(1, 256)).need(),
		group("protocol", clusterProtocol()),
		key("maxConnections", func(c *Cluster) *int64 { return &c.MaxConnections }, threshold(1)),
		key("maxPending", func(c *Cluster) *int64 { return &c.MaxPending }, threshold(1)),
		key("maxRequests", func(c *Cluster) *int64 { return &c.MaxRequests }, maybe(threshold(1), noValue)),
		key("maxRetries", func(c *Cluster) *int64 { return &c.MaxRetries }, threshold(0)),
		key("retryBudget", func(c *Cluster) *Ratio { return &c.Budget }, ratio(false)),
		key("minRetries", func(c *Cluster) *int64 { return &c.MinRetries }, threshold(0)),
		key("endpoints", func(c *Cluster) **Endpoints { return &c.Endpoints }, pointer(endpointsTable(), defaultEndpoints)),
	)
}

// maxPriorities bounds the sets of a cluster's endpoints.
const maxPriorities = 8

func endpointsTable() codec[Endpoints] {
	return objectThen(checkPriorities,
		key("priorities", func(e *Endpoints) *[]EndpointSet { return &e.Priorities }, list(endpointSetTable(), zero[EndpointSet], 1, maxPriorities)).need(),
		key("return", func(e *Endpoints) *time.Duration { return &e.Return }, duration(0, 24*time.Hour, true)),
		key("heartbeat", func(e *Endpoints) *time.Duration { return &e.Heartbeat }, duration(100*time.Millisecond, time.Minute, true)),
	)
}

// endpointSources are the keys of which a set has exactly one.
func endpointSources() []string { return []string{"static", "file", "dns", "slices"} }

func endpointSetTable() codec[EndpointSet] {
	host := checked(tcpAddress(), "ip:port", func(s string) string {
		if host, _, err := net.SplitHostPort(s); err == nil {
			if _, err := netip.ParseAddr(host); err != nil {
				return "must be ip:port: EDS takes no names; dns looks a name up"
			}
		}
		return ""
	})
	c := objectThen(checkEndpointSet,
		key("region", func(s *EndpointSet) *string { return &s.Region }, maybe(text(1, 256), noValue)),
		key("static", func(s *EndpointSet) *[]string { return &s.Static }, maybe(unique(list(host, zero[string], 1, 10_000)), emptyList)),
		key("file", func(s *EndpointSet) *string { return &s.File }, fileName()),
		key("dns", func(s *EndpointSet) *string { return &s.DNS }, maybe(tcpAddress(), noValue)),
		key("slices", func(s *EndpointSet) *string { return &s.Slices }, fileName()),
		key("port", func(s *EndpointSet) *string { return &s.Port }, maybe(text(1, 64), noValue)),
		key("every", func(s *EndpointSet) *time.Duration { return &s.Every }, maybe(duration(100*time.Millisecond, 10*time.Minute, false), noValue)),
		key("subset", func(s *EndpointSet) *map[string]string { return &s.Subset }, labels()),
		key("priority", func(s *EndpointSet) **int { return &s.Priority }, pointer(whole(0, maxPriorities-1), zero[int])),
	)
	c.shape.one = endpointSources()
	return c
}

func checkEndpointSet(d *decoder, n *yaml.Node, at string, _ *EndpointSet, has func(string) bool) {
	sources := 0
	for _, k := range endpointSources() {
		if has(k) {
			sources++
		}
	}
	if sources != 1 {
		d.report(n, at, "", "must have exactly one of static, file, dns and slices")
		return
	}
	if has("port") && !has("slices") {
		d.report(d.places[join(at, "port")], join(at, "port"), "", "is used with slices only: elsewhere each host has its own")
	}
	if has("every") && has("static") {
		d.report(d.places[join(at, "every")], join(at, "every"), "", "is not used with static, which does not change")
	}
}

// checkPriorities: Envoy wants them from 0 without a gap.
func checkPriorities(d *decoder, _ *yaml.Node, at string, e *Endpoints, _ func(string) bool) {
	var there [maxPriorities]bool
	for i := range e.Priorities {
		there[e.Priority(i)] = true
	}
	for i := range e.Priorities {
		p := e.Priority(i)
		if gap := slices.Index(there[:p+1], false); gap >= 0 {
			d.failAt(index2(join(at, "priorities"), i, "priority"), strconv.Itoa(p),
				fmt.Sprintf("leaves out priority %d: Envoy wants them from 0 without a gap", gap))
			return
		}
	}
}

func watchTable() codec[Watch] {
	goaway := object(
		key("perSecond", func(g *GoAway) *float64 { return &g.PerSecond }, number(0, 1_000_000)),
		key("share", func(g *GoAway) *Ratio { return &g.Share }, ratio(false)),
		key("window", func(g *GoAway) *time.Duration { return &g.Window }, duration(time.Second, 10*time.Minute, false)),
		key("literal", func(g *GoAway) *bool { return &g.Literal }, boolean()),
	)
	protect := objectThen(func(d *decoder, _ *yaml.Node, at string, p *Protect, _ func(string) bool) {
		if p.Below >= p.Above {
			d.failAt(join(at, "below"), formatRatio(p.Below), "must be below above, "+formatRatio(p.Above)+": what lies between keeps it from flapping")
		}
	},
		key("below", func(p *Protect) *Ratio { return &p.Below }, ratio(true)),
		key("above", func(p *Protect) *Ratio { return &p.Above }, ratio(true)),
		key("calm", func(p *Protect) *time.Duration { return &p.Calm }, duration(0, time.Hour, true)),
	)
	return object(
		key("admin", func(w *Watch) *[]EnvoyAdmin { return &w.Admin }, maybe(list(envoyAdminTable(), zero[EnvoyAdmin], 0, 1000), emptyList)),
		key("metrics", func(w *Watch) *bool { return &w.Metrics }, boolean()),
		key("every", func(w *Watch) *time.Duration { return &w.Every }, duration(100*time.Millisecond, time.Minute, false)),
		key("goaway", func(w *Watch) *GoAway { return &w.GoAway }, goaway),
		key("protect", func(w *Watch) *Protect { return &w.Protect }, protect),
	)
}

func envoyAdminTable() codec[EnvoyAdmin] {
	place := checked(text(1, 512), "http on loopback, unix:/path or unix:@abstract", adminRule)
	return object(
		key("node", func(a *EnvoyAdmin) *string { return &a.Node }, text(1, 256)).need(),
		key("url", func(a *EnvoyAdmin) *string { return &a.URL }, place).need(),
	)
}

func protectionTable() codec[Protection] {
	shedding := enum(choice[Shedding]{"dropOverload", DropOverload}, choice[Shedding]{"maintenance", Maintenance})
	return objectThen(checkDrops,
		key("disabled", func(p *Protection) *bool { return &p.Off }, boolean()),
		key("calm", func(p *Protection) *time.Duration { return &p.Calm }, duration(100*time.Millisecond, time.Hour, false)),
		key("interval", func(p *Protection) *time.Duration { return &p.Interval }, duration(10*time.Millisecond, time.Minute, false)),
		key("maxPerSecond", func(p *Protection) *int { return &p.MaxPerSec }, whole[int](1, 100_000)),
		key("floor", func(p *Protection) *Ratio { return &p.Floor }, ratio(false)),
		key("softDrop", func(p *Protection) *Ratio { return &p.SoftDrop }, ratio(false)),
		key("hardDrop", func(p *Protection) *Ratio { return &p.HardDrop }, ratio(false)),
		key("shedding", func(p *Protection) *Shedding { return &p.Shedding }, shedding),
	)
}

func xdsTable() codec[XDS] {
	state := checked(text(1, 4096), "an absolute directory", func(s string) string {
		if !filepath.IsAbs(s) {
			return "must be an absolute directory: it is not looked for beside the policy file"
		}
		return ""
	})
	node := object(
		key("name", func(g *XDSGroup) *string { return &g.Name }, name()).need(),
		key("id", func(g *XDSGroup) *string { return &g.ID }, pattern()),
		key("cluster", func(g *XDSGroup) *string { return &g.Cluster }, pattern()),
		key("sans", func(g *XDSGroup) *[]string { return &g.SANs }, maybe(unique(list(pattern(), zero[string], 1, 100)), emptyList)),
		key("clusters", func(g *XDSGroup) *[]string { return &g.Clusters }, maybe(unique(list(text(1, 256), zero[string], 1, 10_000)), emptyList)),
	)
	return object(
		key("state", func(x *XDS) *string { return &x.State }, maybe(state, noValue)),
		key("cds", func(x *XDS) *bool { return &x.CDS }, boolean()),
		key("layer", func(x *XDS) *string { return &x.Layer }, name()),
		key("nodes", func(x *XDS) *[]XDSGroup { return &x.Nodes }, maybe(list(node, zero[XDSGroup], 0, 1000), emptyList)),
	)
}
