package policy

import (
	"strings"
	"sync"
	"testing"
	"time"
)

func TestCleanPath(t *testing.T) {
	long := "/" + strings.Repeat("a", maxPath)
	for _, tt := range []struct {
		raw, want string
		ok        bool
	}{
		{"/v1/chat/completions", "/v1/chat/completions", true},
		{"/v1/chat/completions?x=../%2f;", "/v1/chat/completions", true},
		{"/v1/chat/completions/", "/v1/chat/completions/", true},
		{"/", "/", true},
		{"/a/...", "/a/...", true},
		{"/a/.b", "/a/.b", true},
		{"/v1/models/x:generate", "/v1/models/x:generate", true},
		{"/%E4%BD%A0", "/%E4%BD%A0", true},
		{"/a%20b", "/a%20b", true},
		{"", "", false},
		{"?x", "", false},
		{"*", "", false},
		{"v1/chat", "", false},
		{"http://h/v1/chat/completions", "", false},
		{"//v1//chat/completions", "", false},
		{"/v1//chat", "", false},
		{"/v1/chat//", "", false},
		{"/public/../v1/chat/completions", "", false},
		{"/v1/./chat", "", false},
		{"/v1/..", "", false},
		{"/v1/.", "", false},
		{"/v1%2fchat", "", false},
		{"/v1%2Fchat", "", false},
		{"/v1/%2e%2e/x", "", false},
		{"/v1/%2E", "", false},
		{"/v1%5Cchat", "", false},
		{`/v1\chat`, "", false},
		{"/v1/chat;a=b", "", false},
		{"/v1/chat%3Ba", "", false},
		{"/v1/chat#x", "", false},
		{"/v1/%63hat", "", false},
		{"/v1/%e4%bd%a0", "", false},
		{"/v1/%E4", "", false},
		{"/v1/\xe4\xbd\xa0", "", false},
		{"/v1/\xff", "", false},
		{"/v1/chat\x00", "", false},
		{"/v1/chat%00", "", false},
		{"/v1/chat%7F", "", false},
		{"/v1/chat\n", "", false},
		{"/v1/a b", "", false},
		{"/v1/%", "", false},
		{"/v1/%2", "", false},
		{"/v1/%zz", "", false},
		{"/v1/%252f", "", false},
		{"/v1/%3Fx", "", false},
		{long, "", false},
	} {
		if got, ok := CleanPath(tt.raw); got != tt.want || ok != tt.ok {
			t.Errorf("CleanPath(%q) = %q, %v; want %q, %v", tt.raw, got, ok, tt.want, tt.ok)
		}
	}
}

