package identity

import (
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

func TestParseParam(t *testing.T) { // K1, third level
	for _, c := range []struct {
		in   string
		want Param
		ok   bool
	}{
		{"max_tokens<=1024", Param{Field: "max_tokens", Op: AtMost, Bound: 1024}, true},
		{"temperature>=0", Param{Field: "temperature", Op: AtLeast}, true},
		{"temperature<=0.7", Param{Field: "temperature", Op: AtMost, Bound: 0.7}, true},
		{"n=1", Param{Field: "n", Op: Equal, Enum: []string{"1"}}, true},
		{"model=b|a", Param{Field: "model", Op: Equal, Enum: []string{"a", "b"}}, true},
		{"x>=-1e3", Param{Field: "x", Op: AtLeast, Bound: -1000}, true},
		{"max_tokens<1024", Param{}, false},
		{"max_tokens>1024", Param{}, false},
		{"max_tokens=<1024", Param{}, false},
		{"max_tokens==1024", Param{}, false},
		{"max_tokens<==1024", Param{}, false},
		{"max_tokens<=", Param{}, false},
		{"max_tokens<=1024k", Param{}, false},
		{"max_tokens<=0x400", Param{}, false},
		{"max_tokens<=inf", Param{}, false},
		{"max_tokens<=NaN", Param{}, false},
		{"max_tokens<=1e999", Param{}, false},
		{"max_tokens<=1_024", Param{}, false},
		{"<=1024", Param{}, false},
		{"=a", Param{}, false},
		{"model=", Param{}, false},
		{"model=a|", Param{}, false},
		{"model=a||b", Param{}, false},
		{"model=a|a", Param{}, false},
		{"a.b=1", Param{}, false},
		{"plain", Param{}, false},
		{strings.Repeat("f", maxField+1) + "=1", Param{}, false},
	} {
		got, err := ParseParam(c.in)
		if (err == nil) != c.ok || !reflect.DeepEqual(got, c.want) {
			t.Errorf("ParseParam(%q) = %+v, %v", c.in, got, err)
		}
		if c.ok {
			if again, err := ParseParam(got.String()); err != nil || !reflect.DeepEqual(again, got) {
				t.Errorf("%q written as %q reads as %+v, %v", c.in, got, again, err)
			}
		}
	}
}

func TestParamCheck(t *testing.T) {
	for _, c := range []struct {
		scope string
		value any
		want  error
	}{
		{"max_tokens<=1024", 1024.0, nil},
		{"max_tokens<=1024", int64(1), nil},
		{"max_tokens<=1024", json.Number("1024"), nil},
		{"max_tokens<=1024", 1024.5, ErrOutside},
		{"max_tokens<=1024", 1025, ErrOutside},
		{"max_tokens<=1024", json.Number("1e999"), ErrOutside},
		{"max_tokens<=1024", math.NaN(), ErrOutside},
		{"max_tokens<=1024", "7", ErrOutside}, // some servers read it as a number
		{"max_tokens<=1024", true, ErrOutside},
		{"max_tokens<=1024", []any{1.0}, ErrOutside},
		{"max_tokens<=1024", nil, ErrAbsent},
		{"temperature>=0", 0.0, nil},
		{"temperature>=0", -0.1, ErrOutside},
		{"n=1", 1.0, nil},
		{"n=1", json.Number("1.0"), nil},
		{"n=1", 2.0, ErrOutside},
		{"n=1", "1", nil},
		{"model=a|b", "a", nil},
		{"model=a|b", "c", ErrOutside},
		{"model=a|b", "a|b", ErrOutside},
		{"model=a|b", "A", ErrOutside},
		{"model=a|b", 0.0, ErrOutside},
		{"stream=true", true, nil},
		{"stream=true", false, ErrOutside},
		{"model=a|b", nil, ErrAbsent},
	} {
		p, err := ParseParam(c.scope)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Check(c.value); !errors.Is(got, c.want) {
			t.Errorf("%s with %v: %v, want %v", c.scope, c.value, got, c.want)
		}
	}
}

func TestParamFill(t *testing.T) {
	for scope, want := range map[string]any{
		"max_tokens<=1024": 1024.0, "temperature>=0": 0.0, "n=1": 1.0, "model=a": "a", "model=a|b": nil,
	} {
		p, _ := ParseParam(scope)
		got, ok := p.Fill()
		if ok != (want != nil) || got != want {
			t.Errorf("Fill of %s = %v, %v, want %v", scope, got, ok, want)
		}
		if ok && p.Check(got) != nil {
			t.Errorf("the fill of %s is refused by it", scope)
		}
	}
}

func TestParseScopes(t *testing.T) {
	for _, c := range []struct {
		name   string
		in     any
		names  []string
		params []string
		ok     bool
	}{
		{"nothing", nil, nil, nil, true},
		{"empty string", "", nil, nil, true},
		{"all levels", "llm_service chat_completion max_tokens<=1024 n=1", []string{"chat_completion", "llm_service"}, []string{"max_tokens<=1024", "n=1"}, true},
		{"list", []string{"b", "a", "b"}, []string{"a", "b"}, nil, true},
		{"the tighter bound stays", "a<=5 a<=3 a>=1 a>=2", nil, []string{"a<=3", "a>=2"}, true},
		{"enums are cut", "m=a|b m=b|c", nil, []string{"m=b"}, true},
		{"enums without a common value both bind", "m=a m=b", nil, []string{"m=a", "m=b"}, true},
		{"tab between", "a\tb", nil, nil, false},
		{"newline", "a\nb", nil, nil, false},
		{"quote", `a"b`, nil, nil, false},
		{"not ASCII", "ä", nil, nil, false},
		{"list element with a space", []any{"a b"}, nil, nil, false},
		{"empty list element", []any{""}, nil, nil, false},
		{"number in the list", []any{"a", 1.0}, nil, nil, false},
		{"list in the list", []any{[]any{"a"}}, nil, nil, false},
		{"object", map[string]any{}, nil, nil, false},
		{"bool", true, nil, nil, false},
		{"too many", strings.Repeat("a ", maxScopes+1), nil, nil, false},
		{"too long", strings.Repeat("a", maxScope+1), nil, nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			names, params, err := ParseScopes(c.in)
			if (err == nil) != c.ok || !slices.Equal(names, c.names) || !slices.Equal(texts(params), c.params) {
				t.Errorf("got %v %v %v", names, params, err)
			}
		})
	}
}

