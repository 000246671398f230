package lint

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// What really runs is told by a dump: /config_dump of Envoy's admin address,
// what `egctl x translate` prints (dumps under a name), or what
// `istioctl proxy-config` prints (dumps, or lists of listeners, clusters and
// routes). A dump is put together into the bootstrap that would say the same,
// out of its own nodes, so that each finding has its place in the dump.

// Source is what a file was read as.
type Source string

// The sources.
const (
	FromBootstrap Source = "bootstrap"
	FromDump      Source = "config dump"
)

// dump collects what a dump holds.
type dump struct {
	bootstrap           *yaml.Node
	listeners, clusters []*yaml.Node
	routes              map[string]*yaml.Node // by name
}

// bootstrapOf is the bootstrap that a file says. A file that is no dump is one.
func bootstrapOf(root *yaml.Node) (*yaml.Node, Source) {
	d := &dump{routes: map[string]*yaml.Node{}}
	if !d.read(root, 0) {
		return root, FromBootstrap
	}
	return d.build(), FromDump
}

// read takes what it knows out of a node; false where that is nothing.
func (d *dump) read(n *yaml.Node, depth int) bool {
	n = resolve(n)
	if n == nil || depth > 8 {
		return false
	}
	if n.Kind == yaml.SequenceNode {
		found := false
		for _, c := range n.Content {
			found = d.read(c, depth+1) || found
		}
		return found
	}
	if n.Kind != yaml.MappingNode {
		return false
	}
	if configs := valueOf(n, "configs"); configs != nil {
		for _, c := range items(configs) {
			d.part(c)
		}
		return true
	}
	if t, ok := find(n, "@type"); ok {
		return d.resource(n, t.value.Value)
	}
	if depth > 0 && d.bare(n) {
		return true
	}
	if _, ok := find(n, "static_resources"); ok {
		return false
	}
	found := false
	for i := 0; i+1 < len(n.Content); i += 2 { // egctl: xds: {envoy-gateway-system/eg: {configs: ...}}
		if v := resolve(n.Content[i+1]); v != nil && (v.Kind == yaml.MappingNode || v.Kind == yaml.SequenceNode) && strings.ContainsAny(n.Content[i].Value, "/") || n.Content[i].Value == "xds" {
			found = d.read(v, depth+1) || found
		}
	}
	return found
}

// part reads one of the configs of a dump by its type.
func (d *dump) part(n *yaml.Node) {
	t, ok := find(n, "@type")
	if !ok {
		return
	}
	switch kind := t.value.Value[strings.LastIndexByte(t.value.Value, '.')+1:]; kind {
	case "BootstrapConfigDump":
		d.bootstrap = valueOf(n, "bootstrap")
	case "ListenersConfigDump":
		d.add(&d.listeners, n, "static_listeners", "listener")
		for _, l := range items(valueOf(n, "dynamic_listeners")) {
			for _, state := range []string{"active_state", "warming_state"} {
				if v := valueOf(valueOf(l, state), "listener"); v != nil {
					d.listeners = append(d.listeners, v)
					break
				}
			}
		}
	case "ClustersConfigDump":
		for _, key := range []string{"static_clusters", "dynamic_active_clusters", "dynamic_warming_clusters"} {
			d.add(&d.clusters, n, key, "cluster")
		}
	case "RoutesConfigDump":
		for _, key := range []string{"static_route_configs", "dynamic_route_configs"} {
			for _, r := range items(valueOf(n, key)) {
				d.route(valueOf(r, "route_config"))
			}
		}
	}
}

func (d *dump) add(to *[]*yaml.Node, n *yaml.Node, key, in string) {
	for _, one := range items(valueOf(n, key)) {
		if v := valueOf(one, in); v != nil {
			*to = append(*to, v)
		}
	}
}

func (d *dump) route(n *yaml.Node) {
	if name := valueOf(n, "name"); name != nil {
		d.routes[name.Value] = n
	}
}

