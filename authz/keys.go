package authz

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/lestrrat-go/jwx/v3/jwa"
	"github.com/lestrrat-go/jwx/v3/jwk"
	"github.com/lestrrat-go/jwx/v3/jws"
)

// algorithms are the signature algorithms that a policy may allow (RFC 7518
// section 3.1, RFC 8037), with the keys that they take. Symmetric algorithms
// and "none" are not among them and can never be.
var algorithms = map[string]algorithm{
	"EdDSA": {jwa.EdDSA(), okp},
	"ES256": {jwa.ES256(), "P-256"},
	"ES384": {jwa.ES384(), "P-384"},
	"ES512": {jwa.ES512(), "P-521"},
	"RS256": {jwa.RS256(), rsaKey},
	"RS384": {jwa.RS384(), rsaKey},
	"RS512": {jwa.RS512(), rsaKey},
	"PS256": {jwa.PS256(), rsaKey},
	"PS384": {jwa.PS384(), rsaKey},
	"PS512": {jwa.PS512(), rsaKey},
}

// algorithm is a signature algorithm and the kind of key it takes.
type algorithm struct {
	sign jwa.SignatureAlgorithm
	kind string // okp, rsaKey or the name of a curve
}

// Kinds of keys beside the curves of ECDSA.
const (
	okp    = "Ed25519"
	rsaKey = "RSA"
)

// Bounds of a key set.
const (
	maxKeySet  = 1 << 20 // bytes
	maxKeys    = 1024
	minRSABits = 2048
	maxRSABits = 8192 // a larger key makes every verification slow
)

// key is one public key and the only algorithm it verifies.
type key struct {
	id     string // "" = none
	alg    string
	sign   jwa.SignatureAlgorithm
	public any
}

// verify checks the signature of a compact JWS whose header names k.alg.
func (k *key) verify(compact string) bool {
	_, err := jws.VerifyCompactFast(k.public, []byte(compact), k.sign)
	return err == nil
}

// keys is an immutable key set.
type keys struct {
	byID     map[string][]*key
	all      []*key
	skipped  []string // why a key of the document is not here
	document string   // as it came
}

// find returns the one key that may verify a token: the one with the token's
// key id and algorithm; for a token without a key id the only key of that
// algorithm. known reports whether the set knows the key id at all.
func (s *keys) find(alg, id string, hasID bool) (k *key, known bool) {
	candidates := s.all
	if hasID {
		candidates = s.byID[id]
	}
	for _, c := range candidates {
		if c.alg != alg {
			continue
		}
		if k != nil {
			return nil, true // more than one: ambiguous
		}
		k = c
	}
	return k, !hasID || len(candidates) > 0
}

// parseKeys reads a JWK set (RFC 7517 section 5) for an issuer that may use
// the algorithms allowed. A key of an unknown type, for another use, too weak,
// or with private parts is left out and its reason kept: one odd key must not
// take the others away. A document that is no key set, or that has keys of
// which none is usable, is an error; a set without any key is not: the issuer
// has withdrawn all.
func parseKeys(data []byte, allowed []string) (*keys, error) {
	if len(data) > maxKeySet {
		return nil, fmt.Errorf("key set: larger than %d bytes", maxKeySet)
	}
	doc, err := decodeObject(bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))) // a byte order mark (RFC 8259 section 8.1)
	if err != nil {
		return nil, fmt.Errorf("key set: %w", err)
	}
	list, ok := doc["keys"].([]any)
	if !ok {
		return nil, errors.New(`key set: no list "keys"`)
	}
	if len(list) > maxKeys {
		return nil, fmt.Errorf("key set: %d keys, at most %d allowed", len(list), maxKeys)
	}
	set := &keys{byID: map[string][]*key{}}
	for i, e := range list {
		k, err := parseKey(e, allowed)
		if err != nil {
			set.skipped = append(set.skipped, fmt.Sprintf("key %d: %v", i, err))
			continue
		}
		set.all = append(set.all, k)
		if k.id != "" {
			set.byID[k.id] = append(set.byID[k.id], k)
		}
	}
	if len(list) > 0 && len(set.all) == 0 {
		return nil, fmt.Errorf("key set: no usable key (%s)", set.skipped[0])
	}
	return set, nil
}