func texts(params []Param) []string {
	var out []string
	for _, p := range params {
		out = append(out, p.String())
	}
	return out
}

// randomIdentity draws from few names, so that overlaps are common.
func randomIdentity(r *rand.Rand) *Identity {
	id := &Identity{
		Tenant: "acme",
		Class:  policy.Class(r.IntN(policy.NumClasses)),
		Colour: policy.Colour(r.IntN(4)),
		Tier:   []string{"", "gold", "silver"}[r.IntN(3)],
		User:   []string{"", "ann"}[r.IntN(2)],
	}
	if r.IntN(2) == 0 {
		id.Expires = time.UnixMicro(1_900_000_000_000_000 + r.Int64N(1_000_000_000))
	}
	var scopes []string
	for range r.IntN(6) {
		scopes = append(scopes, []string{
			"llm_service", "chat", "embed", "max_tokens<=10", "max_tokens<=20.25", "t>=0", "t>=0.5", "n=1", "n=1|2", "model=a|b", "model=b|c", "model=c",
		}[r.IntN(12)])
	}
	id.Scopes, id.Params, _ = ParseScopes(scopes)
	return id
}

// TestNarrowIsTheIntersection: whatever the narrowed identity allows, both
// allow, and the other way round.
func TestNarrowIsTheIntersection(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	allows := func(id *Identity, field string, v any) bool {
		for _, p := range id.Params {
			if p.Field == field && p.Check(v) != nil {
				return false
			}
		}
		return true
	}
	for range 5000 {
		parent, child := randomIdentity(r), randomIdentity(r)
		out, err := Narrow(parent, child)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range []string{"llm_service", "chat", "embed"} {
			if out.HasScope(s) != (parent.HasScope(s) && child.HasScope(s)) {
				t.Fatalf("scope %s: %+v of %+v and %+v", s, out, parent, child)
			}
		}
		for field, values := range map[string][]any{
			"max_tokens": {5.0, 15.0, 20.25, 30.0, nil}, "t": {-1.0, 0.2, 0.7}, "n": {1.0, 2.0, 3.0}, "model": {"a", "b", "c", "d"},
		} {
			for _, v := range values {
				if allows(out, field, v) != (allows(parent, field, v) && allows(child, field, v)) {
					t.Fatalf("%s = %v: %v of %v and %v", field, v, out.Params, parent.Params, child.Params)
				}
			}
		}
		if out.Class < parent.Class || out.Class < child.Class {
			t.Fatalf("class %v of %v and %v", out.Class, parent.Class, child.Class)
		}
		if out.Colour == policy.Red && (parent.Colour != policy.Red || child.Colour != policy.Red) {
			t.Fatal("red without both being red")
		}
		if out.Tier != parent.Tier {
			t.Fatal("the tier is the parent's")
		}
		for _, e := range []time.Time{parent.Expires, child.Expires} {
			if !e.IsZero() && (out.Expires.IsZero() || out.Expires.After(e)) {
				t.Fatalf("ends at %v, after %v", out.Expires, e)
			}
		}
	}
	if _, err := Narrow(&Identity{Tenant: "a"}, &Identity{Tenant: "b"}); err == nil {
		t.Error("another tenant is no child")
	}
}

func TestFieldsRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		id := randomIdentity(r)
		back, err := FromFields(id.Fields())
		if err != nil {
			t.Fatalf("%+v: %v", id, err)
		}
		if !back.Expires.Equal(id.Expires) {
			t.Fatalf("ends %v, want %v", back.Expires, id.Expires)
		}
		back.Expires = id.Expires
		if !reflect.DeepEqual(back, id) {
			t.Fatalf("got %+v, want %+v", back, id)
		}
	}
}

func TestFromFieldsIsStrict(t *testing.T) {
	good := func(change map[string]any) map[string]any {
		f := map[string]any{"v": 1.0, "tenant": "acme", "class": "standard"}
		for k, v := range change {
			f[k] = v
		}
		return f
	}
	for _, c := range []struct {
		name string
		in   map[string]any
		want error // nil: accepted; errAny: any error
	}{
		{"good", good(nil), nil},
		{"Envoy's own field", good(map[string]any{"ext_authz_duration": 3.0}), nil},
		{"class by number", good(map[string]any{"class": 1.0}), nil},
		{"no class", good(map[string]any{"class": nil}), nil},
		{"nil", nil, ErrNoTenant},
		{"empty", map[string]any{}, ErrNoTenant},
		{"only Envoy's field", map[string]any{"ext_authz_duration": 3.0}, ErrNoTenant},
		{"no tenant", map[string]any{"v": 1.0, "class": "critical"}, ErrNoTenant},
		{"denied", map[string]any{"v": 1.0, "denied": true}, ErrDenied},
		{"denied with a tenant", good(map[string]any{"denied": true}), ErrDenied},
		{"denied in a string", good(map[string]any{"denied": "true"}), ErrDenied},
		{"denied as a structure", good(map[string]any{"denied": map[string]any{}}), ErrDenied},
		{"preflight", PreflightFields(), ErrPreflight},
		{"preflight in a string", map[string]any{"v": 1.0, "preflight": "true"}, ErrNoTenant},
		{"preflight of another version", map[string]any{"v": 2.0, "preflight": true}, errAny},
		{"preflight and tenant", good(map[string]any{"preflight": true}), errAny},
		{"no version", map[string]any{"tenant": "acme"}, errAny},
		{"other version", good(map[string]any{"v": 2.0}), errAny},
		{"version in a string", good(map[string]any{"v": "1"}), errAny},
		{"empty tenant", good(map[string]any{"tenant": ""}), errAny},
		{"null tenant", good(map[string]any{"tenant": nil}), errAny},
		{"number for tenant", good(map[string]any{"tenant": 7.0}), errAny},
		{"bad class", good(map[string]any{"class": "vip"}), errAny},
		{"bad scopes", good(map[string]any{"scopes": []any{1.0}}), errAny},
		{"parameter among scopes", good(map[string]any{"scopes": []any{"n=1"}}), errAny},
		{"scope among parameters", good(map[string]any{"params": []any{"chat"}}), errAny},
		{"bad parameter", good(map[string]any{"params": []any{"n<1"}}), errAny},
		{"bad exp", good(map[string]any{"exp": "soon"}), errAny},
	} {
		t.Run(c.name, func(t *testing.T) {
			id, err := FromFields(c.in)
			switch {
			case c.want == nil:
				if err != nil || id.Tenant != "acme" {
					t.Errorf("got %v, %v", id, err)
				}
			case err == nil || id != nil:
				t.Errorf("accepted: %+v", id)
			case c.want != errAny && !errors.Is(err, c.want):
				t.Errorf("error %v, want %v", err, c.want)
			}
		})
	}
	if _, err := FromFields(DeniedFields(CodeTokenMissing)); !errors.Is(err, ErrDenied) {
		t.Errorf("the metadata of a denial gave %v", err)
	}
}

