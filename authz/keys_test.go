package authz

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/weirproxy/weir/identity"
)

func TestParseKeys(t *testing.T) {
	ed, es, rs := keyPair(t, "EdDSA", "ed"), keyPair(t, "ES256", "es"), keyPair(t, "RS256", "rs")
	with := func(m map[string]any, change map[string]any) map[string]any {
		out := map[string]any{}
		for k, v := range m {
			out[k] = v
		}
		for k, v := range change {
			out[k] = v
		}
		return out
	}
	allowed := []string{"EdDSA", "ES256", "RS256"}
	for _, c := range []struct {
		name string
		key  any
	}{
		{"unknown type", map[string]any{"kty": "AKP", "alg": "ML-DSA-44", "pub": "AAAA"}},
		{"symmetric", map[string]any{"kty": "oct", "k": "AAAA"}},
		{"private Ed25519", with(ed.public, map[string]any{"d": "AAAA"})},
		{"private RSA", with(rs.public, map[string]any{"p": "AAAA"})},
		{"for encryption", with(ed.public, map[string]any{"use": "enc"})},
		{"not to verify", with(ed.public, map[string]any{"key_ops": []any{"encrypt"}})},
		{"alg of another type", with(ed.public, map[string]any{"alg": "ES256"})},
		{"alg HS256", with(ed.public, map[string]any{"alg": "HS256"})},
		{"alg not allowed", with(rs.public, map[string]any{"alg": "PS256"})},
		{"alg a number", with(rs.public, map[string]any{"alg": 7})},
		{"kid a number", with(ed.public, map[string]any{"kid": 7})},
		{"X25519", with(ed.public, map[string]any{"crv": "X25519"})},
		{"Ed25519 cut", with(ed.public, map[string]any{"x": "AAAA"})},
		{"point off its curve", with(es.public, map[string]any{"x": es.public["y"]})},
		{"RSA of 1024 bits", map[string]any{"kty": "RSA", "e": "AQAB", "n": strings.Repeat("w", 171)}},
		{"RSA of 16384 bits", map[string]any{"kty": "RSA", "e": "AQAB", "n": "w" + strings.Repeat("w", 2730)}},
		{"use a list", with(ed.public, map[string]any{"use": []any{"sig"}})},
		{"key_ops a text", with(ed.public, map[string]any{"key_ops": "verify"})},
		{"oth of another prime", with(rs.public, map[string]any{"oth": []any{map[string]any{"r": "AA"}}})},
		{"no object", "key"},
		{"null", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			// Alone it is no key set; beside a good key it is left out.
			if _, err := parseKeys(keySetOf(t, c.key), allowed); err == nil {
				t.Error("taken as a key")
			}
			set, err := parseKeys(keySetOf(t, c.key, ed.public), allowed)
			if err != nil || len(set.all) != 1 || len(set.skipped) != 1 {
				t.Errorf("beside a good key: %+v, %v", set, err)
			}
		})
	}
	for name, doc := range map[string]string{
		"empty": "", "list": "[]", "no keys": `{"key":[]}`, "keys twice": `{"keys":[],"keys":[]}`, "keys no list": `{"keys":{}}`,
		"too many": `{"keys":[` + strings.TrimSuffix(strings.Repeat("{},", maxKeys+1), ",") + `]}`,
	} {
		if _, err := parseKeys([]byte(doc), allowed); err == nil {
			t.Errorf("%s taken as a key set", name)
		}
	}
	set, err := parseKeys(keySetOf(t, ed.public, es.without("alg"), rs.without("alg", "use")), allowed)
	if err != nil || len(set.all) != 3 || set.byID["es"][0].alg != "ES256" || set.byID["rs"][0].alg != "RS256" {
		t.Errorf("good set: %+v, %v", set, err)
	}
}

// TestMembersThatMeanNothing: some issuers write each member that their library
// knows, empty. The key is good; what is refused says truly why.
func TestMembersThatMeanNothing(t *testing.T) {
	ed, rs := keyPair(t, "EdDSA", "ed"), keyPair(t, "RS256", "rs")
	allowed := []string{"EdDSA", "RS256"}
	for _, odd := range []map[string]any{
		{"oth": []any{}}, {"key_ops": []any{}}, {"d": nil}, {"use": nil}, {"use": ""}, {"alg": nil}, {"kid": nil}, {"x5c": []any{}, "x5t": nil}, {"key_ops": nil, "d": "", "p": nil},
	} {
		for _, k := range []map[string]any{ed.public, rs.public} {
			key := maps.Clone(k)
			maps.Copy(key, odd)
			if set, err := parseKeys(keySetOf(t, key), allowed); err != nil || len(set.all) != 1 {
				t.Errorf("%v: %v", odd, err)
			}
		}
	}
	if set, err := parseKeys(append([]byte("\xef\xbb\xbf"), keySetOf(t, ed.public)...), allowed); err != nil || len(set.all) != 1 {
		t.Errorf("a byte order mark: %v", err)
	}
	for want, odd := range map[string]map[string]any{
		`for another use: "enc"`: {"use": "enc"}, `private or symmetric part "d"`: {"d": "AAAA"}, "key_ops lacks verify": {"key_ops": []any{"sign"}},
	} {
		key := maps.Clone(ed.public)
		maps.Copy(key, odd)
		if _, err := parseKeys(keySetOf(t, key), allowed); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %s", odd, err, want)
		}
	}
}

// TestManyKeys: a set of 1,000 keys is one, each found by its name; without a
// name nobody guesses among them.
func TestManyKeys(t *testing.T) {
	k := keyPair(t, "EdDSA", "the-last")
	all := make([]any, 0, 1000)
	for i := range 999 {
		other := maps.Clone(k.public)
		other["kid"] = fmt.Sprint("k", i)
		all = append(all, other)
	}
	p := identityPolicy(t, append(all, k.public)...)
	v := newVerifier(t, p)
	verifyOne(t, v, k.sign(t, goodClaims(nil)))
	nameless := k.signer.WithKeyID("").mustSign(t, goodClaims(nil))
	if got := codeAt(t, v, noon, "Bearer "+nameless); got != identity.CodeTokenKey {
		t.Errorf("a token without kid gave %q", got)
	}
}
