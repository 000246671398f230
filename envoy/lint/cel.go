package lint

import (
	"fmt"
	"slices"
	"strings"
)

// celFunctions are those that Envoy's request attributes can call (the same in
// 1.36 to 1.40). has and in are operators; comprehensions (map, exists, all,
// filter) and the string library are not there.
var celFunctions = []string{
	"size", "startsWith", "endsWith", "contains", "matches", "has", "int", "uint", "double", "bool", "bytes", "type", "dyn",
	"duration", "timestamp", "extract", "getFullYear", "getMonth", "getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear",
	"getHours", "getMinutes", "getSeconds", "getMilliseconds",
}

// celAttributes are the roots and what is under them; "*" = anything. An
// unknown one is no error to Envoy: the attribute is not there.
var celAttributes = map[string][]string{
	"request": {"path", "url_path", "host", "scheme", "method", "headers", "referer", "useragent", "time", "id", "protocol", "query", "duration", "size", "total_size"},
	"response": {
		"code", "code_details", "flags", "grpc_status", "headers", "trailers", "size", "total_size", "backend_latency",
	},
	"connection": {
		"id", "mtls", "requested_server_name", "tls_version", "subject_local_certificate", "subject_peer_certificate",
		"dns_san_local_certificate", "dns_san_peer_certificate", "uri_san_local_certificate", "uri_san_peer_certificate",
		"sha256_peer_certificate_digest", "transport_failure_reason", "termination_details",
	},
	"upstream": {
		"address", "port", "tls_version", "subject_local_certificate", "subject_peer_certificate", "dns_san_local_certificate",
		"dns_san_peer_certificate", "uri_san_local_certificate", "uri_san_peer_certificate", "sha256_peer_certificate_digest",
		"local_address", "transport_failure_reason", "request_attempt_count", "cx_pool_ready_duration", "locality",
	},
	"source":                {"address", "port"},
	"destination":           {"address", "port"},
	"metadata":              {"filter_metadata", "typed_filter_metadata"},
	"filter_state":          {"*"},
	"upstream_filter_state": {"*"},
	"xds": {
		"node", "cluster_name", "cluster_metadata", "listener_direction", "listener_metadata", "route_name", "route_metadata",
		"virtual_host_name", "virtual_host_metadata", "upstream_host_metadata", "filter_chain_name", "upstream_host_locality_metadata",
	},
}

var metadataAttributes = []string{"cluster_metadata", "listener_metadata", "route_metadata", "virtual_host_metadata", "upstream_host_metadata", "upstream_host_locality_metadata"}

// celToken is a word, a string, a number or a sign.
type celToken struct {
	kind byte // 'a' word, 's' string, '0' number, else the sign
	text string
}

// celTokens splits an expression; the error names what cannot be read.
func celTokens(s string) ([]celToken, error) {
	var out []celToken
	for i := 0; i < len(s); {
		c := s[i]
		switch {
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			i++
		case c == '\'' || c == '"':
			end := i + 1
			for end < len(s) && s[end] != c {
				if s[end] == '\\' {
					end++
				}
				end++
			}
			if end >= len(s) {
				return nil, fmt.Errorf("a string is not closed: %s", clip(s[i:]))
			}
			out = append(out, celToken{'s', s[i+1 : end]})
			i = end + 1
		case isLetter(c):
			end := i
			for end < len(s) && (isLetter(s[end]) || isDigit(s[end])) {
				end++
			}
			if end < len(s) && (s[end] == '\'' || s[end] == '"') && end-i <= 2 && strings.Trim(s[i:end], "rRbB") == "" {
				i = end // r'...' and b'...'
				continue
			}
			out = append(out, celToken{'a', s[i:end]})
			i = end
		case isDigit(c):
			end := i
			for end < len(s) && (isLetter(s[end]) || isDigit(s[end]) || s[end] == '.' && end+1 < len(s) && isDigit(s[end+1])) {
				end++
			}
			out = append(out, celToken{'0', s[i:end]})
			i = end
		case strings.IndexByte("()[]{}.,:?+-*/%<>=!&|", c) >= 0:
			out = append(out, celToken{c, string(c)})
			i++
		default:
			return nil, fmt.Errorf("%q is no sign of CEL", c)
		}
	}
	return out, nil
}

