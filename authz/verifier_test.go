package authz

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lestrrat-go/jwx/v3/jwk"

	"github.com/weirproxy/weir/identity"
	"github.com/weirproxy/weir/policy"
)

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

// TestAlgorithmIsPinned: an RSA key without alg has one algorithm, the first
// allowed one; a token by the same key and another allowed one is refused.
func TestAlgorithmIsPinned(t *testing.T) {
	k := keyPair(t, "RS256", "k")
	p := identityPolicy(t, k.without("alg"))
	p.Algorithms = []string{"RS256", "PS256"}
	v := newVerifier(t, p)
	other := *k.signer
	other.sign = algorithms["PS256"].sign
	raw, err := other.Sign(goodClaims(nil))
	if err != nil {
		t.Fatal(err)
	}
	if code := codeAt(t, v, noon, "Bearer "+raw); code != identity.CodeTokenKey {
		t.Errorf("PS256 gave %q", code)
	}
	verifyOne(t, v, k.sign(t, goodClaims(nil)))
}

func TestAlgorithmOfAnotherIssuer(t *testing.T) {
	k := keyPair(t, "ES256", "k")
	p := identityPolicy(t, k.public, keyPair(t, "EdDSA", "ed").public)
	p.Issuers[0].Algorithms = []string{"EdDSA"}
	if code := codeAt(t, newVerifier(t, p), noon, "Bearer "+k.sign(t, goodClaims(nil))); code != identity.CodeTokenAlgorithm {
		t.Errorf("got %q", code)
	}
}

