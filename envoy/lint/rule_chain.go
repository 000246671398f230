package lint

import (
	"fmt"
	"strconv"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	bufferv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/buffer/v3"
	mutationfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_mutation/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	mutationv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/http/early_header_mutation/header_mutation/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
)

const routerType = "envoy.extensions.filters.http.router.v3.Router"

func checkRouter(l *linter) {
	for _, m := range l.scene.managers {
		if len(m.filters) == 0 {
			l.fail(l.doc.field(m.hcm, "http_filters"), "no HTTP filters", "end http_filters with envoy.filters.http.router")
			continue
		}
		for i, f := range m.filters {
			if f.config == nil {
				continue // from elsewhere, or told already
			}
			router := f.config.ProtoReflect().Descriptor().FullName() == routerType
			if last := i == len(m.filters)-1; router != last {
				advice := "end http_filters with envoy.filters.http.router, once"
				l.fail(l.doc.of(f.filter), map[bool]string{true: "the last filter is not the router", false: "a router that is not the last filter"}[last], advice)
			}
		}
	}
}

func checkDomains(l *linter) {
	all(l.doc, func(c *routev3.RouteConfiguration) {
		seen := map[string]string{}
		for _, h := range c.GetVirtualHosts() {
			for i, d := range h.GetDomains() {
				d = strings.ToLower(d)
				if first, ok := seen[d]; ok {
					l.fail(l.doc.item(h, "domains", i), fmt.Sprintf("domain %s is also in virtual host %s", quote(d), quote(first)), "Envoy refuses to start: keep one")
				}
				seen[d] = h.GetName()
			}
		}
	})
}

// checkRouteNames: a name twice makes x-weir-pool and the log ambiguous, and a
// route after one that takes everything is never reached.
func checkRouteNames(l *linter) {
	all(l.doc, func(h *routev3.VirtualHost) {
		seen, open := map[string]bool{}, ""
		for _, r := range h.GetRoutes() {
			if r.GetName() != "" && seen[r.GetName()] {
				l.warn(l.doc.field(r, "name"), "route name "+quote(r.GetName())+" is here twice", "name each route once: weir and the log know them by name")
			}
			seen[r.GetName()] = true
			if open != "" {
				l.warn(l.doc.of(r), "never reached: route "+open+" before it takes everything", "put it before")
			}
			if takesAll(r.GetMatch()) && open == "" {
				open = quote(r.GetName())
			}
		}
	})
}

func takesAll(m *routev3.RouteMatch) bool { return m.GetPrefix() == "/" && unconditional(m) }

func checkFilterNames(l *linter) {
	for _, m := range l.scene.managers {
		seen := map[string]bool{}
		for _, f := range m.filters {
			if seen[f.filter.GetName()] {
				l.warn(l.doc.field(f.filter, "name"), "filter name "+quote(f.filter.GetName())+" is here twice: both share the per-route configuration of that name", "give one another name")
			}
			seen[f.filter.GetName()] = true
		}
	}
}

// perRouteTypes names the per-route message of filters where it is not the
// filter's own with PerRoute appended.
var perRouteTypes = map[protoreflect.FullName]protoreflect.FullName{
	"envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor":               "envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute",
	"envoy.extensions.filters.http.ext_authz.v3.ExtAuthz":                       "envoy.extensions.filters.http.ext_authz.v3.ExtAuthzPerRoute",
	(&bufferv3.Buffer{}).ProtoReflect().Descriptor().FullName():                 "envoy.extensions.filters.http.buffer.v3.BufferPerRoute",
	(&mutationfilterv3.HeaderMutation{}).ProtoReflect().Descriptor().FullName(): "envoy.extensions.filters.http.header_mutation.v3.HeaderMutationPerRoute",
}

// checkPerRoute: Envoy takes a per-route entry under any name and of any type
// and then does not use it, so a policy is silently absent.
func checkPerRoute(l *linter) {
	for _, m := range l.scene.managers {
		if m.hcm.GetRouteConfig() == nil {
			continue
		}
		l.perRoute(m, m.hcm.GetRouteConfig(), m.hcm.GetRouteConfig().GetTypedPerFilterConfig())
		for _, h := range m.hcm.GetRouteConfig().GetVirtualHosts() {
			l.perRoute(m, h, h.GetTypedPerFilterConfig())
			for _, r := range h.GetRoutes() {
				l.perRoute(m, r, r.GetTypedPerFilterConfig())
				for _, w := range r.GetRoute().GetWeightedClusters().GetClusters() {
					l.perRoute(m, w, w.GetTypedPerFilterConfig())
				}
			}
		}
	}
}