// privateParts are the members of private and symmetric keys (RFC 7518
// section 6).
var privateParts = []string{"d", "p", "q", "dp", "dq", "qi", "oth", "k"}

func parseKey(v any, allowed []string) (*key, error) {
	m, ok := v.(map[string]any)
	if !ok {
		return nil, errors.New("is not an object")
	}
	for _, part := range privateParts {
		if !meansNothing(m[part]) {
			return nil, fmt.Errorf("has the private or symmetric part %q: whoever published it has lost it", part)
		}
	}
	if use := m["use"]; !meansNothing(use) && use != "sig" {
		return nil, fmt.Errorf("is for another use: %v, want sig", clip(use))
	}
	if ops := m["key_ops"]; !meansNothing(ops) {
		list, ok := ops.([]any)
		if !ok || !slices.Contains(list, any("verify")) {
			return nil, errors.New("key_ops lacks verify")
		}
	}
	public, kind, err := publicKey(m)
	if err != nil {
		return nil, err
	}
	k := &key{public: public}
	if k.alg, err = pin(m["alg"], kind, allowed); err != nil {
		return nil, err
	}
	k.sign = algorithms[k.alg].sign
	if id := m["kid"]; id != nil {
		var ok bool
		if k.id, ok = id.(string); !ok || len(k.id) > maxKid {
			return nil, errors.New("kid is not a string of at most 256 bytes")
		}
	}
	return k, nil
}

// meansNothing is a member that is not there, null, or an empty list or text:
// some issuers write all members that a library knows.
func meansNothing(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case string:
		return v == ""
	case []any:
		return len(v) == 0
	}
	return false
}

// clip bounds what is repeated of a document.
func clip(v any) string {
	s := fmt.Sprint(v)
	if len(s) > 64 {
		s = strings.ToValidUTF8(s[:64], "") + "..."
	}
	return strconv.Quote(s)
}

// pin chooses the one algorithm of a key: the one it names, else the first of
// the allowed ones that takes such a key.
func pin(named any, kind string, allowed []string) (string, error) {
	if !meansNothing(named) {
		alg, _ := named.(string)
		if a, ok := algorithms[alg]; !ok || a.kind != kind || !slices.Contains(allowed, alg) {
			return "", errors.New("alg is not allowed or does not fit the key")
		}
		return alg, nil
	}
	for _, alg := range allowed {
		if algorithms[alg].kind == kind {
			return alg, nil
		}
	}
	return "", errors.New("no allowed algorithm takes such a key")
}

// publicKey reads the key material; the checks on curve points and sizes are
// the library's, those on strength ours.
func publicKey(m map[string]any) (public any, kind string, err error) {
	kty, _ := m["kty"].(string)
	crv, _ := m["crv"].(string)
	if kty != "RSA" && kty != "EC" && (kty != "OKP" || crv != okp) {
		return nil, "", errors.New("the type is not known here")
	}
	material := map[string]any{}
	for _, part := range []string{"kty", "crv", "x", "y", "n", "e"} {
		if v, ok := m[part]; ok {
			material[part] = v
		}
	}
	data, err := json.Marshal(material)
	if err != nil {
		return nil, "", errors.New("cannot be written again")
	}
	parsed, err := jwk.ParseKey(data)
	if err != nil {
		return nil, "", errors.New("is not a valid JWK")
	}
	if err := jwk.Export(parsed, &public); err != nil {
		return nil, "", errors.New("is not a usable key")
	}
	switch k := public.(type) {
	case ed25519.PublicKey:
		return k, okp, nil
	case *ecdsa.PublicKey:
		if _, err := k.ECDH(); err != nil {
			return nil, "", errors.New("is not a point of its curve")
		}
		return k, k.Params().Name, nil
	case *rsa.PublicKey:
		if n := k.N.BitLen(); n < minRSABits || n > maxRSABits {
			return nil, "", fmt.Errorf("RSA of %d bits; %d to %d are allowed", n, minRSABits, maxRSABits)
		}
		return k, rsaKey, nil
	}
	return nil, "", errors.New("is not a public key for signatures")
}
