package authz

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/identity"
	"github.com/weirproxy/weir/policy"
)

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

// The form in which extproc takes a verifier.
var _ func(context.Context, func(string) []string) (*identity.Identity, error) = (*Verifier)(nil).Verify

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
		{"url without times", func(p *policy.Identity) { p.Issuers[0].JWKS = policy.JWKS{URL: "http://127.0.0.1:1/"} }},
		{"CA is not there", func(p *policy.Identity) {
			p.Issuers[0].JWKS = jwksTimes
			p.Issuers[0].JWKS.CA = "/does/not/exist"
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