func (l *linter) perRoute(m *manager, holder proto.Message, entries map[string]*anypb.Any) {
	for _, name := range sortedKeys(entries) {
		p := l.doc.entryOf(holder, "typed_per_filter_config", name)
		var of *httpFilter
		for i := range m.filters {
			if m.filters[i].filter.GetName() == name {
				of = &m.filters[i]
			}
		}
		got := l.doc.routeEntry(entries[name])
		switch {
		case of == nil:
			l.fail(p, "no filter of the chain is named "+quote(name)+": Envoy ignores this entry", "the filters are "+strings.Join(filterNames(m), ", "))
		case got == nil || of.config == nil:
		case !fitsRoute(of.config, got):
			l.fail(p, fmt.Sprintf("%s is no per-route configuration of filter %s: Envoy ignores it", shortName(got), quote(name)), "write "+string(perRouteOf(of.config)))
		}
	}
}

func perRouteOf(filter proto.Message) protoreflect.FullName {
	name := filter.ProtoReflect().Descriptor().FullName()
	if own, ok := perRouteTypes[name]; ok {
		return own
	}
	return name + "PerRoute"
}

// fitsRoute is whether a message is per-route configuration of a filter.
// Filters other than weir's may take any message of their own package.
func fitsRoute(filter, got proto.Message) bool {
	name := got.ProtoReflect().Descriptor().FullName()
	if own, ok := perRouteTypes[filter.ProtoReflect().Descriptor().FullName()]; ok {
		return name == own
	}
	return name.Parent() == filter.ProtoReflect().Descriptor().FullName().Parent()
}

func filterNames(m *manager) []string {
	var names []string
	for _, f := range m.filters {
		names = append(names, f.filter.GetName())
	}
	return names
}

func checkAbsent(l *linter) {
	var first *hcmv3.HttpConnectionManager
	for _, m := range l.scene.managers {
		if m.proc != nil {
			return
		}
		for _, f := range m.filters {
			if f.config == nil && (f.filter.GetConfigDiscovery() != nil || f.filter.GetTypedConfig() != nil) {
				return // may be it, from elsewhere or of a broken Any that was told
			}
		}
		if first == nil {
			first = m.hcm
		}
	}
	if first != nil {
		report := l.warn
		if l.Policy != nil {
			report = l.fail // the file is meant to stand before weir
		}
		report(l.doc.field(first, "http_filters"), "no chain has an ext_proc filter: weir is not asked", "see weir envoy snippet weir.yaml")
	}
}

func checkOrder(l *linter) {
	for _, m := range l.scene.managers {
		if m.authzAt >= 0 && m.procAt >= 0 && m.procAt < m.authzAt {
			l.fail(l.doc.of(m.filters[m.procAt].filter), "ext_proc stands before ext_authz: it admits before anybody asked who calls", "put ext_authz (entry "+strconv.Itoa(m.authzAt)+") first")
		}
	}
}

// ours are headers that only weir may write; one each for what a matcher may
// cover.
var ours = []string{"x-weir-pool", "x-weir-tenant", "x-weir-request-id", "x-weir-new-name"}

func checkForgery(l *linter) {
	for _, m := range l.scene.managers {
		if m.proc == nil {
			continue
		}
		left := append([]string(nil), ours...)
		for _, e := range m.hcm.GetEarlyHeaderMutationExtensions() {
			mutation, ok := l.doc.open(e.GetTypedConfig()).(*mutationv3.HeaderMutation)
			if !ok {
				continue
			}
			for _, one := range mutation.GetMutations() {
				var rest []string
				for _, name := range left {
					if one.GetRemove() != name && !(one.GetRemoveOnMatch() != nil && matches(one.GetRemoveOnMatch().GetKeyMatcher(), name)) {
						rest = append(rest, name)
					}
				}
				left = rest
			}
		}
		if len(left) > 0 {
			l.fail(l.doc.field(m.hcm, "early_header_mutation_extensions"), "clients may send "+left[0]+": it is not removed before routing",
				"add early header mutation {remove_on_match: {key_matcher: {prefix: x-weir-}}}")
		}
	}
}

func checkPaths(l *linter) {
	for _, m := range l.scene.managers {
		if m.proc == nil && m.authz == nil {
			continue
		}
		if !m.hcm.GetNormalizePath().GetValue() {
			l.warn(l.doc.field(m.hcm, "normalize_path"), "normalize_path is off", "set it: weir and the model must see one path")
		}
		if !m.hcm.GetMergeSlashes() {
			l.warn(l.doc.field(m.hcm, "merge_slashes"), "merge_slashes is off", "set it: weir and the model must see one path")
		}
		if a := m.hcm.GetPathWithEscapedSlashesAction(); a != hcmv3.HttpConnectionManager_REJECT_REQUEST && a != hcmv3.HttpConnectionManager_UNESCAPE_AND_REDIRECT {
			l.warn(l.doc.field(m.hcm, "path_with_escaped_slashes_action"), "escaped slashes reach weir", "set path_with_escaped_slashes_action: REJECT_REQUEST")
		}
	}
}
