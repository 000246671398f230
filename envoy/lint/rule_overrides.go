package lint

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	authzv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_authz/v3"
	procv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weirproxy/weir/policy"
)

// checkOverrides looks at the three channels by which a route selects or
// narrows (docs/envoy.md), and whether anybody reads them.
func checkOverrides(l *linter) {
	for _, m := range l.scene.managers {
		if m.proc == nil && m.authz == nil {
			continue
		}
		for _, r := range m.routes {
			if s := r.GetMetadata().GetFilterMetadata()[l.scene.namespace]; s != nil {
				l.routeMetadata(s, m)
			}
			l.nearNamespaces(r.GetMetadata())
			if s := r.host.GetMetadata().GetFilterMetadata()[l.scene.namespace]; s != nil {
				l.add(Error, "override-unread", l.doc.of(s), "metadata of a virtual host is not handed to weir", "put it on the routes, or use grpc_initial_metadata")
			}
		}
	}
	all(l.doc, func(c *authzv3.CheckSettings) {
		for _, key := range sortedKeys(c.GetContextExtensions()) {
			l.override(key, c.GetContextExtensions()[key], l.doc.entryOf(c, "context_extensions", key), false)
		}
	})
	all(l.doc, func(o *procv3.ExtProcOverrides) {
		for _, h := range o.GetGrpcInitialMetadata() {
			l.initialMetadata(h)
		}
	})
}

// nearNamespaces finds weir.policies, weir-policy and the like.
func (l *linter) nearNamespaces(m *corev3.Metadata) {
	for _, name := range sortedKeys(m.GetFilterMetadata()) {
		if name != l.scene.namespace && distance(strings.ToLower(name), l.scene.namespace) <= 3 {
			l.add(Error, "override-unread", l.doc.entryOf(m, "filter_metadata", name), "nobody reads namespace "+quote(name), "did you mean "+l.scene.namespace+"?")
		}
	}
}

func (l *linter) routeMetadata(s *structpb.Struct, m *manager) {
	src := l.doc.places[s]
	if src == nil {
		return
	}
	for _, key := range sortedKeys(s.GetFields()) {
		e, _ := find(src.node, key)
		p := at{path: join(src.path, key), line: src.node.Line, column: src.node.Column}
		if e.key != nil {
			p.line, p.column = e.key.Line, e.key.Column
		}
		if _, isText := s.GetFields()[key].GetKind().(*structpb.Value_StringValue); !isText {
			l.add(Error, "override-value", p, key+" is no string for Envoy, and weir closes the route", "quote it: "+key+`: "..."`)
			continue
		}
		if !l.override(key, s.GetFields()[key].GetStringValue(), p, false) {
			continue
		}
		read := slices.ContainsFunc(m.proc.GetRequestAttributes(), func(a string) bool { return readsLeaf(a, l.scene.namespace, key) })
		if m.proc != nil && !read {
			l.add(Error, "override-unread", p, "no request attribute of ext_proc reads "+key, "add the expression for "+key+" from weir envoy snippet to request_attributes")
		}
		if !read && m.authz != nil && !slices.Contains(m.authz.GetRouteMetadataContextNamespaces(), l.scene.namespace) {
			l.add(Error, "override-unread", l.doc.field(m.authz, "route_metadata_context_namespaces"), "ext_authz is not handed "+l.scene.namespace, "set route_metadata_context_namespaces: ["+l.scene.namespace+"]")
		}
	}
}

// readsLeaf is whether a CEL expression reads a key of the namespace.
func readsLeaf(expression, namespace, key string) bool {
	for _, q := range []string{"'", `"`} {
		ns := "filter_metadata[" + q + namespace + q + "]"
		if strings.Contains(expression, ns+"."+key) || strings.Contains(expression, ns+"["+q+key+q+"]") {
			return true
		}
	}
	return false
}

func (l *linter) initialMetadata(h *corev3.HeaderValue) {
	p := l.doc.field(h, "key")
	value := h.GetValue()
	if len(h.GetRawValue()) > 0 {
		value = string(h.GetRawValue())
	}
	lower := strings.ToLower(h.GetKey())
	name, ours := strings.CutPrefix(lower, "weir-")
	if !ours {
		if strings.HasPrefix(lower, "x-weir-") {
			l.add(Warning, "override-key", p, "weir does not read "+quote(h.GetKey()), "write "+strings.TrimPrefix(lower, "x-"))
		}
		return
	}
	for _, k := range policy.OverrideKeys() {
		if strings.EqualFold(k, name) {
			name = k
		}
	}
	l.override(name, value, p, true)
}

// override judges one key and value; false where the key is unknown.
func (l *linter) override(key, value string, p at, formatted bool) bool {
	if !slices.Contains(policy.OverrideKeys(), key) {
		advice := "the keys are " + strings.Join(policy.OverrideKeys(), ", ")
		for _, k := range policy.OverrideKeys() {
			if distance(strings.ToLower(k), strings.ToLower(key)) <= 2 {
				advice = "did you mean " + k + "?"
			}
		}
		l.add(Error, "override-key", p, "weir knows no override "+quote(key)+" and closes the route", advice)
		return false
	}
	if formatted && strings.Contains(value, "%") {
		message, severity := "the value of "+key+" is made by a formatter", Warning
		if strings.Contains(strings.ToUpper(value), "%REQ") {
			message, severity = "a client writes the value of "+key, Error
		}
		l.add(severity, "override-value", p, message+": "+quote(value), "write the value itself")
		return true
	}
	if message := l.judge(key, value); message != "" {
		l.add(Error, "override-value", p, message, "weir closes the route with 503 override_invalid: correct the value")
	}
	return true
}

// judge asks the policy's own reader; without a policy only what no policy
// could accept is told.
func (l *linter) judge(key, value string) string {
	o, err := policy.OverridesFrom(map[string]string{key: value})
	switch {
	case err != nil:
	case l.Policy != nil:
		_, err = l.Policy.For(o)
	case key == "class":
		if _, ok := policy.ParseClass(value); !ok {
			return fmt.Sprintf("class %s: must be critical, standard or batch", quote(value))
		}
	case key == "maxWait":
		if d, bad := time.ParseDuration(value); bad != nil || d < 0 {
			return fmt.Sprintf("maxWait %s: must be a duration such as 300ms", quote(value))
		}
	}
	var all policy.Errors
	if errors.As(err, &all) {
		return all[0].String()
	}
	if err != nil {
		return err.Error()
	}
	return ""
}