var errAny = errors.New("any error")

func FuzzParseScopes(f *testing.F) {
	f.Add("llm_service chat max_tokens<=1024 n=1 model=a|b t>=-0.5")
	f.Add("a<=1 a<=2 a=1 a=1|2")
	f.Add("=<>|")
	f.Fuzz(func(t *testing.T, s string) {
		names, params, err := ParseScopes(s)
		if err != nil {
			if names != nil || params != nil {
				t.Fatal("an error with a result")
			}
			return
		}
		if !slices.IsSorted(names) {
			t.Fatalf("%q is not sorted", names)
		}
		// What was read is written and read as the same.
		again, sameParams, err := ParseScopes(append(slices.Clone(names), texts(params)...))
		if err != nil || !slices.Equal(again, names) || !reflect.DeepEqual(sameParams, params) {
			t.Fatalf("%q: %q %v became %q %v, %v", s, names, params, again, sameParams, err)
		}
		// No bound is lost: every element with an operator still binds.
		for e := range strings.FieldsSeq(s) {
			if !strings.ContainsAny(e, "<>=") {
				continue
			}
			p, err := ParseParam(e)
			if err != nil || !slices.ContainsFunc(params, func(q Param) bool { return q.Field == p.Field && q.Op == p.Op }) {
				t.Fatalf("%q was lost in %v", e, params)
			}
		}
	})
}

func FuzzFromFields(f *testing.F) {
	f.Add([]byte(`{"v":1,"tenant":"acme","class":"batch","scopes":["a"],"params":["n=1"],"exp":1900000000.5}`))
	f.Add([]byte(`{"v":1,"denied":true}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var m map[string]any
		if json.Unmarshal(b, &m) != nil {
			return
		}
		id, err := FromFields(m)
		if err != nil {
			return
		}
		if m["tenant"] != id.Tenant || id.Tenant == "" || m["denied"] == true {
			t.Fatalf("%s gave %+v", b, id)
		}
		if again, err := FromFields(id.Fields()); err != nil || again.Tenant != id.Tenant || again.Class != id.Class {
			t.Fatalf("%+v does not come back: %+v, %v", id, again, err)
		}
	})
}
