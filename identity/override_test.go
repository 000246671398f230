package identity

import (
	"testing"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weirproxy/weir/policy"
)

// TestOverridesBesideIdentity (E2): what ext_authz read reaches ext_proc
// through a Struct, and nothing of it is lost in silence.
func TestOverridesBesideIdentity(t *testing.T) {
	want := policy.Overrides{Profile: "edge", Function: "f", Class: "batch", MaxWait: "100ms", Models: "a, b"}
	s, err := structpb.NewStruct(OverrideFields(want))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := OverridesFrom(s.AsMap()); err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	if OverrideFields(policy.Overrides{}) != nil {
		t.Error("nothing was set, and a field is handed on")
	}
	if got, err := OverridesFrom(map[string]any{"tenant": "acme"}); err != nil || got != (policy.Overrides{}) {
		t.Errorf("without the field: %+v, %v", got, err)
	}
	for _, bad := range []any{nil, "class=batch", []any{"batch"}, map[string]any{"class": 2.0},
		map[string]any{"klass": "batch"}, map[string]any{"class": ""}} {
		if got, err := OverridesFrom(map[string]any{"overrides": bad}); err == nil {
			t.Errorf("%v gave %+v", bad, got)
		}
	}
}
