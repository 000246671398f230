package policy

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// adminRule keeps weir to admin addresses that only this machine reaches:
// whoever reaches one can stop its Envoy and read its secrets.
func adminRule(s string) string {
	if strings.HasPrefix(s, "unix:") {
		return listenRule(s)
	}
	u, message := parseWeb(s)
	switch {
	case message != "":
		return "must be http://127.0.0.1:port or unix:/path"
	case u.Scheme != "http":
		return "must be http: Envoy's admin interface speaks nothing else"
	case !loopbackHost(u.Hostname()):
		return "must be on loopback, or unix:/path: Envoy's admin interface is no public one, whoever reaches it can stop that Envoy"
	case u.Path != "" && u.Path != "/" || u.RawQuery != "":
		return "must not have a path: weir adds its own"
	}
	return ""
}

// checkDrops: the maintenance key takes whole percents and rounds nothing (a
// fraction counts as 0).
func checkDrops(d *decoder, _ *yaml.Node, at string, p *Protection, _ func(string) bool) {
	if p.SoftDrop > p.HardDrop {
		d.failAt(join(at, "softDrop"), formatRatio(p.SoftDrop), "must not exceed hardDrop, "+formatRatio(p.HardDrop))
	}
	if p.Shedding != Maintenance {
		return
	}
	for _, drop := range p.drops() {
		if percent := float64(100 * drop.share); math.Abs(percent-math.Round(percent)) > 1e-9 {
			d.failAt(join(at, drop.key), formatRatio(drop.share), "must be whole percents with shedding: maintenance")
		}
	}
}

type drop struct {
	key   string
	share Ratio
}

func (p *Protection) drops() []drop {
	return []drop{{"softDrop", p.SoftDrop}, {"hardDrop", p.HardDrop}}
}

// checkCascade: Redis is that of the store.
func (d *decoder) checkCascade(p *Policy) {
	if p.Breaker.Cascade.Bus == BusRedis && p.Store.Redis == nil {
		d.failAt("breaker.cascade.bus", "redis", "needs store.redis, whose Redis it uses")
	}
}

// checkClusters: each cluster is one, of one protocol.
func (d *decoder) checkClusters(p *Policy) {
	listed := make(map[string]int)
	for i := range p.Envoy.Clusters {
		name := p.Envoy.Clusters[i].Name
		if j, twice := listed[name]; twice {
			d.failAt(index2("envoy.clusters", i, "name"), name, fmt.Sprintf("is the name of envoy.clusters[%d] too", j))
			continue
		}
		listed[name] = i
	}
	first := make(map[string]int) // pool of a cluster
	for i := range p.Pools {
		pool := &p.Pools[i]
		j, shared := first[pool.Cluster]
		k, known := listed[pool.Cluster]
		switch {
		case shared && p.Pools[j].Protocol != pool.Protocol:
			d.failAt(index2("pools", i, "protocol"), pool.Protocol.String(),
				fmt.Sprintf("must be that of pools[%d], %s, which has the same cluster", j, p.Pools[j].Protocol))
		case !shared && known && p.Envoy.Clusters[k].protocolSet && p.Envoy.Clusters[k].Protocol != pool.Protocol:
			d.failAt(index2("envoy.clusters", k, "protocol"), p.Envoy.Clusters[k].Protocol.String(),
				fmt.Sprintf("must be that of pools[%d], %s, which has this cluster", i, pool.Protocol))
		}
		if !shared {
			first[pool.Cluster] = i
		}
	}
}

// checkSubsets: a part of a cluster that no host belongs to answers 503.
func (d *decoder) checkSubsets(p *Policy) {
	for i := range p.Pools {
		pool := &p.Pools[i]
		k := slices.IndexFunc(p.Envoy.Clusters, func(c Cluster) bool { return c.Name == pool.Cluster })
		if len(pool.Subset) == 0 || k < 0 || p.Envoy.Clusters[k].Endpoints == nil {
			continue
		}
		if !slices.ContainsFunc(p.Envoy.Clusters[k].Endpoints.Priorities, func(s EndpointSet) bool { return s.mayHave(pool.Subset) }) {
			d.failAt(index2("pools", i, "envoy.subset"), shownLabels(pool.Subset), fmt.Sprintf(
				"no host of envoy.clusters[%d].endpoints can belong to it, and the pool would answer 503: say subset in one of its sets, or for each host in a file", k))
		}
	}
}

// mayHave reports whether hosts of the set may belong to a part of a cluster.
// What a file will say of its hosts is not known.
func (s *EndpointSet) mayHave(subset map[string]string) bool {
	if s.File != "" {
		return true
	}
	for k, v := range subset {
		if is, said := s.Subset[k]; !said || is != v {
			return false
		}
	}
	return true
}

// shownLabels are labels in order, for a message.
func shownLabels(m map[string]string) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, k+": "+m[k])
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// checkWatch: counters of two Envoys must not be taken for those of one.
func (d *decoder) checkWatch(p *Policy) {
	admin := p.Envoy.Watch.Admin
	for i := range admin {
		for j := range i {
			if admin[i].Node == admin[j].Node {
				d.failAt(index2("envoy.watch.admin", i, "node"), admin[i].Node, fmt.Sprintf("is the node of envoy.watch.admin[%d] too", j))
				break
			}
			if admin[i].URL == admin[j].URL {
				d.failAt(index2("envoy.watch.admin", i, "url"), admin[i].URL, fmt.Sprintf("is the url of envoy.watch.admin[%d] too", j))
				break
			}
		}
	}
}

// checkProtection: drop_overloads travel with endpoints.
func (d *decoder) checkProtection(p *Policy) {
	protection := &p.Envoy.Protection
	if protection.Off || protection.Shedding != DropOverload {
		return
	}
	var without []string
	for _, c := range p.protectedClusters() {
		if c.Endpoints == nil {
			without = append(without, c.Name)
		}
	}
	if without == nil {
		return
	}
	for _, drop := range protection.drops() {
		if drop.share > 0 {
			d.failAt("envoy.protection."+drop.key, formatRatio(drop.share),
				"cannot be dropped where weir serves no endpoints: use shedding: maintenance; without endpoints are "+some(without))
			return
		}
	}
}

// checkXDS: who connects is who the certificate says.
func (d *decoder) checkXDS(p *Policy) {
	x := p.Envoy.XDS
	if x == nil {
		return
	}
	var names []string
	there := make(map[string]bool)
	for _, c := range p.protectedClusters() {
		names = append(names, c.Name)
		there[c.Name] = true
	}
	for i := range x.Nodes {
		g := &x.Nodes[i]
		at := fmt.Sprintf("envoy.xds.nodes[%d]", i)
		for j := range i {
			if x.Nodes[j].Name == g.Name {
				d.failAt(at+".name", g.Name, fmt.Sprintf("is the name of envoy.xds.nodes[%d] too", j))
				break
			}
		}
		if len(g.SANs) > 0 && (p.Server.TLS == nil || p.Server.TLS.ClientCA == "") {
			d.failAt(at+".sans", g.SANs[0], "needs server.tls.clientCA: without it nobody shows a certificate")
		}
		for j, c := range g.Clusters {
			if !there[c] {
				d.failAt(fmt.Sprintf("%s.clusters[%d]", at, j), c, "no such cluster; the clusters are "+some(names))
			}
		}
	}
}