// resource is a resource that stands by itself with its type.
func (d *dump) resource(n *yaml.Node, url string) bool {
	switch url[strings.LastIndexByte(url, '/')+1:] {
	case "envoy.config.listener.v3.Listener":
		d.listeners = append(d.listeners, n)
	case "envoy.config.cluster.v3.Cluster":
		d.clusters = append(d.clusters, n)
	case "envoy.config.route.v3.RouteConfiguration":
		d.route(n)
	case "envoy.admin.v3.ConfigDump":
		return true
	default:
		d.part(n)
	}
	return true
}

// bare is a resource of a list, which says by its fields what it is.
func (d *dump) bare(n *yaml.Node) bool {
	has := func(keys ...string) bool {
		return slices.ContainsFunc(keys, func(k string) bool { return valueOf(n, k) != nil })
	}
	switch {
	case !has("name"):
		return false
	case has("filter_chains", "default_filter_chain"):
		d.listeners = append(d.listeners, n)
	case has("virtual_hosts"):
		d.route(n)
	case has("type", "cluster_type", "load_assignment", "eds_cluster_config"):
		d.clusters = append(d.clusters, n)
	default:
		return false
	}
	return true
}

// build makes the bootstrap; the dump's own nodes are copied where they change.
func (d *dump) build() *yaml.Node {
	static := mapping("listeners", list(d.listeners...), "clusters", list(d.clusters...))
	for i, l := range d.listeners {
		static.Content[1].Content[i] = d.routed(l, 0)
	}
	out := mapping("static_resources", static)
	if d.bootstrap == nil {
		return out
	}
	for i := 0; i+1 < len(d.bootstrap.Content); i += 2 {
		switch key := d.bootstrap.Content[i]; key.Value {
		case "static_resources", "staticResources", "dynamic_resources", "dynamicResources":
			// what they brought is in the dump itself
		default:
			out.Content = append(out.Content, key, d.bootstrap.Content[i+1])
		}
	}
	return out
}

// routed is a node in which each rds is the route table that it brought, and
// no @type of a resource is left at the top.
func (d *dump) routed(n *yaml.Node, depth int) *yaml.Node {
	if n = resolve(n); n == nil || depth > maxDepth {
		return n
	}
	switch n.Kind {
	case yaml.SequenceNode:
		c := *n
		c.Content = make([]*yaml.Node, len(n.Content))
		for i := range n.Content {
			c.Content[i] = d.routed(n.Content[i], depth+1)
		}
		return &c
	case yaml.MappingNode:
		c := *n
		c.Content = nil
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := n.Content[i], n.Content[i+1]
			if key.Value == "rds" {
				if name := valueOf(value, "route_config_name"); name != nil && d.routes[name.Value] != nil {
					k := *key
					k.Value = "route_config"
					c.Content = append(c.Content, &k, d.routes[name.Value])
					continue
				}
			}
			c.Content = append(c.Content, key, d.routed(value, depth+1))
		}
		return &c
	}
	return n
}

// valueOf is the value of a field by its name in protos or in JSON; nil where
// there is none.
func valueOf(n *yaml.Node, field string) *yaml.Node {
	for _, key := range []string{field, inJSON(field)} {
		if e, ok := find(n, key); ok {
			return resolve(e.value)
		}
	}
	return nil
}

// inJSON is a field's name in JSON: route_config is routeConfig.
func inJSON(field string) string {
	parts := strings.Split(field, "_")
	for i := 1; i < len(parts); i++ {
		parts[i] = strings.ToUpper(parts[i][:1]) + parts[i][1:]
	}
	return strings.Join(parts, "")
}

func items(n *yaml.Node) []*yaml.Node {
	if n = resolve(n); n == nil || n.Kind != yaml.SequenceNode {
		return nil
	}
	return n.Content
}

func list(nodes ...*yaml.Node) *yaml.Node {
	return &yaml.Node{Kind: yaml.SequenceNode, Content: nodes, Line: 1, Column: 1}
}

func mapping(pairs ...any) *yaml.Node {
	m := &yaml.Node{Kind: yaml.MappingNode, Line: 1, Column: 1}
	for i := 0; i+1 < len(pairs); i += 2 {
		key, _ := pairs[i].(string)
		value, _ := pairs[i+1].(*yaml.Node)
		m.Content = append(m.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: key, Line: 1, Column: 1}, value)
	}
	return m
}
