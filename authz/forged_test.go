package authz

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"strings"
	"testing"

	"github.com/lestrrat-go/jwx/v3/jwk"

	"github.com/weirproxy/weir/identity"
	"github.com/weirproxy/weir/policy"
)

// TestForgedTokens are the classic attacks on JWTs.
func TestForgedTokens(t *testing.T) {
	ed, rs, es := keyPair(t, "EdDSA", "k"), keyPair(t, "RS256", "r"), keyPair(t, "ES256", "e")
	other := keyPair(t, "EdDSA", "other")
	v := newVerifier(t, identityPolicy(t, ed.public, rs.public, es.public, other.public))
	claims := func() string { b, _ := json.Marshal(goodClaims(nil)); return string(b) }()
	good := ed.sign(t, goodClaims(nil))
	parts := strings.Split(good, ".")
	unsigned := func(header string) string { return b64(header) + "." + b64(claims) + "." + parts[2] }
	hs := func(secret []byte, header string) string {
		body := b64(header) + "." + b64(claims)
		mac := hmac.New(sha256.New, secret)
		mac.Write([]byte(body))
		return body + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
	}
	rawKey, pemKey := publicForms(t, rs)
	for _, c := range []struct{ name, raw string }{
		{"HS256 over the PEM", hs(pemKey, `{"alg":"HS256","kid":"r"}`)},
		{"HS256 over the JWK", hs(rawKey, `{"alg":"HS256","kid":"r"}`)},
		{"HS256 over nothing", hs(nil, `{"alg":"HS256"}`)},
		{"alg none", unsigned(`{"alg":"none"}`)},
		{"alg None", unsigned(`{"alg":"None"}`)},
		{"alg nOnE", unsigned(`{"alg":"nOnE"}`)},
		{"alg empty", unsigned(`{"alg":""}`)},
		{"alg missing", unsigned(`{"kid":"k"}`)},
		{"alg null", unsigned(`{"alg":null}`)},
		{"alg number", unsigned(`{"alg":1}`)},
		{"alg none without a signature", b64(`{"alg":"none"}`) + "." + b64(claims) + "."},
		{"alg none in two parts", b64(`{"alg":"none"}`) + "." + b64(claims)},
		{"alg eddsa", unsigned(`{"alg":"eddsa","kid":"k"}`)},
		{"alg twice", unsigned(`{"alg":"none","alg":"EdDSA","kid":"k"}`)},
		{"alg in two cases", unsigned(`{"alg":"EdDSA","Alg":"none","kid":"k"}`)},
		{"signature of another token", parts[0] + "." + b64(strings.Replace(claims, "acme", "evil", 1)) + "." + parts[2]},
		{"signature cut", strings.TrimRight(good, "=")[:len(good)-4]},
		{"signature empty", parts[0] + "." + parts[1] + "."},
		{"signature of one byte", parts[0] + "." + parts[1] + ".AA"},
		{"kid of A, signed by B", other.signer.WithKeyID("k").mustSign(t, goodClaims(nil))},
		{"kid of an RSA key, EdDSA", ed.signer.WithKeyID("r").mustSign(t, goodClaims(nil))},
		{"unknown kid", ed.signer.WithKeyID("nobody").mustSign(t, goodClaims(nil))},
		{"no kid and two keys fit", ed.signer.WithKeyID("").mustSign(t, goodClaims(nil))},
		{"kid as a number", unsigned(`{"alg":"EdDSA","kid":7}`)},
		{"kid null", unsigned(`{"alg":"EdDSA","kid":null}`)},
		{"kid empty", unsigned(`{"alg":"EdDSA","kid":""}`)},
		{"kid a path", unsigned(`{"alg":"EdDSA","kid":"../../dev/null"}`)},
		{"own key in the header", unsigned(`{"alg":"EdDSA","jwk":{"kty":"OKP"}}`)},
		{"crit", unsigned(`{"alg":"EdDSA","kid":"k","crit":["exp"]}`)},
		{"crit empty", unsigned(`{"alg":"EdDSA","kid":"k","crit":[]}`)},
		{"b64 false", unsigned(`{"alg":"EdDSA","kid":"k","b64":false}`)},
		{"typ of another token", unsigned(`{"alg":"EdDSA","kid":"k","typ":"logout+jwt"}`)},
		{"header is a list", unsigned(`["EdDSA"]`)},
		{"header with something behind", unsigned(`{"alg":"EdDSA","kid":"k"} {}`)},
		{"JSON form", `{"payload":"` + parts[1] + `","signatures":[{"protected":"` + parts[0] + `","signature":"` + parts[2] + `"}]}`},
		{"JSON form without protected", `{"payload":"` + parts[1] + `","signature":"` + parts[2] + `","header":{"alg":"EdDSA"}}`},
		{"flattened JSON, empty", `{}`},
		{"five parts", b64(`{"alg":"PBES2-HS256+A128KW","enc":"A128GCM","p2c":2147483647,"zip":"DEF"}`) + ".AAAA.AAAA.AAAA.AAAA"},
		{"four parts", good + ".AAAA"},
		{"dots alone", ".."},
		{"not base64", "a+b.c/d.e"},
		{"trailing bits set", parts[0] + "." + parts[1] + "." + parts[2][:len(parts[2])-1] + "_"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if code := codeAt(t, v, noon, "Bearer "+c.raw); code == "" {
				t.Error("accepted")
			}
		})
	}
	verifyOne(t, v, good)
}

