package examples

import (
	"encoding/json"
	"path"
	"strings"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/filters/cel/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stream/v3"
	extauthzv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_authz/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/http/early_header_mutation/header_mutation/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/downstream_connections/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/fixed_heap/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	"github.com/weirproxy/weir/envoy"
	"github.com/weirproxy/weir/policy"
)

// bootstrap parses an example as Envoy would: unknown fields fail, and every
// message is validated by its own rules.
func bootstrap(t *testing.T, name string) *bootstrapv3.Bootstrap {
	t.Helper()
	raw, err := Files.ReadFile(path.Join("envoy", name))
	if err != nil {
		t.Fatal(err)
	}
	doc, err := yaml.YAMLToJSONStrict(raw)
	if err != nil {
		t.Fatal(err)
	}
	b := new(bootstrapv3.Bootstrap)
	if err := protojson.Unmarshal(doc, b); err != nil {
		t.Fatal(err)
	}
	if err := b.ValidateAll(); err != nil {
		t.Fatal(err)
	}
	return b
}

// manager is the example's HTTP connection manager.
func manager(t *testing.T, b *bootstrapv3.Bootstrap) *hcmv3.HttpConnectionManager {
	t.Helper()
	m, err := b.GetStaticResources().GetListeners()[0].GetFilterChains()[0].GetFilters()[0].GetTypedConfig().UnmarshalNew()
	if err != nil {
		t.Fatal(err)
	}
	hcm := m.(*hcmv3.HttpConnectionManager)
	if err := hcm.ValidateAll(); err != nil {
		t.Fatal(err)
	}
	return hcm
}

func filter[M proto.Message](t *testing.T, hcm *hcmv3.HttpConnectionManager) (found M) {
	t.Helper()
	for _, f := range hcm.GetHttpFilters() {
		m, err := f.GetTypedConfig().UnmarshalNew()
		if err != nil {
			t.Fatal(err)
		}
		if v, ok := m.(interface{ ValidateAll() error }); ok {
			if err := v.ValidateAll(); err != nil {
				t.Fatalf("%s: %v", f.GetName(), err)
			}
		}
		if m, ok := m.(M); ok {
			found = m
		}
	}
	return found
}

func TestStaticEnvoyFiles(t *testing.T) {
	entries, err := Files.ReadDir("envoy")
	if err != nil || len(entries) < 2 {
		t.Fatalf("examples/envoy holds %d files: %v", len(entries), err)
	}
	for _, e := range entries {
		t.Run(e.Name(), func(t *testing.T) {
			hcm := manager(t, bootstrap(t, e.Name()))
			if !hcm.GetNormalizePath().GetValue() || !hcm.GetMergeSlashes() ||
				hcm.GetPathWithEscapedSlashesAction() != hcmv3.HttpConnectionManager_REJECT_REQUEST {
				t.Error("paths are not normalised: scopes could be fooled by spelling")
			}
			if len(hcm.GetEarlyHeaderMutationExtensions()) == 0 {
				t.Error("forged x-weir- headers are not stripped before routing")
			}
			if filter[*extprocv3.ExternalProcessor](t, hcm).GetFailureModeAllow() {
				t.Error("ext_proc fails open")
			}
			if filter[*extauthzv3.ExtAuthz](t, hcm).GetFailureModeAllow() {
				t.Error("ext_authz fails open")
			}
		})
	}
}

