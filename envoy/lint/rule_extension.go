package lint

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"sync"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
)

//go:embed extensions.txt
var extensionsText string

// extensions is what Envoy's binary has, by category, and where it belongs.
type extensions struct {
	places map[protoreflect.FullName][]extensionPlace // by message
	since  map[string]map[string]Release              // category → type
}

// extensionPlace is a field that takes extensions of some categories.
type extensionPlace struct {
	field      protoreflect.Name
	categories []string
	direct     bool // a TypedStruct is not opened
	bare       bool // the configuration may be missing
}

var extensionTable = sync.OnceValue(func() *extensions {
	t := &extensions{places: map[protoreflect.FullName][]extensionPlace{}, since: map[string]map[string]Release{}}
	for line := range strings.Lines(extensionsText) {
		switch f := strings.Fields(line); {
		case len(f) >= 4 && f[0] == "place":
			m := protoreflect.FullName(f[1])
			t.places[m] = append(t.places[m], extensionPlace{
				field: protoreflect.Name(f[2]), categories: strings.Split(f[3], ","),
				direct: slices.Contains(f[4:], "direct"), bare: slices.Contains(f[4:], "bare"),
			})
		case len(f) == 4 && f[0] == "type":
			if t.since[f[1]] == nil {
				t.since[f[1]] = map[string]Release{}
			}
			t.since[f[1]][f[3]], _ = ParseRelease(f[2])
		}
	}
	return t
})

// checkExtensions: a place for an extension holds one of its category. What a
// field says of a message wins over what the message says of itself: filters of
// an upstream chain are others than those of the listener's.
func checkExtensions(l *linter) {
	table, judged := extensionTable(), map[proto.Message]bool{}
	for _, m := range l.doc.messages {
		r := m.ProtoReflect()
		for _, p := range table.places[r.Descriptor().FullName()] {
			fd := r.Descriptor().Fields().ByName(p.field)
			switch {
			case fd == nil || judged[m]:
			case fd.Message().FullName() == "google.protobuf.Any":
				l.extension(m, fd, p)
			case fd.IsList():
				for i := range r.Get(fd).List().Len() {
					l.extensionIn(r.Get(fd).List().Get(i).Message().Interface(), p, judged)
				}
			case r.Has(fd):
				l.extensionIn(r.Get(fd).Message().Interface(), p, judged)
			}
		}
	}
	l.checkUpstreamChains()
	l.checkEmptyEntries()
}

// extensionIn judges a message that holds an extension.
func (l *linter) extensionIn(m proto.Message, p extensionPlace, judged map[proto.Message]bool) {
	if fd := m.ProtoReflect().Descriptor().Fields().ByName("typed_config"); fd != nil {
		judged[m] = true
		l.extension(m, fd, p)
	}
}

func (l *linter) extension(m proto.Message, fd protoreflect.FieldDescriptor, place extensionPlace) {
	if o, ok := m.(interface{ GetIsOptional() bool }); ok && o.GetIsOptional() || l.doc.places[m] == nil {
		return // Envoy goes on without it
	}
	if o := fd.ContainingOneof(); o != nil {
		if other := m.ProtoReflect().WhichOneof(o); other != nil && other != fd {
			return // it comes from elsewhere
		}
	}
	a, _ := m.ProtoReflect().Get(fd).Message().Interface().(*anypb.Any)
	if n := l.doc.value(m, string(fd.Name())); a.GetTypeUrl() == "" {
		required := m.ProtoReflect().Descriptor().FullName() == "envoy.config.core.v3.TypedExtensionConfig" && n == nil
		if place.bare && n == nil || required || n != nil && len(n.Content) > 0 {
			return // allowed, or told already
		}
		name := ""
		if n, ok := m.(interface{ GetName() string }); ok {
			name = n.GetName()
		}
		l.fail(l.doc.of(m), fmt.Sprintf("extension %s has no %s", quote(name), fd.Name()), "Envoy refuses to start: write its typed_config with its @type")
		return
	}
	kind := strings.TrimPrefix(a.GetTypeUrl(), "type.googleapis.com/")
	if place.direct && l.doc.wrapped[a] {
		l.fail(l.doc.of(a), "Envoy opens no TypedStruct here", "write the extension's own type")
		return
	}
	for _, c := range place.categories {
		if since, ok := extensionTable().since[c][kind]; ok {
			l.checkRelease(since, "extension "+quote(kind), l.doc.of(a))
			return
		}
	}
	if place.bare && kind == "google.protobuf.Struct" {
		return // goes by the name
	}
	l.fail(l.doc.of(a), fmt.Sprintf("%s is no extension of %s", kind, strings.Join(place.categories, " or ")), "Envoy refuses to start: write the extension's own type")
}

// checkUpstreamChains: a chain of upstream filters ends with the codec.
func (l *linter) checkUpstreamChains() {
	judge := func(m proto.Message, field string, filters []*hcmv3.HttpFilter) {
		if n := len(filters); n > 0 {
			last := filters[n-1].GetTypedConfig()
			if last.GetTypeUrl() != "" && !strings.HasSuffix(last.GetTypeUrl(), ".UpstreamCodec") {
				l.fail(l.doc.item(m, field, n-1), "the last upstream filter is not the codec", "Envoy refuses to start: end the chain with envoy.filters.http.upstream_codec")
			}
		}
	}
	all(l.doc, func(r *routerv3.Router) { judge(r, "upstream_http_filters", r.GetUpstreamHttpFilters()) })
	all(l.doc, func(o *httpv3.HttpProtocolOptions) { judge(o, "http_filters", o.GetHttpFilters()) })
}

// checkEmptyEntries: what a map holds by an extension's name is not empty.
func (l *linter) checkEmptyEntries() {
	judge := func(m proto.Message, field string, entries map[string]*anypb.Any) {
		for _, name := range sortedKeys(entries) {
			if entries[name].GetTypeUrl() == "" {
				l.fail(l.doc.entryOf(m, field, name), quote(name)+" has no configuration", "Envoy refuses to start: write its @type")
			}
		}
	}
	type routed interface {
		proto.Message
		GetTypedPerFilterConfig() map[string]*anypb.Any
	}
	for _, m := range l.doc.messages {
		switch m := m.(type) {
		case routed:
			judge(m, "typed_per_filter_config", m.GetTypedPerFilterConfig())
		case *clusterv3.Cluster:
			judge(m, "typed_extension_protocol_options", m.GetTypedExtensionProtocolOptions())
			l.protocolOptions(m)
		}
	}
}

// protocolOptions: what a cluster holds under the name of the HTTP options has
// that type, and the name is one that Envoy knows.
func (l *linter) protocolOptions(c *clusterv3.Cluster) {
	const field, http = "typed_extension_protocol_options", "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
	for _, name := range sortedKeys(c.GetTypedExtensionProtocolOptions()) {
		kind := strings.TrimPrefix(c.GetTypedExtensionProtocolOptions()[name].GetTypeUrl(), "type.googleapis.com/")
		p := l.doc.entryOf(c, field, name)
		switch {
		case name == http && kind != "" && kind != http:
			l.fail(p, kind+" are no HTTP options", `Envoy refuses to start: write "@type": type.googleapis.com/`+http)
		case !strings.HasPrefix(name, "envoy.extensions.upstreams.") && !strings.HasPrefix(name, "envoy.filters.") && !strings.HasPrefix(name, "envoy.upstreams."):
			l.fail(p, "Envoy has no protocol options by the name of "+quote(name), "Envoy refuses to start: write "+http)
		}
	}
}
