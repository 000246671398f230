package lint

import (
	"fmt"
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// notReferences are messages whose cluster field names something else.
var notReferences = []protoreflect.FullName{
	"envoy.config.core.v3.Node",
	"envoy.config.endpoint.v3.ClusterLoadAssignment",
}

// referenceFields are names of fields that hold the name of a cluster.
var referenceFields = []protoreflect.Name{"cluster", "cluster_name", "cluster_names", "collector_cluster", "tcp_cluster_name", "local_cluster_name", "shadow_cluster"}

// referenceElsewhere are fields of other names that do too.
var referenceElsewhere = []protoreflect.FullName{
	"envoy.config.route.v3.WeightedCluster.ClusterWeight.name",
	"envoy.extensions.clusters.aggregate.v3.ClusterConfig.clusters",
	"envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy.WeightedCluster.ClusterWeight.name",
}

func isReference(fd protoreflect.FieldDescriptor) bool {
	if fd.Kind() != protoreflect.StringKind || fd.IsMap() {
		return false
	}
	if slices.Contains(referenceElsewhere, fd.FullName()) {
		return true
	}
	return slices.Contains(referenceFields, fd.Name()) && !slices.Contains(notReferences, fd.ContainingMessage().FullName())
}

// checkReferences looks up each name of a cluster, wherever it stands. Envoy
// looks up routes only, and not those of ext_proc, ext_authz or a sink.
func checkReferences(l *linter) {
	for _, m := range l.doc.messages {
		fields := m.ProtoReflect().Descriptor().Fields()
		for i := range fields.Len() {
			fd := fields.Get(i)
			if !isReference(fd) || !m.ProtoReflect().Has(fd) {
				continue
			}
			if !fd.IsList() {
				l.reference(m, m.ProtoReflect().Get(fd).String(), l.doc.field(m, string(fd.Name())))
				continue
			}
			list := m.ProtoReflect().Get(fd).List()
			for j := range list.Len() {
				l.reference(m, list.Get(j).String(), l.doc.item(m, string(fd.Name()), j))
			}
		}
	}
}

func (l *linter) reference(m proto.Message, name string, p at) {
	if name == "" || l.scene.clusters[name] != nil {
		return
	}
	if _, xds := within[*corev3.ApiConfigSource](l.doc, m); xds {
		return // checkXDSClusters
	}
	advice := "define it in static_resources.clusters"
	if near := l.nearest(name); near != "" {
		advice = "did you mean " + near + "?"
	}
	table, routed := within[*routev3.RouteConfiguration](l.doc, m)
	if routed && (table.GetValidateClusters() == nil || table.GetValidateClusters().GetValue()) {
		l.fail(p, "no cluster "+quote(name), advice+"; Envoy looks up routes of the file before CDS, unless validate_clusters is false")
		return
	}
	if l.scene.cds {
		l.warn(p, "no cluster "+quote(name)+" in this file", advice+"; fine where CDS brings it")
		return
	}
	l.fail(p, "no cluster "+quote(name), advice)
}

// nearest is the cluster that was meant: at most half of the name is written
// otherwise; "" = none.
func (l *linter) nearest(name string) string {
	best, found := min(4, len(name)/2+1), ""
	for _, c := range l.doc.root.GetStaticResources().GetClusters() {
		if d := distance(name, c.GetName()); d < best {
			best, found = d, c.GetName()
		}
	}
	return found
}

func checkClusterNames(l *linter) {
	seen := map[string]bool{}
	for _, c := range l.doc.root.GetStaticResources().GetClusters() {
		if seen[c.GetName()] {
			l.fail(l.doc.field(c, "name"), "cluster "+quote(c.GetName())+" is defined twice", "Envoy refuses to start: rename or remove one")
		}
		seen[c.GetName()] = true
	}
}

func checkAssignments(l *linter) {
	tags := l.emitsTags()
	for _, c := range l.doc.root.GetStaticResources().GetClusters() {
		a := c.GetLoadAssignment()
		if a.GetClusterName() != "" && a.GetClusterName() != c.GetName() {
			l.warn(l.doc.field(a, "cluster_name"), fmt.Sprintf("load_assignment is of cluster %s, not of %s", quote(a.GetClusterName()), quote(c.GetName())), "write cluster_name: "+c.GetName())
		}
		if strings.Contains(c.GetName(), ".") && (tags || l.Policy != nil && l.Policy.Envoy.XDS != nil) {
			l.warn(l.doc.field(c, "name"), "cluster name "+quote(c.GetName())+" has a dot, where Envoy cuts the tag: its statistics come under another name", "use - in place of the dot")
		}
	}
}

// checkXDSClusters: the cluster of an xDS source has to be static and not EDS.
// With DELTA_GRPC Envoy goes live without one.
func checkXDSClusters(l *linter) {
	all(l.doc, func(src *corev3.ApiConfigSource) {
		for i, g := range src.GetGrpcServices() {
			if e := g.GetEnvoyGrpc(); e != nil {
				l.xdsCluster(e.GetClusterName(), l.doc.field(e, "cluster_name"))
			} else if g.GetGoogleGrpc() == nil {
				l.fail(l.doc.item(src, "grpc_services", i), "an xDS source without a service", "write envoy_grpc: {cluster_name: weir}")
			}
		}
		for i, name := range src.GetClusterNames() {
			l.xdsCluster(name, l.doc.item(src, "cluster_names", i))
		}
	})
}

func (l *linter) xdsCluster(name string, p at) {
	c := l.scene.clusters[name]
	switch {
	case name == "":
	case c == nil:
		advice := "define it in static_resources.clusters; CDS cannot bring it"
		if near := l.nearest(name); near != "" {
			advice = "did you mean " + near + "?"
		}
		l.fail(p, "xDS source of cluster "+quote(name)+", which is not in static_resources: Envoy goes live and never connects", advice)
	case c.GetType() == clusterv3.Cluster_EDS:
		l.fail(p, "xDS source of cluster "+quote(name)+", which is EDS itself", "give that cluster type STATIC with a load_assignment")
	}
}

// checkPools holds the policy's names against the file.
func checkPools(l *linter) {
	if l.Policy == nil || l.scene.cds {
		return
	}
	want := map[string]string{}
	var order []string
	add := func(cluster, who string) {
		if want[cluster] == "" {
			want[cluster] = who
			order = append(order, cluster)
		}
	}
	for i := range l.Policy.Pools {
		add(l.Policy.Pools[i].Cluster, "pool "+l.Policy.Pools[i].Name)
	}
	for i := range l.Policy.Envoy.Clusters {
		add(l.Policy.Envoy.Clusters[i].Name, "envoy.clusters")
	}
	p := l.doc.field(l.doc.root.GetStaticResources(), "clusters")
	for _, name := range order {
		if l.scene.clusters[name] == nil {
			advice := "define it, or name the right one in the policy"
			if near := l.nearest(name); near != "" {
				advice += "; did you mean " + near + "?"
			}
			l.fail(p, fmt.Sprintf("%s of the policy is cluster %s, which is not here", want[name], quote(name)), advice)
		}
	}
}
