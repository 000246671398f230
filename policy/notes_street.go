package policy

import (
	"fmt"
	"strings"
)

// streetNotes: what is protected in name only.
func streetNotes(p *Policy) []string {
	notes := append(clusterNotes(p), firstByteNotes(p)...)
	if p.Server.Replicas > 1 && p.Breaker.Cascade.Bus == BusOff {
		notes = append(notes, fmt.Sprintf("server.replicas is %d and breaker.cascade.bus is off: each weir learns of an open breaker by itself", p.Server.Replicas))
	}
	if p.Breaker.GRPC != nil && p.Breaker.GRPC.Progressive {
		notes = append(notes, "breaker.grpc.coolDown has no effect: the progressive cool-down is for HTTP pools, breakers of gRPC pools open for breaker.grpc.open each time")
	}
	protection := &p.Envoy.Protection
	if p.Envoy.XDS == nil {
		if protection.HardDrop > 0 && !protection.Off { // softDrop is no more
			notes = append(notes, "envoy.protection drops nothing: there is no envoy.xds to push it")
		}
		return notes
	}
	for i := range p.Envoy.XDS.Nodes {
		for j := range i {
			if g := &p.Envoy.XDS.Nodes[j]; g.ID == "" && g.Cluster == "" && len(g.SANs) == 0 {
				notes = append(notes, fmt.Sprintf("envoy.xds.nodes %s gets nobody: %s before it takes every node", p.Envoy.XDS.Nodes[i].Name, g.Name))
				break
			}
		}
	}
	return notes
}

// firstByteNotes: bounds that never come to anything.
func firstByteNotes(p *Policy) []string {
	var notes []string
	for i := range p.Pools {
		pool := &p.Pools[i]
		if pool.FirstByte == 0 && pool.Learnt == nil {
			continue
		}
		if pool.Protocol == GRPCProtocol {
			notes = append(notes, fmt.Sprintf("pool %s: firstByte does not hold for gRPC calls: weir does not see that they were sent whole, and callers who stall would open the breaker", pool.Name))
		}
		if pool.FirstByte >= pool.MaxHold {
			notes = append(notes, fmt.Sprintf("pool %s: firstByte %v comes to nothing: maxHold, %v, takes the seat back before", pool.Name, pool.FirstByte, pool.MaxHold))
		}
	}
	return notes
}

// clusterNotes are on what envoy.clusters lists.
func clusterNotes(p *Policy) []string {
	var notes []string
	note := func(c *Cluster, format string, args ...any) {
		notes = append(notes, "cluster "+c.Name+": "+fmt.Sprintf(format, args...))
	}
	for i := range p.Envoy.Clusters {
		c := &p.Envoy.Clusters[i]
		seats, line, pools := p.load(c.Name)
		switch {
		case pools == 0 && c.Endpoints == nil:
			note(c, "no pool has it and it has no endpoints: nothing protects it")
		case pools > 0 && c.MaxRequests > 0 && c.MaxRequests < seats+line:
			note(c, "maxRequests %d is below the %d seats of its pools and the %d places of the line: Envoy refuses what weir admits", c.MaxRequests, seats, line)
		}
		if c.Endpoints != nil && p.Envoy.XDS == nil {
			note(c, "its endpoints are not served: there is no envoy.xds")
		}
	}
	if p.Envoy.XDS != nil && p.Envoy.XDS.CDS {
		for _, c := range p.protected() {
			if c.Endpoints == nil {
				note(&c, "envoy.xds.cds does not serve it: it has no endpoints")
			}
		}
	}
	return notes
}

// some lists names, the first few of many.
func some(names []string) string {
	const most = 8
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
