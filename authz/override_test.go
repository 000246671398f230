package authz

import (
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weirproxy/weir/policy"
)

// TestOverrides (E2): selecting and narrowing by Envoy's own configuration.
func TestOverrides(t *testing.T) {
	d := newDoor(t, nil)
	auth := "Bearer " + d.token(map[string]any{"scope": "llm_service chat_completion special"})
	plain := "Bearer " + d.token(nil)
	loose := "Bearer " + d.token(map[string]any{"scope": "llm_service special"})
	str := func(m map[string]string) map[string]any {
		out := map[string]any{}
		for k, v := range m {
			out[k] = v
		}
		return out
	}
	const bad = -1 // a gRPC error
	for _, c := range []struct {
		name       string
		auth       string
		route      map[string]any
		extensions map[string]string
		want       int
	}{
		{"none", plain, nil, nil, 200},
		{"the API's own function", plain, str(map[string]string{"function": "chat_completion"}), nil, 200},
		{"another function, held", auth, str(map[string]string{"function": "special"}), nil, 200},
		{"another function, not held", plain, str(map[string]string{"function": "special"}), nil, 403},
		{"another function in context_extensions", plain, nil, map[string]string{"function": "special"}, 403},
		{"a route does not loosen", loose, str(map[string]string{"function": "special"}), nil, 403},
		{"class and wait", plain, str(map[string]string{"class": "batch", "maxWait": "100ms"}), map[string]string{"class": "standard"}, 200},
		{"same in both", plain, str(map[string]string{"class": "batch"}), map[string]string{"class": "batch"}, 200},
		{"function in one, class in the other", auth, str(map[string]string{"class": "batch"}), map[string]string{"function": "special"}, 200},
		{"functions that differ", auth, str(map[string]string{"function": "chat_completion"}), map[string]string{"function": "special"}, bad},
		{"unknown key", plain, str(map[string]string{"clas": "batch"}), nil, bad},
		{"unknown key in context_extensions", plain, nil, map[string]string{"maxwait": "1s"}, bad},
		{"unknown class", plain, str(map[string]string{"class": "vip"}), nil, bad},
		{"unknown profile", plain, nil, map[string]string{"profile": "nobody"}, bad},
		{"wait without a unit", plain, nil, map[string]string{"maxWait": "100"}, bad},
		{"unknown model", plain, nil, map[string]string{"models": "nobody"}, bad},
		{"a number in route metadata", plain, map[string]any{"maxWait": 100.0}, nil, bad},
		{"an empty value", plain, nil, map[string]string{"class": ""}, bad},
	} {
		t.Run(c.name, func(t *testing.T) {
			req := d.chat("authorization", c.auth)
			req.Attributes.ContextExtensions = c.extensions
			if c.route != nil {
				s, err := structpb.NewStruct(c.route)
				if err != nil {
					t.Fatal(err)
				}
				req.Attributes.RouteMetadataContext = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"weir.policy": s}}
			}
			if c.want != bad {
				if got := d.status(req); got != c.want {
					t.Errorf("%d, want %d", got, c.want)
				}
				return
			}
			before := d.overrides.Load()
			_, err := d.client.Check(t.Context(), req)
			if status.Code(err) != codes.FailedPrecondition || d.overrides.Load() != before+1 || <-d.codes != "override_invalid" {
				t.Errorf("error %v, %d counted", err, d.overrides.Load()-before)
			}
			// Whoever is not identified learns nothing of it.
			anonymous := proto.CloneOf(req)
			anonymous.Attributes.Request.Http.HeaderMap = nil
			if got := d.status(anonymous); got != 401 {
				t.Errorf("anonymous: %d", got)
			}
		})
	}
}

func TestRouteMayLoosenWherePolicySaysSo(t *testing.T) {
	d := newDoor(t, func(p *policy.Policy) { p.Envoy.AllowLoosen = true })
	req := d.chat("authorization", "Bearer "+d.token(map[string]any{"scope": "llm_service special"}))
	req.Attributes.ContextExtensions = map[string]string{"function": "special"}
	if got := d.status(req); got != 200 {
		t.Errorf("%d", got)
	}
}
