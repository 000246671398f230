package authz

import (
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weirproxy/weir/identity"
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
	const bad = 503
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
			before := d.overrides.Load()
			resp := d.check(req)
			got := int(resp.GetDeniedResponse().GetStatus().GetCode())
			if resp.GetOkResponse() != nil {
				got = 200
			}
			if got != c.want {
				t.Fatalf("%d, want %d", got, c.want)
			}
			if c.want != bad {
				return
			}
			misled, told := d.misled.Load(), d.refused.Load()
			if d.overrides.Load() != before+1 || misled.Channel == "" || told.Detail != misled.Error() || told.Identity.Tenant != "acme" {
				t.Errorf("%d counted, %v, %+v", d.overrides.Load()-before, misled, told)
			}
			if headerOf(resp, "x-weir-reason") != "override_invalid" || strings.Contains(resp.GetDeniedResponse().GetBody(), misled.Error()) {
				t.Errorf("answer %v", resp)
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

// TestOverridesAreHandedOn: what only ext_authz sees of a route reaches
// ext_proc beside the identity; the shared answer of the token stays as it is.
func TestOverridesAreHandedOn(t *testing.T) {
	d := newDoor(t, nil)
	auth := "Bearer " + d.token(nil)
	for range 2 {
		req := d.chat("authorization", auth)
		req.Attributes.ContextExtensions = map[string]string{"class": "batch", "maxWait": "100ms"}
		fields := d.check(req).GetDynamicMetadata().AsMap()
		got, err := identity.OverridesFrom(fields)
		if want := (policy.Overrides{Class: "batch", MaxWait: "100ms"}); err != nil || got != want {
			t.Errorf("got %+v, %v; want %+v", got, err, want)
		}
		if id, err := identity.FromFields(fields); err != nil || id.Tenant != "acme" {
			t.Errorf("the identity beside it: %+v, %v", id, err)
		}
		plain := d.check(d.chat("authorization", auth)).GetDynamicMetadata().AsMap()
		if got, err := identity.OverridesFrom(plain); err != nil || got != (policy.Overrides{}) {
			t.Errorf("without context_extensions: %+v, %v", got, err)
		}
	}
}

// TestShadowLiftsWhatIsAsked (O4): where the policy does not enforce, ext_authz
// leaves unknown paths and misconfigured routes to ext_proc, which records
// them; who asks and which scopes they hold stays judged.
func TestShadowLiftsWhatIsAsked(t *testing.T) {
	for _, mode := range []policy.Mode{policy.Shadow, policy.Pass} {
		d := newDoor(t, func(p *policy.Policy) {
			p.Mode = mode
			for i := range p.Classes {
				p.Classes[i].Mode = mode
			}
		})
		good, poor := "Bearer "+d.token(nil), "Bearer "+d.token(map[string]any{"scope": "llm_service"})
		misled := func(auth string) *authv3.CheckRequest {
			req := d.chat("authorization", auth)
			req.Attributes.ContextExtensions = map[string]string{"class": "vip"}
			return req
		}
		for name, c := range map[string]struct {
			req  *authv3.CheckRequest
			want int
		}{
			"unknown path":                       {request("POST", "/nowhere", "authorization", good), 200},
			"unknown path, anonymous":            {request("POST", "/nowhere"), 401},
			"a path that reads in two ways":      {request("POST", "/x/../v1/chat/completions", "authorization", good), 400},
			"misconfigured route":                {misled(good), 200},
			"misconfigured route, without scope": {misled(poor), 403},
			"the API's scope":                    {d.chat("authorization", poor), 403},
		} {
			if got := d.status(c.req); got != c.want {
				t.Errorf("%v, %s: %d, want %d", mode, name, got, c.want)
			}
		}
		if d.overrides.Load() != 2 {
			t.Errorf("the operator heard of %d calls, want 2", d.overrides.Load())
		}
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
