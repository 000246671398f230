package xds

import (
	"reflect"

	runtimev3 "github.com/envoyproxy/go-control-plane/envoy/service/runtime/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weirproxy/weir/policy"
)

// own makes the CDS resources; none without a maker.
func (b *book) own(clusters []policy.Cluster, c *changes) {
	if b.cds == nil || len(clusters) > 0 && len(clusters) == len(b.owned) && &clusters[0] == &b.owned[0] {
		return // the very snapshot of last time
	}
	b.owned = clusters
	there := make(map[string]bool, len(clusters))
	for i := range clusters {
		k := &clusters[i]
		if k.Endpoints == nil {
			continue // its hosts are in Envoy's own file, and so is the cluster
		}
		r := b.record(k.Name)
		there[k.Name] = true
		if r.cluster != nil && reflect.DeepEqual(*r.cluster, *k) {
			continue
		}
		copied, was, is := *k, r.clusterRe, b.cds(k)
		if is == nil {
			there[k.Name] = false
			continue
		}
		r.cluster, r.clusterRe = &copied, is
		if was == nil || !sameProto(was, is) {
			c.clusters = append(c.clusters, k.Name)
		}
	}
	for name, r := range b.records {
		if r.clusterRe != nil && !there[name] {
			r.cluster, r.clusterRe = nil, nil
			c.clusters = append(c.clusters, name)
		}
	}
}

func sameProto(a, b proto.Message) bool { return proto.Equal(a, b) }

// clusterResource is nil where CDS does not serve the cluster.
func (r *record) clusterResource() types.Resource {
	if r.clusterRe == nil {
		return nil
	}
	return r.clusterRe
}

// endpointResource is nil where EDS does not serve the cluster.
func (r *record) endpointResource() types.Resource {
	if r.resource == nil {
		return nil
	}
	return r.resource
}

// runtimeLayer is the RTDS resource: flat keys, whole numbers. Without keys
// it is there all the same: an empty layer is an update, a missing one is an
// accident.
func runtimeLayer(name string, keys map[string]int64) *runtimev3.Runtime {
	fields := make(map[string]*structpb.Value, len(keys))
	for key, v := range keys {
		fields[key] = structpb.NewNumberValue(float64(v))
	}
	return &runtimev3.Runtime{Name: name, Layer: &structpb.Struct{Fields: fields}}
}
