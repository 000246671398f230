package authz

import (
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"

	"github.com/weirproxy/weir/policy"
)

// call is one decoded CheckRequest: what the caller asked of Envoy.
type call struct {
	http *authv3.AttributeContext_HttpRequest
}

// values gives all values of a header in each of the forms that Envoy can
// send: header_map with raw_value or value, where repeated headers stay
// apart, or the map, where Envoy has joined them with commas. A header_map
// entry with both kinds of value counts as two, so that nobody can choose
// which one is read.
func (c call) values(name string) []string {
	var out []string
	for _, h := range c.http.GetHeaderMap().GetHeaders() {
		if !strings.EqualFold(h.GetKey(), name) {
			continue
		}
		if raw := h.GetRawValue(); len(raw) > 0 {
			out = append(out, string(raw))
		}
		if v := h.GetValue(); v != "" || len(h.GetRawValue()) == 0 {
			out = append(out, v)
		}
	}
	for key, value := range c.http.GetHeaders() {
		if strings.EqualFold(key, name) {
			out = append(out, value)
		}
	}
	return out
}

// names visits the names of all headers.
func (c call) names(visit func(name string)) {
	for _, h := range c.http.GetHeaderMap().GetHeaders() {
		visit(h.GetKey())
	}
	for key := range c.http.GetHeaders() {
		visit(key)
	}
}

func (c call) has(name string) bool {
	found := false
	c.names(func(n string) { found = found || strings.EqualFold(n, name) })
	return found
}

// isPreflight is the CORS preflight of the Fetch standard, section 4.8.
func (c call) isPreflight() bool {
	return c.http.GetMethod() == "OPTIONS" && c.has("origin") && c.has("access-control-request-method")
}

// isGRPC tells gRPC by its content type; grpc-web is another protocol.
func (c call) isGRPC() bool {
	for _, v := range c.values("content-type") {
		rest, ok := strings.CutPrefix(strings.ToLower(strings.TrimSpace(v)), "application/grpc")
		if ok && (rest == "" || strings.ContainsRune("+; ", rune(rest[0]))) {
			return true
		}
	}
	return false
}

// forged lists the headers of the caller that only weir may set, once each.
func (c call) forged() []string {
	var out []string
	c.names(func(n string) {
		n = strings.ToLower(n)
		if strings.HasPrefix(n, policy.HeaderPrefix) && isFieldName(n) && !slices.Contains(out, n) {
			out = append(out, n)
		}
	})
	return out
}

// isFieldName keeps names that Envoy can remove (RFC 9110 section 5.6.2).
func isFieldName(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool {
		return !('a' <= r && r <= 'z' || '0' <= r && r <= '9' || strings.ContainsRune("!#$%&'*+-.^_`|~", r))
	}) < 0
}

// header is an entry for a response to Envoy. The way of appending is stated,
// because its default differs between releases.
func header(key, value string) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{
		Header:       &corev3.HeaderValue{Key: key, Value: value},
		AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
	}
}