func isLetter(c byte) bool { return c == '_' || c|0x20 >= 'a' && c|0x20 <= 'z' }
func isDigit(c byte) bool  { return c >= '0' && c <= '9' }

// celProblem is what is wrong with an expression.
type celProblem struct{ message, advice string }

// judgeCEL reads an expression as far as names, calls and brackets go. It is
// no compiler: what types do is left to Envoy.
func judgeCEL(s string) []celProblem {
	tokens, err := celTokens(s)
	if err != nil {
		return []celProblem{{"no CEL: " + err.Error(), "Envoy refuses to start: correct the expression"}}
	}
	if p := celBrackets(tokens); p != nil {
		return []celProblem{*p}
	}
	var found []celProblem
	for i, t := range tokens {
		if t.kind != 'a' {
			continue
		}
		after := i > 0 && tokens[i-1].kind == '.'
		if i+1 < len(tokens) && tokens[i+1].kind == '(' && t.text != "in" {
			if !slices.Contains(celFunctions, t.text) {
				found = append(found, celProblem{"Envoy has no CEL function " + quote(t.text), "Envoy refuses to start; it has size, contains, startsWith, endsWith, matches, int, has and ? :"})
			}
			continue
		}
		if !after && !slices.Contains([]string{"true", "false", "null", "in"}, t.text) {
			if p := celPath(t.text, tokens[i+1:]); p != nil {
				found = append(found, *p)
			}
		}
	}
	return found
}

// celBrackets checks that brackets pair, that no operator dangles, and that
// there is anything at all.
func celBrackets(tokens []celToken) *celProblem {
	wrong := func(what string) *celProblem {
		return &celProblem{"no CEL: " + what, "Envoy refuses to start: correct the expression"}
	}
	if len(tokens) == 0 {
		return wrong("empty")
	}
	var open []byte
	for i, t := range tokens {
		switch t.kind {
		case '(', '[', '{':
			open = append(open, t.kind)
		case ')', ']', '}':
			if len(open) == 0 || strings.IndexByte("([{", open[len(open)-1]) != strings.IndexByte(")]}", t.kind) {
				return wrong("an unpaired " + t.text)
			}
			open = open[:len(open)-1]
		case '?':
			if i > 0 && (tokens[i-1].kind == '.' || tokens[i-1].kind == '[') {
				return wrong("optional access (.?) is not there")
			}
		case 'a', 's', '0':
			if i > 0 && strings.IndexByte("as0)]}", tokens[i-1].kind) >= 0 && t.text != "in" && tokens[i-1].text != "in" {
				return wrong("two values without an operator, at " + quote(t.text))
			}
		}
	}
	if len(open) > 0 {
		return wrong("an unpaired " + string(open[len(open)-1]))
	}
	if last := tokens[len(tokens)-1]; strings.IndexByte("as0)]}", last.kind) < 0 {
		return wrong("it ends with " + last.text)
	}
	return nil
}

// celPath judges an attribute by its root and first name, and for metadata the
// second.
func celPath(root string, rest []celToken) *celProblem {
	const advice = "Envoy does not tell: the attribute is just not there"
	known, ok := celAttributes[root]
	if !ok {
		return &celProblem{"unknown root " + quote(root), advice + "; the roots are " + strings.Join(sortedKeys(celAttributes), ", ")}
	}
	first, rest := celMember(rest)
	if first == "" || known[0] == "*" {
		return nil
	}
	if !slices.Contains(known, first) {
		return &celProblem{fmt.Sprintf("%s has no attribute %s", root, quote(first)), advice + "; there are " + strings.Join(known, ", ")}
	}
	if root == "xds" && slices.Contains(metadataAttributes, first) {
		if second, _ := celMember(rest); second != "" && second != "filter_metadata" && second != "typed_filter_metadata" {
			return &celProblem{fmt.Sprintf("xds.%s has no %s", first, quote(second)), "write xds." + first + ".filter_metadata['...']"}
		}
	}
	return nil
}

// celMember reads .name or ['name'].
func celMember(t []celToken) (string, []celToken) {
	switch {
	case len(t) >= 2 && t[0].kind == '.' && t[1].kind == 'a':
		return t[1].text, t[2:]
	case len(t) >= 3 && t[0].kind == '[' && t[1].kind == 's' && t[2].kind == ']':
		return t[1].text, t[3:]
	}
	return "", t
}