// TestStaticLongAnswersPass (envoyproxy/ai-gateway#1251): no clock of Envoy's
// ends an answer of ten minutes, and none makes its end fatal: with a graceful
// close of side streams, Envoy crashes where one outlives the cached gRPC client.
func TestStaticLongAnswersPass(t *testing.T) {
	const answer, gap = 10 * time.Minute, time.Minute
	for _, name := range []string{"two-filters.yaml", "one-filter.yaml", "edge.yaml", "region.yaml", "protected.yaml"} {
		b := bootstrap(t, name)
		if d := b.GetGrpcAsyncClientManagerConfig().GetMaxCachedEntryIdleDuration().AsDuration(); d < 24*time.Hour {
			t.Errorf("%s: max_cached_entry_idle_duration is %v, want a day or more", name, d)
		}
		hcm := manager(t, b)
		common := hcm.GetCommonHttpProtocolOptions()
		if hcm.GetRequestTimeout().AsDuration() != 0 || common.GetMaxStreamDuration() != nil || hcm.GetStreamIdleTimeout().AsDuration() < gap {
			t.Errorf("%s: request_timeout %v, max_stream_duration %v, stream_idle_timeout %v", name,
				hcm.GetRequestTimeout(), common.GetMaxStreamDuration(), hcm.GetStreamIdleTimeout())
		}
		if d := filter[*extprocv3.ExternalProcessor](t, hcm).GetGrpcService().GetTimeout().AsDuration(); d != 0 {
			t.Errorf("%s: ext_proc's side stream ends after %v", name, d)
		}
		for _, r := range hcm.GetRouteConfig().GetVirtualHosts()[0].GetRoutes() {
			a := r.GetRoute()
			if a == nil || r.GetName() == "models" {
				continue // answered by weir or Envoy
			}
			if a.GetTimeout() == nil || a.GetTimeout().AsDuration() != 0 && a.GetTimeout().AsDuration() < answer || a.GetIdleTimeout().AsDuration() < gap {
				t.Errorf("%s: route %s: timeout %v, idle_timeout %v", name, r.GetName(), a.GetTimeout(), a.GetIdleTimeout())
			}
		}
	}
}

// TestStaticExamplesAgreeWithSnippet: what `weir envoy snippet` prints for the
// default policy is what the examples hold.
func TestStaticExamplesAgreeWithSnippet(t *testing.T) {
	for name, from := range map[string]policy.IdentityFrom{
		"two-filters.yaml": policy.FromAuthz, "one-filter.yaml": policy.FromExtProc, "edge.yaml": policy.FromExtProc, "region.yaml": policy.FromExtProc, "protected.yaml": policy.FromAuthz,
	} {
		t.Run(name, func(t *testing.T) {
			p := policy.Default()
			p.Identity.From = from
			text, err := envoy.Snippet(p)
			if err != nil {
				t.Fatal(err)
			}
			var doc map[string]any
			if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
				t.Fatal(err)
			}
			// The examples have routes of all kinds: they are sent bodies by the routes
			// that want them, where the snippet alone has to serve JSON routes.
			filters := doc["http_filters"].([]any)
			proc := filters[len(filters)-2].(map[string]any)["typed_config"].(map[string]any)["processing_mode"].(map[string]any)
			proc["request_body_mode"], proc["response_body_mode"] = "NONE", "NONE"
			raw, _ := json.Marshal(map[string]any{"stat_prefix": "x", "rds": map[string]any{}, "http_filters": doc["http_filters"]})
			want := new(hcmv3.HttpConnectionManager)
			if err := protojson.Unmarshal(raw, want); err != nil {
				t.Fatal(err)
			}
			have := manager(t, bootstrap(t, name))
			for i, f := range want.GetHttpFilters() {
				if got := have.GetHttpFilters()[i]; !proto.Equal(f, got) {
					t.Errorf("%s differs:\nsnippet %s\nexample %s", f.GetName(), protojson.Format(f), protojson.Format(got))
				}
			}
		})
	}
}

// TestStaticFormsDifferInIdentityOnly: the two files share everything but who
// verifies the token.
func TestStaticFormsDifferInIdentityOnly(t *testing.T) {
	var lines [2]map[string]bool
	for i, name := range []string{"two-filters.yaml", "one-filter.yaml"} {
		raw, err := Files.ReadFile(path.Join("envoy", name))
		if err != nil {
			t.Fatal(err)
		}
		lines[i] = map[string]bool{}
		for l := range strings.Lines(string(raw)) {
			if !strings.HasPrefix(l, "#") {
				lines[i][l] = true
			}
		}
	}
	for l := range lines[1] {
		if !lines[0][l] && !strings.Contains(l, "forward_rules") {
			t.Errorf("only in one-filter.yaml: %s", l)
		}
	}
}
