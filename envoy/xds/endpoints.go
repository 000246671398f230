package xds

import (
	"net/netip"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weirproxy/weir/envoy/discovery"
	"github.com/weirproxy/weir/envoy/protect"
)

// assignment is what one cluster's EDS resource is made of.
type assignment struct {
	cluster   string
	endpoints []discovery.Endpoint // sorted as discovery sorts them
	health    map[string]protect.Health
	out       []bool // by priority: kept out by outage
	drop      int64  // percent
	seq       string // "" = none
}

// healthOf is the worse of what discovery and weir know; a host of a region
// that is kept out is degraded, so that it is still there when all else fails.
func (a *assignment) healthOf(e *discovery.Endpoint) protect.Health {
	h := max(protect.Health(e.Health), a.health[e.Address.String()])
	if h == protect.Healthy && e.Priority < len(a.out) && a.out[e.Priority] {
		return protect.Degraded
	}
	return h
}

// build makes the resource. A cluster without endpoints has an empty one,
// which removes them; a missing resource would leave them.
func (a *assignment) build() *endpointv3.ClusterLoadAssignment {
	cla := &endpointv3.ClusterLoadAssignment{ClusterName: a.cluster}
	if a.drop > 0 {
		cla.Policy = &endpointv3.ClusterLoadAssignment_Policy{DropOverloads: []*endpointv3.ClusterLoadAssignment_Policy_DropOverload{{
			Category:       "weir", // Envoy takes one category
			DropPercentage: &typev3.FractionalPercent{Numerator: uint32(a.drop), Denominator: typev3.FractionalPercent_HUNDRED},
		}}}
	}
	parts := make(map[discovery.Subset]*structpb.Struct)
	var group *endpointv3.LocalityLbEndpoints
	var last *discovery.Endpoint
	for i := range a.endpoints {
		e := &a.endpoints[i]
		if last == nil || e.Priority != last.Priority || e.Region != last.Region || e.Zone != last.Zone {
			group = &endpointv3.LocalityLbEndpoints{Priority: uint32(e.Priority)}
			if e.Region != "" || e.Zone != "" {
				group.Locality = &corev3.Locality{Region: e.Region, Zone: e.Zone}
			}
			cla.Endpoints = append(cla.Endpoints, group)
		}
		last = e
		one := host(e.Address, e.Weight, a.healthOf(e))
		if e.Subset != "" {
			one.Metadata = labelled(parts, e.Subset)
		}
		group.LbEndpoints = append(group.LbEndpoints, one)
	}
	if a.seq != "" && len(cla.Endpoints) > 0 {
		first := cla.Endpoints[0].LbEndpoints[0]
		if first.Metadata == nil {
			first.Metadata = &corev3.Metadata{FilterMetadata: make(map[string]*structpb.Struct)}
		}
		first.Metadata.FilterMetadata["weir"] = &structpb.Struct{Fields: map[string]*structpb.Value{"seq": structpb.NewStringValue(a.seq)}}
	}
	return cla
}

// labelled is the metadata of a host of a subset. Hosts of one share its
// labels, which nobody changes.
func labelled(parts map[discovery.Subset]*structpb.Struct, s discovery.Subset) *corev3.Metadata {
	part := parts[s]
	if part == nil {
		part = &structpb.Struct{Fields: make(map[string]*structpb.Value)}
		for k, v := range s.Labels() {
			part.Fields[k] = structpb.NewStringValue(v)
		}
		parts[s] = part
	}
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"envoy.lb": part}}
}

func host(address netip.AddrPort, weight uint32, h protect.Health) *endpointv3.LbEndpoint {
	e := &endpointv3.LbEndpoint{
		HealthStatus: statusOf(h),
		HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: &corev3.Address{
			Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
				Address: address.Addr().String(), PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(address.Port())},
			}},
		}}},
	}
	if weight > 0 {
		e.LoadBalancingWeight = wrapperspb.UInt32(weight)
	}
	return e
}

func statusOf(h protect.Health) corev3.HealthStatus {
	switch h {
	case protect.Degraded:
		return corev3.HealthStatus_DEGRADED
	case protect.Unhealthy:
		return corev3.HealthStatus_UNHEALTHY
	case protect.Draining:
		return corev3.HealthStatus_DRAINING
	}
	return corev3.HealthStatus_HEALTHY
}

// regions judges each priority of a cluster; nil where there is no other to
// fail over to. It keeps its memory in outages.
func regions(now time.Time, a *assignment, outages []outage, hold time.Duration) []bool {
	well := make([]bool, len(outages))
	for i := range a.endpoints {
		e := &a.endpoints[i]
		if max(protect.Health(e.Health), a.health[e.Address.String()]) == protect.Healthy && e.Priority < len(well) {
			well[e.Priority] = true
		}
	}
	out := make([]bool, len(outages))
	for p := range outages {
		out[p] = outages[p].step(now, well[p], hold)
	}
	if len(outages) < 2 {
		return nil
	}
	return out
}