// Any path that CleanPath lets through is its own only spelling: cleaning it
// again changes nothing, and it has no segment that some server resolves.
func FuzzCleanPath(f *testing.F) {
	f.Add("/v1/chat/completions?a")
	f.Add("/a/%2e%2e/b")
	f.Add("/%E4%BD%A0")
	f.Fuzz(func(t *testing.T, raw string) {
		p, ok := CleanPath(raw)
		if !ok {
			return
		}
		if again, ok := CleanPath(p); !ok || again != p {
			t.Fatalf("%q is not stable: %q %v", p, again, ok)
		}
		if !strings.HasPrefix(raw, p) || strings.ContainsAny(p, `?#;\`) {
			t.Fatalf("%q from %q", p, raw)
		}
		for _, s := range strings.Split(p[1:], "/") {
			if s == "." || s == ".." {
				t.Fatalf("dot segment in %q", p)
			}
		}
	})
}

func TestRouteMostSpecificWins(t *testing.T) {
	p := Default()
	p.APIs = []API{
		{Method: "*", Path: "/{rest...}", Kind: Free, Function: "rest"},
		{Method: "POST", Path: "/v1/{op}", Kind: JSON, Function: "op"},
		{Method: "*", Path: "/v1/chat", Kind: JSON, Function: "chat-any"},
		{Method: "POST", Path: "/v1/chat", Kind: JSON, Function: "chat"},
		{Method: "POST", Path: "/v1/{op}/done", Kind: JSON, Function: "done"},
		{Method: "POST", Path: "/v1/files/{name...}", Kind: Opaque, Function: "files"},
	}
	p.Finish()
	for _, tt := range []struct{ method, path, want string }{
		{"POST", "/v1/chat", "chat"},
		{"GET", "/v1/chat", "chat-any"},
		{"POST", "/v1/other", "op"},
		{"GET", "/v1/other", "rest"},
		{"POST", "/v1/other/done", "done"},
		{"POST", "/v1/files/done", "files"},
		{"POST", "/v1/files/", "files"},
		{"POST", "/v1/files/a/b", "files"},
		{"POST", "/v1/", "rest"},
		{"POST", "/", "rest"},
		{"POST", "/v1/Chat", "op"},
	} {
		api, ok := p.Route(tt.method, tt.path)
		if !ok || api.Function != tt.want {
			t.Errorf("%s %s: got %v %v, want %s", tt.method, tt.path, api, ok, tt.want)
		}
	}
}

func TestRouteUnknownIsRefused(t *testing.T) {
	p := Default()
	for _, tt := range []struct {
		method, path string
		want         bool
	}{
		{"POST", "/v1/chat/completions", true},
		{"GET", "/v1/chat/completions", false},
		{"post", "/v1/chat/completions", false},
		{"POST", "/v1/chat/completions/", false},
		{"POST", "/V1/chat/completions", false},
		{"GET", "/v1/models", true},
		{"POST", "/v1/audio", false},
	} {
		if _, ok := p.Route(tt.method, tt.path); ok != tt.want {
			t.Errorf("%s %s: %v, want %v", tt.method, tt.path, ok, tt.want)
		}
	}
}

func TestModel(t *testing.T) {
	p := Default()
	p.Models = []Model{
		{Name: "a", Aliases: []string{"gpt-*", "b-*"}},
		{Name: "b", Aliases: []string{"gpt-4*", "alias"}},
		{Name: "b-1"},
	}
	p.Finish()
	e, err := p.For(Overrides{Models: "a, b"})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ ask, want string }{
		{"a", "a"},
		{"alias", "b"},
		{"gpt-3", "a"},
		{"gpt-4o", "b"}, // the longest glob
		{"gpt-4", "b"},
		{"b-2", "a"},
		{"b-1", ""}, // its own name, but the route does not allow it
		{"A", ""},
		{"", ""},
		{"c", ""},
	} {
		m, ok := e.Model(tt.ask)
		got := ""
		if ok {
			got = m.Name
		}
		if got != tt.want {
			t.Errorf("Model(%q) = %q, want %q", tt.ask, got, tt.want)
		}
	}
}

// V1: a missing precision is served by the next higher one, else by the
// highest below.
func TestPoolsFor(t *testing.T) {
	p := Default()
	for _, tt := range []struct {
		pools []string
		want  Variant
		got   string
	}{
		{[]string{"chat-fp16", "chat-dyn", "chat-int8"}, INT8, "chat-int8"},
		{[]string{"chat-fp16", "chat-dyn"}, INT8, "chat-dyn"},
		{[]string{"chat-fp16"}, INT8, "chat-fp16"},
		{[]string{"chat-int8", "chat-fp16"}, FP16Dyn, "chat-fp16"},
		{[]string{"chat-int8", "chat-dyn"}, FP16, "chat-dyn"},
		{[]string{"chat-int8"}, FP16, "chat-int8"},
	} {
		got := p.PoolsFor(&Model{Pools: tt.pools}, tt.want)
		if len(got) != 1 || got[0].Name != tt.got {
			t.Errorf("%v at %s: %v, want %s", tt.pools, tt.want, got, tt.got)
		}
	}
	if got := p.PoolsFor(&Model{}, FP16); len(got) != 0 {
		t.Errorf("no pools: %v", got)
	}
}

func TestMatches(t *testing.T) {
	batch := Batch
	s := Subject{Tenant: "acme", User: "u1", Model: "m", Class: Batch}
	for _, tt := range []struct {
		m    Match
		want bool
	}{
		{Match{}, true},
		{Match{Tenant: "acme"}, true},
		{Match{Tenant: "ac*"}, true},
		{Match{Tenant: "*"}, true},
		{Match{Tenant: "acme*"}, true},
		{Match{Tenant: "acm"}, false},
		{Match{Key: "*"}, false}, // no key
		{Match{Class: &batch}, true},
		{Match{Class: new(Class)}, false},
		{Match{Tenant: "acme", User: "u2"}, false},
	} {
		if got := tt.m.Matches(&s); got != tt.want {
			t.Errorf("%+v: %v, want %v", tt.m, got, tt.want)
		}
	}
}

func TestForNarrows(t *testing.T) { // E2
	p := Default()
	e, err := p.For(Overrides{Class: "standard", MaxWait: "300ms", Function: "f", Models: "deepseek-v4"})
	if err != nil {
		t.Fatal(err)
	}
	if e.Cap(Critical) != Standard || e.Cap(Batch) != Batch {
		t.Errorf("cap: %v %v", e.Cap(Critical), e.Cap(Batch))
	}
	want := [NumClasses]time.Duration{200 * time.Millisecond, 300 * time.Millisecond, 300 * time.Millisecond}
	if e.MaxWait != want {
		t.Errorf("waits %v, want %v", e.MaxWait, want)
	}
	if got := e.Longest(Batch); got != 5300*time.Millisecond { // P3: then the retry queue's 5 s
		t.Errorf("longest batch hold %v", got)
	}
	if got := e.Longest(Standard); got != 300*time.Millisecond {
		t.Errorf("longest standard hold %v", got)
	}
	if e.FunctionOf(&p.APIs[0]) != "f" {
		t.Error("function of the route")
	}
}

// TestFunctionsOf (K1, E2): a route adds a scope to the API's; it replaces it
// only where the policy lets routes loosen.
func TestFunctionsOf(t *testing.T) {
	for _, tt := range []struct {
		api, route string
		loosen     bool
		want       [2]string
	}{
		{"chat", "", false, [2]string{"chat"}},
		{"chat", "chat", false, [2]string{"chat"}},
		{"chat", "special", false, [2]string{"special", "chat"}},
		{"", "special", false, [2]string{"special", ""}},
		{"", "", false, [2]string{}},
		{"chat", "special", true, [2]string{"special"}},
		{"chat", "", true, [2]string{"chat"}},
	} {
		p := Default()
		p.Envoy.AllowLoosen = tt.loosen
		e := Effective{Policy: p, Function: tt.route}
		if got := e.FunctionsOf(&API{Function: tt.api}); got != tt.want {
			t.Errorf("%+v: %q", tt, got)
		}
	}
}

func TestForRefuses(t *testing.T) {
	p := Default()
	for _, tt := range []struct {
		o    Overrides
		want []string
	}{
		{Overrides{Profile: "edge"}, []string{`route override profile: unknown profile; the policy has none (got "edge")`}},
		{Overrides{Class: "gold"}, []string{`route override class: must be critical, standard or batch (got "gold")`}},
		{Overrides{MaxWait: "2s"}, []string{`route override maxWait: may only shorten: at most 1s here (envoy.allowLoosen is off) (got "2s")`}},
		{Overrides{MaxWait: "5"}, []string{"needs a unit"}},
		{Overrides{MaxWait: "-1s"}, []string{"must not be negative"}},
		{Overrides{MaxWait: "soon"}, []string{"must be a duration"}},
		{Overrides{Models: "gpt-9"}, []string{`unknown model "gpt-9"; the models are deepseek-v4`}},
		{Overrides{Models: "deepseek-v4,"}, []string{`unknown model ""`}},
		{Overrides{Models: "deepseek-v4,deepseek-v4"}, []string{"twice"}},
		{Overrides{Function: "a b"}, []string{"must be 1 to 64"}},
		{Overrides{Profile: "x", Class: "y", MaxWait: "z"}, []string{"profile", "class", "maxWait"}},
	} {
		e, err := p.For(tt.o)
		if err == nil || e != nil {
			t.Errorf("%+v: accepted", tt.o)
			continue
		}
		for _, w := range tt.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%+v: %v, want %q", tt.o, err, w)
			}
		}
		if again, err2 := p.For(tt.o); again != nil || err2 == nil || err2.Error() != err.Error() {
			t.Errorf("%+v: second answer differs: %v", tt.o, err2)
		}
	}
}

func TestForAllowLoosen(t *testing.T) {
	p := Default()
	p.Envoy.AllowLoosen = true
	p.Finish()
	e, err := p.For(Overrides{MaxWait: "3s"})
	if err != nil || e.MaxWait != [NumClasses]time.Duration{3 * time.Second, 3 * time.Second, 3 * time.Second} {
		t.Errorf("%v %v", e, err)
	}
	// Envoy holds 30 s at most: batch would need 25 s + 5 s + 0.5 s.
	if _, err := p.For(Overrides{MaxWait: "25s"}); err == nil || !strings.Contains(err.Error(), "would hold class batch for 30.5s, Envoy holds at most 30s") {
		t.Errorf("25s: %v", err)
	}
}

func TestForGivesOnePointer(t *testing.T) {
	p := Default()
	var wg sync.WaitGroup
	got := make([]*Effective, 16)
	for i := range got {
		wg.Go(func() { got[i], _ = p.For(Overrides{Class: "batch"}) })
	}
	wg.Wait()
	for _, e := range got {
		if e == nil || e != got[0] {
			t.Fatalf("not one pointer: %p %p", e, got[0])
		}
	}
	if n := testing.AllocsPerRun(100, func() { _, _ = p.For(Overrides{Class: "batch"}) }); n != 0 {
		t.Errorf("%v allocations a look-up", n)
	}
}

func TestForCacheIsBounded(t *testing.T) {
	p := Default()
	first, _ := p.For(Overrides{})
	for i := range maxEffective + 10 {
		if _, err := p.For(Overrides{Function: "f" + formatNumber(float64(i))}); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(*p.cache.kept.Load()); n != maxEffective {
		t.Errorf("%d kept, want %d", n, maxEffective)
	}
	if again, _ := p.For(Overrides{}); again != first {
		t.Error("an early pointer was lost")
	}
}

func TestOverridesFrom(t *testing.T) {
	o, err := OverridesFrom(map[string]string{"profile": "edge", "function": "f", "class": "batch", "maxWait": "1s", "models": "m"})
	if err != nil || o != (Overrides{Profile: "edge", Function: "f", Class: "batch", MaxWait: "1s", Models: "m"}) {
		t.Errorf("%+v %v", o, err)
	}
	_, err = OverridesFrom(map[string]string{"priority": "1", "maxwait": "1s", "class": ""})
	want := "route override class: must not be empty: leave the key out instead\n" +
		"route override maxwait: unknown key; the keys are profile, function, class, maxWait, models (got \"1s\")\n" +
		"route override priority: unknown key; the keys are profile, function, class, maxWait, models (got \"1\")"
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}

func TestHolder(t *testing.T) {
	var h Holder
	if h.Current() != nil {
		t.Error("zero value holds something")
	}
	a, b := Default(), Default()
	h.Swap(a)
	if h.Swap(b) != a || h.Current() != b {
		t.Error("swap")
	}
}
