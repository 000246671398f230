package policy

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// channels is a policy with two profiles and two models.
func channels(t *testing.T) *Policy {
	t.Helper()
	p, err := Load("weir.yaml", []byte(`version: 1
identity: {issuers: [{issuer: i, audiences: [a], jwks: {url: "https://id.example/jwks"}}]}
models: [{name: a, pools: [gpu]}, {name: b, pools: [gpu]}, {name: c, pools: [gpu]}]
pools: [{name: gpu, variant: fp16, seats: {requests: 1}}]
profiles: {edge: {queue: {length: {max: 0}}}, other: {}}
`))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestForAllNarrows (E2): whatever the order of the channels, the narrowest
// value of each key binds.
func TestForAllNarrows(t *testing.T) {
	p := channels(t)
	given := []Given{
		{RouteMetadata, Overrides{Class: "standard", MaxWait: "100ms", Models: "a, b"}},
		{ContextExtensions, Overrides{Class: "2", MaxWait: "150ms", Models: "b,c"}},
		{InitialMetadata, Overrides{Profile: "edge", Function: "f"}},
	}
	for range given {
		given = append(given[1:], given[0])
		e, err := p.ForAll(given...)
		if err != nil {
			t.Fatal(err)
		}
		if e.Cap(Critical) != Batch || e.MaxWait[Standard] != 100*time.Millisecond || strings.Join(e.Models, " ") != "b" ||
			e.ProfileName != "edge" || e.Function != "f" {
			t.Errorf("%v gave %+v", given, e)
		}
	}
	if e, err := p.ForAll(); err != nil || e.ProfileName != "" || e.ClassCap != nil {
		t.Errorf("no channel: %+v, %v", e, err)
	}
	one, _ := p.ForAll(Given{RouteMetadata, Overrides{Class: "batch"}}, Given{InitialMetadata, Overrides{Class: "batch"}})
	if again, _ := p.For(Overrides{Class: "batch"}); one == nil || one != again {
		t.Error("equal overrides gave different policies")
	}
}

// TestForAllNamesTheChannel: each refusal says where to look.
func TestForAllNamesTheChannel(t *testing.T) {
	p := channels(t)
	for _, tt := range []struct {
		name  string
		given []Given
		at    Channel
		want  []string
	}{
		{"unknown value", []Given{{RouteMetadata, Overrides{Class: "batch"}}, {InitialMetadata, Overrides{Class: "vip"}}},
			InitialMetadata, []string{"grpc_initial_metadata", "class", `"vip"`, "critical, standard or batch"}},
		{"too long in one, short in the other", []Given{{RouteMetadata, Overrides{MaxWait: "1h"}}, {InitialMetadata, Overrides{MaxWait: "1ms"}}},
			RouteMetadata, []string{"route_metadata", "maxWait", `"1h"`}},
		{"two profiles", []Given{{RouteMetadata, Overrides{Profile: "edge"}}, {ContextExtensions, Overrides{Profile: "other"}}},
			ContextExtensions, []string{"profile", `"edge"`, `"other"`}},
		{"two functions", []Given{{RouteMetadata, Overrides{Function: "f"}}, {ContextExtensions, Overrides{Function: "g"}}},
			ContextExtensions, []string{"function", `"f"`, `"g"`}},
		{"no model in common", []Given{{RouteMetadata, Overrides{Models: "a"}}, {ContextExtensions, Overrides{Models: "b"}}},
			ContextExtensions, []string{"models", `"a"`, `"b"`}},
	} {
		_, err := p.ForAll(tt.given...)
		var bad *OverrideError
		if !errors.As(err, &bad) || bad.Channel != tt.at {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		for _, part := range tt.want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %q does not say %s", tt.name, err, part)
			}
		}
	}
}

func TestOverridesMap(t *testing.T) {
	o := Overrides{Profile: "p", Function: "f", Class: "batch", MaxWait: "1s", Models: "m"}
	if back, err := OverridesFrom(o.Map()); err != nil || back != o {
		t.Errorf("%+v, %v", back, err)
	}
	if (Overrides{}).Map() != nil {
		t.Error("nothing set, and a map")
	}
}
