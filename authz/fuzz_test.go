package authz

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
)

// FuzzVerify: whatever the header's value, nothing panics, and only the one
// signed token is ever accepted.
func FuzzVerify(f *testing.F) {
	k := keyPair(f, "EdDSA", "k")
	v := newVerifier(f, identityPolicy(f, k.public, keyPair(f, "ES256", "e").public, keyPair(f, "RS256", "r").public))
	good := k.sign(f, goodClaims(nil))
	parts := strings.Split(good, ".")
	for _, seed := range []string{
		"Bearer " + good, "bearer  " + good, good, "Bearer " + parts[0] + "..", "Bearer {}", "Bearer a.b.c.d.e",
		"Bearer " + b64(`{"alg":"none"}`) + "." + parts[1] + ".", "Bearer " + b64(`{"alg":"ES256","kid":"e"}`) + "." + parts[1] + "." + parts[2],
		"Bearer " + b64(`{"alg":"RS256","kid":"r"}`) + "." + parts[1] + "." + parts[2], "Basic x", "Bearer " + good + "," + good, "",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		who, d := v.verify(context.Background(), noon, authHeader(value))
		if (who == nil) == (d == nil) {
			t.Fatal("neither or both")
		}
		scheme, rest, _ := strings.Cut(strings.Trim(value, " \t"), " ")
		if who != nil && (!strings.EqualFold(scheme, "bearer") || strings.TrimLeft(rest, " ") != good) {
			t.Fatalf("accepted %q", value)
		}
	})
}

// FuzzVerifyParts puts header and claims of the fuzzer under a signature that
// is another token's: never accepted.
func FuzzVerifyParts(f *testing.F) {
	k := keyPair(f, "EdDSA", "k")
	v := newVerifier(f, identityPolicy(f, k.public))
	claims, _ := json.Marshal(goodClaims(nil))
	signature := strings.Split(k.sign(f, goodClaims(nil)), ".")[2]
	f.Add([]byte(`{"alg":"EdDSA","kid":"k"}`), claims)
	f.Add([]byte(`{"alg":"none"}`), claims)
	f.Add([]byte(`{"alg":"HS256","kid":"k"}`), []byte(`{}`))
	f.Fuzz(func(t *testing.T, header, payload []byte) {
		raw := b64(string(header)) + "." + b64(string(payload)) + "." + signature
		if who, d := v.verify(context.Background(), noon, authHeader("Bearer "+raw)); d == nil {
			t.Fatalf("accepted %q %q as %+v", header, payload, who.id)
		}
	})
}

// FuzzDecodeObject: what is accepted is JSON that encoding/json reads alike,
// and writing it again loses no key.
func FuzzDecodeObject(f *testing.F) {
	for _, seed := range []string{`{}`, `{"a":1}`, `{"a":1,"a":2}`, `{"a":{"b":[1,"x",null,true]}}`, `[1]`, `{"a":1e999}`, `{"a":"\ud800"}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := decodeObject(data)
		if err != nil {
			return
		}
		var want map[string]any
		if err := json.Unmarshal(data, &want); err != nil {
			t.Fatalf("%q is no JSON: %v", data, err)
		}
		a, _ := json.Marshal(m)
		b, _ := json.Marshal(want)
		if !bytes.Equal(a, b) {
			t.Fatalf("%q reads as %s, not as %s", data, a, b)
		}
	})
}

func FuzzParseKeys(f *testing.F) {
	f.Add(keySetOf(f, keyPair(f, "EdDSA", "k").public, keyPair(f, "ES256", "e").public, keyPair(f, "RS256", "r").public))
	f.Add([]byte(`{"keys":[{"kty":"oct","k":"AA"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		set, err := parseKeys(data, []string{"EdDSA", "ES256", "RS256"})
		if err != nil {
			return
		}
		for _, k := range set.all {
			if k.public == nil || algorithms[k.alg].kind == "" {
				t.Fatalf("key %+v", k)
			}
		}
	})
}
