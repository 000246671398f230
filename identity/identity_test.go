package identity

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/weirproxy/weir/policy"
)

func TestCheckTenant(t *testing.T) {
	for _, c := range []struct {
		name, tenant string
		ok           bool
	}{
		{"plain", "acme", true},
		{"letters of any script", "株式会社-Ünïcode 7", true},
		{"at the bound", strings.Repeat("a", MaxName), true},
		{"one over the bound", strings.Repeat("a", MaxName+1), false},
		{"1 MiB", strings.Repeat("a", 1<<20), false},
		{"empty", "", false},
		{"newline", "acme\n", false},
		{"NUL", "ac\x00me", false},
		{"DEL", "ac\x7fme", false},
		{"C1 control", "ac\u0085me", false},
		{"no-break space", "ac\u00a0me", false},
		{"right-to-left override", "ac\u202eme", false},
		{"zero width space", "ac\u200bme", false},
		{"line separator", "ac\u2028me", false},
		{"not UTF-8", "ac\xffme", false},
		{"replacement character", "ac\ufffdme", false},
		{"star", "*", false},
		{"star at the end", "acme*", false},
		{"leading space", " acme", false},
		{"trailing space", "acme ", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := CheckTenant(c.tenant); (err == nil) != c.ok {
				t.Errorf("error %v, want ok = %v", err, c.ok)
			}
			// The policy refuses to match what nobody can be called. It reads
			// patterns ("*"), and bounds their length itself.
			if c.tenant == "" || len(c.tenant) > MaxName || strings.Contains(c.tenant, "*") {
				return
			}
			if why := policy.TenantPatternRule(c.tenant); (why == "") != c.ok {
				t.Errorf("the policy says %q, want ok = %v", why, c.ok)
			}
		})
	}
}

func TestScopesOfAnIdentity(t *testing.T) { // K1
	id := &Identity{
		Tenant: "acme",
		Scopes: []string{"chat_completion", "llm_service"},
		Params: []Param{{Field: "model", Op: Equal, Enum: []string{"a", "b"}}},
	}
	for name, want := range map[string]bool{"llm_service": true, "chat_completion": true, "embedding": false, "chat": false, "": true} {
		if got := id.HasScope(name); got != want {
			t.Errorf("HasScope(%q) = %v, want %v", name, got, want)
		}
	}
	for model, want := range map[string]bool{"a": true, "b": true, "c": false, "": false, "A": false} {
		if got := id.ModelAllowed(model); got != want {
			t.Errorf("ModelAllowed(%q) = %v, want %v", model, got, want)
		}
	}
	if !(&Identity{}).ModelAllowed("any") {
		t.Error("without a scope on model every model passes")
	}
	if err := id.Require("weir", "llm_service", "", "chat_completion"); err != nil {
		t.Errorf("Require: %v", err)
	}
	err := id.Require("weir", "llm_service", "embedding")
	d, ok := AsDenial(err)
	if !ok || d.Status != http.StatusForbidden || d.Code != CodeScopeMissing ||
		d.Challenge != `Bearer realm="weir", error="insufficient_scope", scope="embedding"` {
		t.Errorf("Require gave %#v", err)
	}
}

func TestChallenges(t *testing.T) { // RFC 6750 section 3
	for _, c := range []struct {
		denial *Denial
		status int
		want   string
	}{
		{Unauthenticated("weir", CodeTokenMissing, "x"), 401, `Bearer realm="weir"`},
		{Unauthenticated("weir", CodeTokenDuplicate, "Two."), 401, `Bearer realm="weir", error="invalid_request", error_description="Two."`},
		{Unauthenticated("weir", CodeTokenExpired, "Old."), 401, `Bearer realm="weir", error="invalid_token", error_description="Old."`},
		{Unauthenticated(`a"b\c`+"\r\n", CodeTokenMissing, "x"), 401, `Bearer realm="a_b_c__"`},
		{Unavailable("x"), 503, ""},
	} {
		if c.denial.Status != c.status || c.denial.Challenge != c.want {
			t.Errorf("got %d %s, want %d %s", c.denial.Status, c.denial.Challenge, c.status, c.want)
		}
	}
	if _, ok := AsDenial(errors.New("other")); ok {
		t.Error("an other error is no denial")
	}
}

// claims are the names of the default policy's shape.
var claims = policy.Claims{
	Tenant: "tenant", Class: "class", Colour: "colour", Tier: "tier", User: "sub", Key: "key_id", Scope: "scope",
}

func TestFromClaims(t *testing.T) {
	id, err := FromClaims(map[string]any{
		"tenant": "acme", "class": 0.0, "colour": "red", "tier": "gold", "sub": "ann", "key_id": "k1", "jti": "j1",
		"scope": "llm_service chat_completion max_tokens<=1024", "exp": 1900000000.5, "iss": "ignored",
	}, claims)
	if err != nil {
		t.Fatal(err)
	}
	if id.Tenant != "acme" || id.Class != policy.Critical || id.Colour != policy.Red || id.Tier != "gold" ||
		id.User != "ann" || id.Key != "k1" || id.JTI != "j1" || !id.HasScope("chat_completion") ||
		len(id.Params) != 1 || id.Params[0].Bound != 1024 || id.Expires.UnixMilli() != 1900000000500 {
		t.Errorf("got %+v", id)
	}
}