// TestTimes holds exp, nbf and iat against explicit instants.
func TestTimes(t *testing.T) {
	k := keyPair(t, "EdDSA", "k")
	unix := func(d time.Duration) int64 { return noon.Add(d).Unix() }
	for _, c := range []struct {
		name   string
		leeway time.Duration
		most   time.Duration
		claims map[string]any
		want   string
	}{
		{"nbf 20 s ahead, leeway 30 s", 30 * time.Second, 0, map[string]any{"nbf": unix(20 * time.Second)}, ""},
		{"nbf 30 s ahead, leeway 30 s", 30 * time.Second, 0, map[string]any{"nbf": unix(30 * time.Second)}, ""},
		{"nbf 40 s ahead, leeway 30 s", 30 * time.Second, 0, map[string]any{"nbf": unix(40 * time.Second)}, identity.CodeTokenNotYet},
		{"exp 20 s ago, leeway 30 s", 30 * time.Second, 0, map[string]any{"exp": unix(-20 * time.Second)}, ""},
		{"exp 30 s ago, leeway 30 s", 30 * time.Second, 0, map[string]any{"exp": unix(-30 * time.Second)}, identity.CodeTokenExpired},
		{"exp 40 s ago, leeway 30 s", 30 * time.Second, 0, map[string]any{"exp": unix(-40 * time.Second)}, identity.CodeTokenExpired},
		{"exp now, leeway 0", 0, 0, map[string]any{"exp": unix(0)}, identity.CodeTokenExpired},
		{"exp in a second, leeway 0", 0, 0, map[string]any{"exp": unix(time.Second)}, ""},
		{"nbf now, leeway 0", 0, 0, map[string]any{"nbf": unix(0)}, ""},
		{"nbf in a second, leeway 0", 0, 0, map[string]any{"nbf": unix(time.Second)}, identity.CodeTokenNotYet},
		{"iat 40 s ahead", 30 * time.Second, 0, map[string]any{"iat": unix(40 * time.Second)}, identity.CodeTokenNotYet},
		{"fractional exp", 0, 0, map[string]any{"exp": 1900000000.5}, ""},
		{"exp half a second ahead", 0, 0, map[string]any{"exp": float64(unix(0)) + 0.5}, ""},
		{"exp in a string", 0, 0, map[string]any{"exp": "1900000000"}, identity.CodeTokenClaims},
		{"nbf in a string", 0, 0, map[string]any{"nbf": "1"}, identity.CodeTokenClaims},
		{"null nbf", 0, 0, map[string]any{"nbf": nil}, identity.CodeTokenClaims},
		{"iat as a list", 0, 0, map[string]any{"iat": []int{1}}, identity.CodeTokenClaims},
		{"no exp", 0, 0, map[string]any{"exp": absent}, identity.CodeTokenClaims},
		{"null exp", 0, 0, map[string]any{"exp": nil}, identity.CodeTokenClaims},
		{"negative exp", 0, 0, map[string]any{"exp": -1}, identity.CodeTokenClaims},
		{"after 2038, lifetime unbounded", 0, 0, map[string]any{"exp": int64(4102444800)}, ""},
		{"after 2038, lifetime 100 years", 0, 876000 * time.Hour, map[string]any{"exp": int64(4102444800)}, ""},
		{"after 2038, lifetime 24 h", 0, 24 * time.Hour, map[string]any{"exp": int64(4102444800)}, identity.CodeTokenLifetime},
		{"exp in milliseconds, lifetime 24 h", 0, 24 * time.Hour, map[string]any{"exp": noon.UnixMilli()}, identity.CodeTokenClaims},
		{"exp in milliseconds, lifetime unbounded", 0, 0, map[string]any{"exp": noon.UnixMilli()}, identity.CodeTokenClaims},
		{"exp of 1e300", 0, 24 * time.Hour, map[string]any{"exp": 1e300}, identity.CodeTokenClaims},
		{"lifetime at the bound", 0, time.Hour, map[string]any{"iat": unix(0), "exp": unix(time.Hour)}, ""},
		{"lifetime over the bound", 0, time.Hour, map[string]any{"iat": unix(0), "exp": unix(time.Hour + time.Second)}, identity.CodeTokenLifetime},
		{"lifetime without iat counts from now", 0, time.Hour, map[string]any{"iat": absent, "exp": unix(time.Hour)}, ""},
		{"lifetime without iat over the bound", 0, time.Hour, map[string]any{"iat": absent, "exp": unix(time.Hour + time.Second)}, identity.CodeTokenLifetime},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := identityPolicy(t, k.public)
			p.Leeway, p.MaxLifetime = c.leeway, c.most
			if got := codeAt(t, newVerifier(t, p), noon, "Bearer "+k.sign(t, goodClaims(c.claims))); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestAudienceAndIssuer(t *testing.T) {
	k := keyPair(t, "EdDSA", "k")
	v := newVerifier(t, identityPolicy(t, k.public))
	for _, c := range []struct {
		name   string
		claims map[string]any
		want   string
	}{
		{"string", map[string]any{"aud": "llm"}, ""},
		{"list of three", map[string]any{"aud": []string{"a", "llm-eu", "b"}}, ""},
		{"another", map[string]any{"aud": "other"}, identity.CodeTokenAudience},
		{"in another case", map[string]any{"aud": "LLM"}, identity.CodeTokenAudience},
		{"list without ours", map[string]any{"aud": []string{"a", "b"}}, identity.CodeTokenAudience},
		{"empty list", map[string]any{"aud": []string{}}, identity.CodeTokenAudience},
		{"number", map[string]any{"aud": 7}, identity.CodeTokenAudience},
		{"list with a number", map[string]any{"aud": []any{"llm", 7}}, identity.CodeTokenAudience},
		{"object", map[string]any{"aud": map[string]any{"llm": true}}, identity.CodeTokenAudience},
		{"empty string", map[string]any{"aud": ""}, identity.CodeTokenAudience},
		{"absent", map[string]any{"aud": absent}, identity.CodeTokenAudience},
		{"unknown issuer", map[string]any{"iss": "https://evil.example"}, identity.CodeTokenIssuer},
		{"issuer with a slash more", map[string]any{"iss": "https://id.example/"}, identity.CodeTokenIssuer},
		{"issuer as a list", map[string]any{"iss": []string{"https://id.example"}}, identity.CodeTokenIssuer},
		{"no issuer", map[string]any{"iss": absent}, identity.CodeTokenIssuer},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := codeAt(t, v, noon, "Bearer "+k.sign(t, goodClaims(c.claims))); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// TestScopeShapes: the claim's form does not matter; no scope is no service.
func TestScopeShapes(t *testing.T) {
	k := keyPair(t, "EdDSA", "k")
	v := newVerifier(t, identityPolicy(t, k.public))
	for _, c := range []struct {
		name   string
		claims map[string]any
		want   string
	}{
		{"scope string", map[string]any{"scope": "llm_service chat_completion"}, ""},
		{"scope list", map[string]any{"scope": []string{"llm_service", "chat_completion"}}, ""},
		{"scp string", map[string]any{"scope": absent, "scp": "llm_service chat_completion"}, ""},
		{"scp list", map[string]any{"scope": absent, "scp": []string{"llm_service", "chat_completion"}}, ""},
		{"list with numbers", map[string]any{"scope": []any{"llm_service", 1}}, identity.CodeTokenClaims},
		{"malformed parameter", map[string]any{"scope": "llm_service max_tokens<1"}, identity.CodeTokenClaims},
		{"no service", map[string]any{"scope": "chat_completion"}, identity.CodeScopeMissing},
		{"none at all", map[string]any{"scope": absent}, identity.CodeScopeMissing},
	} {
		t.Run(c.name, func(t *testing.T) {
			raw := k.sign(t, goodClaims(c.claims))
			if got := codeAt(t, v, noon, "Bearer "+raw); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
			if c.want == "" {
				if id := verifyOne(t, v, raw); !id.HasScope("chat_completion") {
					t.Errorf("scopes %v", id.Scopes)
				}
			}
		})
	}
}

func TestAuthorizationHeader(t *testing.T) {
	k := keyPair(t, "EdDSA", "k")
	v := newVerifier(t, identityPolicy(t, k.public))
	raw := k.sign(t, goodClaims(nil))
	for _, c := range []struct {
		name   string
		values []string
		want   string
	}{
		{"usual", []string{"Bearer " + raw}, ""},
		{"lower case", []string{"bearer " + raw}, ""},
		{"upper case", []string{"BEARER " + raw}, ""},
		{"two spaces", []string{"Bearer  " + raw}, ""},
		{"spaces around", []string{"  Bearer " + raw + " "}, ""},
		{"none", nil, identity.CodeTokenMissing},
		{"empty", []string{""}, identity.CodeTokenMissing},
		{"scheme alone", []string{"Bearer"}, identity.CodeTokenMissing},
		{"scheme and space", []string{"Bearer "}, identity.CodeTokenMissing},
		{"another scheme", []string{"Basic YTpi"}, identity.CodeTokenMissing},
		{"token alone", []string{raw}, identity.CodeTokenMissing},
		{"no space", []string{"Bearer" + raw}, identity.CodeTokenMissing},
		{"two headers", []string{"Bearer " + raw, "Bearer " + raw}, identity.CodeTokenDuplicate},
		{"joined by a comma", []string{"Bearer " + raw + ",Bearer " + raw}, identity.CodeTokenMalformed},
		{"joined by a comma and a space", []string{"Bearer " + raw + ", Bearer " + raw}, identity.CodeTokenMalformed},
		{"something behind", []string{"Bearer " + raw + " x"}, identity.CodeTokenMalformed},
		{"a tab between", []string{"Bearer\t" + raw}, identity.CodeTokenMissing},
		{"bytes of no encoding", []string{"Bearer " + raw + "\xff"}, identity.CodeTokenMalformed},
		{"a line break inside", []string{"Bearer " + raw[:20] + "\n" + raw[20:]}, identity.CodeTokenMalformed},
		{"one letter in another case", []string{"Bearer " + swapCase(raw)}, identity.CodeTokenSignature},
		{"padding", []string{"Bearer " + raw + "="}, identity.CodeTokenMalformed},
		{"64 KiB", []string{"Bearer " + raw + strings.Repeat("A", 64<<10)}, identity.CodeTokenTooLarge},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := codeAt(t, v, noon, c.values...); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// swapCase changes the case of one letter of the signature.
func swapCase(raw string) string {
	i := strings.LastIndex(raw, ".") + 1
	for ; i < len(raw)-1; i++ {
		switch c := raw[i]; {
		case 'a' <= c && c <= 'z':
			return raw[:i] + string(c-32) + raw[i+1:]
		case 'A' <= c && c <= 'Z':
			return raw[:i] + string(c+32) + raw[i+1:]
		}
	}
	return raw
}

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

func (s *Signer) mustSign(tb testing.TB, claims map[string]any) string {
	tb.Helper()
	raw, err := s.Sign(claims)
	if err != nil {
		tb.Fatal(err)
	}
	return raw
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

// TestTokenWithoutKid is accepted where exactly one key fits.
func TestTokenWithoutKid(t *testing.T) {
	ed, es := keyPair(t, "EdDSA", "k"), keyPair(t, "ES256", "e")
	raw := ed.signer.WithKeyID("").mustSign(t, goodClaims(nil))
	v := newVerifier(t, identityPolicy(t, ed.public, es.public))
	verifyOne(t, v, raw)
	v = newVerifier(t, identityPolicy(t, ed.without("kid"), es.public))
	verifyOne(t, v, raw)
	// A token that names a key is not verified with a nameless one.
	if code := codeAt(t, v, noon, "Bearer "+ed.sign(t, goodClaims(nil))); code != identity.CodeTokenKey {
		t.Errorf("got %q", code)
	}
	// Two keys of one name and one algorithm: neither may be chosen.
	twin := keyPair(t, "EdDSA", "twin").without()
	twin["kid"] = "k"
	v = newVerifier(t, identityPolicy(t, ed.public, twin))
	if code := codeAt(t, v, noon, "Bearer "+ed.sign(t, goodClaims(nil))); code != identity.CodeTokenKey {
		t.Errorf("ambiguous kid gave %q", code)
	}
}

// TestDenialsHoldNoToken: not a byte of what was sent as a token comes back.
func TestDenialsHoldNoToken(t *testing.T) {
	k := keyPair(t, "EdDSA", "k")
	v := newVerifier(t, identityPolicy(t, k.public))
	for _, secret := range []string{"sk-5ecretValue123", k.sign(t, goodClaims(map[string]any{"aud": "5ecret"})), strings.Repeat("5ecret", 4000)} {
		_, d := v.verify(context.Background(), noon, authHeader("Bearer "+secret))
		if d == nil || strings.Contains(fmt.Sprintf("%+v %v", *d, d), "5ecret") {
			t.Errorf("denial %+v", d)
		}
	}
}

func TestNewVerifierRefusesAnOpenDoor(t *testing.T) {
	k := keyPair(t, "EdDSA", "k")
	for _, c := range []struct {
		name   string
		change func(*policy.Identity)
	}{
		{"no issuer name", func(p *policy.Identity) { p.Issuers[0].Issuer = "" }},
		{"issuer twice", func(p *policy.Identity) { p.Issuers = append(p.Issuers, p.Issuers[0]) }},
		{"no audience", func(p *policy.Identity) { p.Issuers[0].Audiences = nil }},
		{"empty audience", func(p *policy.Identity) { p.Issuers[0].Audiences = []string{""} }},
		{"HS256", func(p *policy.Identity) { p.Algorithms = []string{"HS256"} }},
		{"none", func(p *policy.Identity) { p.Issuers[0].Algorithms = []string{"none"} }},
		{"no algorithm", func(p *policy.Identity) { p.Algorithms = nil }},
		{"no keys", func(p *policy.Identity) { p.Issuers[0].JWKS = policy.JWKS{} }},
		{"file and url", func(p *policy.Identity) { p.Issuers[0].JWKS.URL = "http://127.0.0.1:1/" }},
		{"file is not there", func(p *policy.Identity) { p.Issuers[0].JWKS.File += "x" }},
		{"CA is not there", func(p *policy.Identity) {
			p.Issuers[0].JWKS = policy.JWKS{URL: "https://127.0.0.1:1/", CA: "/does/not/exist"}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := identityPolicy(t, k.public)
			c.change(p)
			if v, err := NewVerifier(p, Options{}); err == nil {
				v.Close()
				t.Error("accepted")
			}
		})
	}
}

func TestSignerAndKeys(t *testing.T) {
	for _, alg := range signing {
		if alg == "RS384" || alg == "RS512" || alg == "PS384" || alg == "PS512" {
			continue // the same key as RS256; slow to make
		}
		k := keyPair(t, alg, "gen")
		if k.signer.alg != alg || k.public["alg"] != alg || k.public["use"] != "sig" || k.public["kid"] != "gen" {
			t.Errorf("%s: %+v", alg, k.public)
		}
		if _, private := k.public["d"]; private {
			t.Errorf("%s: the public set holds the private key", alg)
		}
		switch k.signer.key.(type) {
		case ed25519.PrivateKey, *ecdsa.PrivateKey, *rsa.PrivateKey:
		default:
			t.Errorf("%s: key %T", alg, k.signer.key)
		}
	}
	private, set, err := GenerateKey("EdDSA", "")
	if err != nil {
		t.Fatal(err)
	}
	doc, _ := decodeObject(set)
	if kid, _ := doc["keys"].([]any)[0].(map[string]any)["kid"].(string); len(kid) != 43 {
		t.Errorf("kid %q is no SHA-256 thumbprint", kid)
	}
	if _, err := NewSigner(private, "ES256"); err == nil {
		t.Error("an Ed25519 key signs no ES256")
	}
	public, _ := json.Marshal(doc["keys"].([]any)[0])
	for name, data := range map[string][]byte{"public": public, "empty": nil, "set": set, "oct": []byte(`{"kty":"oct","k":"AAAA","d":"x"}`)} {
		if _, err := NewSigner(data, ""); err == nil {
			t.Errorf("%s taken for a private key", name)
		}
	}
	if _, _, err := GenerateKey("HS256", ""); err == nil {
		t.Error("HS256 key made")
	}
}
