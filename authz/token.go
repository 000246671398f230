package authz

import (
	"encoding/base64"
	"strings"

	"github.com/weirproxy/weir/identity"
)

// token is a JWS in compact form, taken apart but not verified: nothing in it
// may be believed before its signature has been checked.
type token struct {
	alg    string
	kid    string
	hasKid bool
	claims map[string]any
	raw    string
}

// refusal is a denial without the policy's realm.
type refusal struct{ code, message string }

var (
	badForm      = &refusal{identity.CodeTokenMalformed, "The bearer token is not a signed token in compact form."}
	badHeader    = &refusal{identity.CodeTokenMalformed, "The token's header cannot be read in one way only."}
	badCritical  = &refusal{identity.CodeTokenMalformed, "The token's header demands an extension that is not known here."}
	badType      = &refusal{identity.CodeTokenMalformed, "The token is not an access token (typ)."}
	badPayload   = &refusal{identity.CodeTokenMalformed, "The token's claims cannot be read in one way only."}
	badAlgorithm = &refusal{identity.CodeTokenAlgorithm, "The token's algorithm is not accepted."}
)

// strict64 decodes base64url without padding and with zero trailing bits
// (RFC 7515 section 2).
var strict64 = base64.RawURLEncoding.Strict()

// maxKid bounds a key id in bytes.
const maxKid = 256

// parseToken takes a compact JWS apart: exactly three parts of base64url, so
// that neither the JSON form nor an encrypted token (five parts) gets any
// further; a header without crit and b64, with an algorithm; claims that are
// strict JSON.
func parseToken(raw string) (*token, *refusal) {
	header, payload, ok := splitCompact(raw)
	if !ok {
		return nil, badForm
	}
	t := &token{raw: raw}
	if r := t.readHeader(header); r != nil {
		return nil, r
	}
	data, err := strict64.DecodeString(payload)
	if err != nil {
		return nil, badForm
	}
	if t.claims, err = decodeObject(data); err != nil {
		return nil, badPayload
	}
	return t, nil
}

// splitCompact finds the parts of a compact JWS. The alphabet is checked
// here, because base64 decoders pass over line breaks.
func splitCompact(raw string) (header, payload string, ok bool) {
	for i := range len(raw) {
		if c := raw[i]; !isBase64URL(c) && c != '.' {
			return "", "", false
		}
	}
	header, rest, _ := strings.Cut(raw, ".")
	payload, signature, _ := strings.Cut(rest, ".")
	if header == "" || payload == "" || signature == "" || strings.Contains(signature, ".") {
		return "", "", false
	}
	if _, err := strict64.DecodeString(signature); err != nil {
		return "", "", false
	}
	return header, payload, true
}

func isBase64URL(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_'
}

func (t *token) readHeader(encoded string) *refusal {
	data, err := strict64.DecodeString(encoded)
	if err != nil {
		return badForm
	}
	h, err := decodeObject(data)
	if err != nil {
		return badHeader
	}
	if _, ok := h["crit"]; ok {
		return badCritical
	}
	if _, ok := h["b64"]; ok {
		return badCritical
	}
	if typ, ok := h["typ"]; ok && !isAccessType(typ) {
		return badType
	}
	alg, _ := h["alg"].(string)
	if _, ok := algorithms[alg]; !ok {
		return badAlgorithm
	}
	t.alg = alg
	kid, ok := h["kid"]
	if !ok {
		return nil
	}
	t.hasKid = true
	if t.kid, ok = kid.(string); !ok || t.kid == "" || len(t.kid) > maxKid {
		return badHeader
	}
	return nil
}

// isAccessType accepts the types of a plain JWT (RFC 7519) and of an access
// token (RFC 9068), so that tokens made for another end, such as logout or
// proof tokens, are not taken for one (RFC 8725 section 3.11).
func isAccessType(v any) bool {
	s, _ := v.(string)
	s = strings.TrimPrefix(strings.ToLower(s), "application/")
	return s == "jwt" || s == "at+jwt"
}