// publicForms are the bytes that an attacker may take for a shared secret.
func publicForms(t *testing.T, p pair) (rawJWK, pemBytes []byte) {
	t.Helper()
	rawJWK, err := json.Marshal(p.public)
	if err != nil {
		t.Fatal(err)
	}
	k, err := jwk.ParseKey(rawJWK)
	if err != nil {
		t.Fatal(err)
	}
	var public any
	if err := jwk.Export(k, &public); err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	return rawJWK, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

func (s *Signer) mustSign(tb testing.TB, claims map[string]any) string {
	tb.Helper()
	raw, err := s.Sign(claims)
	if err != nil {
		tb.Fatal(err)
	}
	return raw
}

// TestClaimsAreStrict: signed claims that two readers would read differently
// are refused.
func TestClaimsAreStrict(t *testing.T) {
	k := keyPair(t, "EdDSA", "k")
	v := newVerifier(t, identityPolicy(t, k.public))
	b, _ := json.Marshal(goodClaims(nil))
	inner := strings.Trim(string(b), "{}")
	for _, c := range []struct{ name, payload, want string }{
		{"as signed", "{" + inner + "}", ""},
		{"tenant twice", "{" + inner + `,"tenant":"evil"}`, identity.CodeTokenMalformed},
		{"tenant in another case", "{" + inner + `,"Tenant":"evil"}`, identity.CodeTokenMalformed},
		{"tenant with an escape", "{" + inner + `,"\u0074enant":"evil"}`, identity.CodeTokenMalformed},
		{"twin by the Kelvin sign", "{" + inner + `,"k":1,"\u212a":2}`, identity.CodeTokenMalformed},
		{"a key twice inside", "{" + inner + `,"x":{"a":1,"a":2}}`, identity.CodeTokenMalformed},
		{"a key twice in a list", "{" + inner + `,"x":[{"a":1,"a":2}]}`, identity.CodeTokenMalformed},
		{"too deep", "{" + inner + `,"x":` + strings.Repeat("[", 40) + strings.Repeat("]", 40) + "}", identity.CodeTokenMalformed},
		{"number without bounds", "{" + inner + `,"x":1e999}`, identity.CodeTokenMalformed},
		{"something behind", "{" + inner + "}{}", identity.CodeTokenMalformed},
		{"no object", `"tenant"`, identity.CodeTokenMalformed},
		{"null", "null", identity.CodeTokenMalformed},
		{"not UTF-8", "{" + inner + ",\"x\":\"\xff\"}", identity.CodeTokenMalformed},
		{"lone surrogate in the tenant", `{"iss":"https://id.example","aud":"llm","exp":` + fmt.Sprint(noon.Unix()+60) + `,"tenant":"a\ud800"}`, identity.CodeTokenClaims},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := codeAt(t, v, noon, "Bearer "+signRaw(t, k, c.payload)); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// signRaw signs bytes that need not be JSON.
func signRaw(tb testing.TB, p pair, payload string) string {
	tb.Helper()
	key, ok := p.signer.key.(ed25519.PrivateKey)
	if !ok {
		tb.Fatal("signRaw wants an Ed25519 key")
	}
	body := b64(`{"alg":"EdDSA","kid":"`+p.signer.kid+`"}`) + "." + b64(payload)
	return body + "." + base64.RawURLEncoding.EncodeToString(ed25519.Sign(key, []byte(body)))
}

func b64(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }

// TestAlgorithms: each allowed algorithm verifies, by a key with alg and by
// one without (K2).
func TestAlgorithms(t *testing.T) {
	for _, alg := range []string{"EdDSA", "ES256", "ES384", "ES512", "RS256", "PS256"} {
		k := keyPair(t, alg, "k")
		for name, public := range map[string]any{"with alg": k.public, "without alg": k.without("alg")} {
			t.Run(alg+" "+name, func(t *testing.T) {
				p := identityPolicy(t, public)
				p.Algorithms = []string{alg}
				id := verifyOne(t, newVerifier(t, p), k.sign(t, goodClaims(nil)))
				if id.Tenant != "acme" || id.User != "ann" || id.Class != policy.Standard || !id.HasScope("chat_completion") {
					t.Errorf("got %+v", id)
				}
			})
		}
	}
}