func TestFromClaimsOfEachForm(t *testing.T) {
	for _, c := range []struct {
		name   string
		change map[string]any
		ok     bool
		class  policy.Class
	}{
		{"no class is standard", nil, true, policy.Standard},
		{"null class is standard", map[string]any{"class": nil}, true, policy.Standard},
		{"class by name", map[string]any{"class": "batch"}, true, policy.Batch},
		{"class by number", map[string]any{"class": 2.0}, true, policy.Batch},
		{"class by number in a string", map[string]any{"class": "0"}, true, policy.Critical},
		{"unknown class", map[string]any{"class": "vip"}, false, 0},
		{"class out of range", map[string]any{"class": 3.0}, false, 0},
		{"negative class", map[string]any{"class": -1.0}, false, 0},
		{"fractional class", map[string]any{"class": 0.5}, false, 0},
		{"boolean class", map[string]any{"class": false}, false, 0},
		{"unknown colour", map[string]any{"colour": "blue"}, false, 0},
		{"number for tenant", map[string]any{"tenant": 7.0}, false, 0},
		{"list for tenant", map[string]any{"tenant": []any{"acme"}}, false, 0},
		{"empty tenant", map[string]any{"tenant": ""}, false, 0},
		{"null tenant", map[string]any{"tenant": nil}, false, 0},
		{"tenant with a newline", map[string]any{"tenant": "a\nb"}, false, 0},
		{"user of 1 MiB", map[string]any{"sub": strings.Repeat("u", 1<<20)}, false, 0},
		{"scope with numbers", map[string]any{"scope": []any{"a", 1.0}}, false, 0},
		{"scope as a number", map[string]any{"scope": 1.0}, false, 0},
		{"malformed parameter scope", map[string]any{"scope": "llm_service max_tokens<1024"}, false, 0},
		{"exp as a string", map[string]any{"exp": "1900000000"}, false, 0},
		{"exp in milliseconds", map[string]any{"exp": 1900000000000.0}, false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := map[string]any{"tenant": "acme"}
			for k, v := range c.change {
				m[k] = v
			}
			id, err := FromClaims(m, claims)
			if (err == nil) != c.ok {
				t.Fatalf("error %v, want ok = %v", err, c.ok)
			}
			if c.ok && id.Class != c.class {
				t.Errorf("class %v, want %v", id.Class, c.class)
			}
		})
	}
}

// TestScopeClaimShapes: a scope string, a scope list, an scp string and an
// scp list say the same.
func TestScopeClaimShapes(t *testing.T) {
	for _, c := range []map[string]any{
		{"scope": "b a n=1"},
		{"scope": []any{"n=1", "a", "b", "a"}},
		{"scp": "a  b n=1"},
		{"scp": []any{"a", "b", "n=1"}},
		{"scope": nil, "scp": []any{"a", "b", "n=1"}},
		{"scope": "a b n=1", "scp": "c"}, // scope is the one that is named
	} {
		c["tenant"] = "acme"
		id, err := FromClaims(c, claims)
		if err != nil {
			t.Fatalf("%v: %v", c, err)
		}
		if strings.Join(id.Scopes, ",") != "a,b" || len(id.Params) != 1 || id.Params[0].String() != "n=1" {
			t.Errorf("%v gave %v %v", c, id.Scopes, id.Params)
		}
	}
}

func TestClaimPaths(t *testing.T) {
	m := map[string]any{
		"realm_access":                map[string]any{"tenant": "acme", "deep": map[string]any{"class": "batch"}},
		"https://id.example/ns":       map[string]any{"tier": "gold"},
		"a":                           map[string]any{"b.c": "dotted below"},
		"https://id.example/ns/plain": "x",
	}
	names := policy.Claims{
		Tenant: "realm_access.tenant", Class: "realm_access.deep.class", Tier: "https://id.example/ns.tier",
		User: "a.b.c", Key: "https://id.example/ns/plain",
	}
	id, err := FromClaims(m, names)
	if err != nil {
		t.Fatal(err)
	}
	if id.Tenant != "acme" || id.Class != policy.Batch || id.Tier != "gold" || id.User != "dotted below" || id.Key != "x" {
		t.Errorf("got %+v", id)
	}
	if _, err := FromClaims(m, policy.Claims{Tenant: "realm_access.deep"}); err == nil {
		t.Error("a structure is no tenant")
	}
	if _, err := FromClaims(m, policy.Claims{}); err == nil {
		t.Error("without a tenant claim there is no tenant")
	}
}

func TestFromMetadata(t *testing.T) {
	p := &policy.Identity{Claims: claims, Realm: "weir", Service: "llm_service", Metadata: policy.MetadataSource{Key: "jwt"}}
	good := map[string]any{"tenant": "acme", "scope": "llm_service"}
	for _, c := range []struct {
		name   string
		md     map[string]any
		status int // 0 = accepted
		code   string
	}{
		{"good", map[string]any{"jwt": good}, 0, ""},
		{"namespace absent", nil, 401, CodeIdentityMissing},
		{"key absent", map[string]any{"other": good}, 401, CodeIdentityMissing},
		{"claims beside the key", good, 401, CodeIdentityMissing},
		{"key is no structure", map[string]any{"jwt": "x"}, 401, CodeIdentityMissing},
		{"no tenant", map[string]any{"jwt": map[string]any{"scope": "llm_service"}}, 401, CodeTokenClaims},
		{"no service scope", map[string]any{"jwt": map[string]any{"tenant": "acme"}}, 403, CodeScopeMissing},
	} {
		t.Run(c.name, func(t *testing.T) {
			id, err := FromMetadata(c.md, p)
			if c.status == 0 {
				if err != nil || id.Tenant != "acme" {
					t.Errorf("got %v, %v", id, err)
				}
				return
			}
			if d, ok := AsDenial(err); !ok || d.Status != c.status || d.Code != c.code || id != nil {
				t.Errorf("got %v, %v", id, err)
			}
		})
	}
}
