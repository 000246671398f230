package envoy

import (
	"fmt"
	"strings"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	extauthzv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_authz/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"
	"sigs.k8s.io/yaml"

	"github.com/weirproxy/weir/policy"
)

// sections are the parts of a snippet as Envoy's own messages.
type sections struct {
	authz    *extauthzv3.ExtAuthz // nil when absent
	extproc  *extprocv3.ExternalProcessor
	clusters []*clusterv3.Cluster
}

// parse reads a snippet strictly: an unknown field fails.
func parse(t *testing.T, text string) sections {
	t.Helper()
	var doc map[string]any
	if err := yaml.UnmarshalStrict([]byte(text), &doc); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	var s sections
	for _, f := range doc["http_filters"].([]any) {
		raw, _ := yaml.Marshal(f)
		raw, _ = yaml.YAMLToJSON(raw)
		var filter hcmv3.HttpFilter
		if err := protojson.Unmarshal(raw, &filter); err != nil {
			t.Fatalf("%v in %s", err, raw)
		}
		m, err := filter.GetTypedConfig().UnmarshalNew()
		if err != nil {
			t.Fatal(err)
		}
		if v, ok := m.(interface{ ValidateAll() error }); ok {
			if err := v.ValidateAll(); err != nil {
				t.Fatalf("%s: %v", filter.GetName(), err)
			}
		}
		switch m := m.(type) {
		case *extauthzv3.ExtAuthz:
			s.authz = m
		case *extprocv3.ExternalProcessor:
			s.extproc = m
		}
	}
	for _, c := range doc["clusters"].([]any) {
		raw, _ := yaml.Marshal(c)
		raw, _ = yaml.YAMLToJSON(raw)
		cluster := new(clusterv3.Cluster)
		if err := protojson.Unmarshal(raw, cluster); err != nil {
			t.Fatalf("%v in %s", err, raw)
		}
		if err := cluster.ValidateAll(); err != nil {
			t.Fatal(err)
		}
		s.clusters = append(s.clusters, cluster)
	}
	raw, _ := yaml.Marshal(doc["layered_runtime"])
	raw, _ = yaml.YAMLToJSON(raw)
	if err := protojson.Unmarshal(raw, new(bootstrapv3.LayeredRuntime)); err != nil {
		t.Fatal(err)
	}
	return s
}

func snippetOf(t *testing.T, change func(*policy.Policy)) (string, sections) {
	t.Helper()
	p := policy.Default()
	change(p)
	text, err := Snippet(p)
	if err != nil {
		t.Fatal(err)
	}
	return text, parse(t, text)
}

func TestSnippetTakesItsTimesFromThePolicy(t *testing.T) {
	_, s := snippetOf(t, func(p *policy.Policy) {
		p.Envoy.MessageTimeout = 1500 * time.Millisecond
		p.Envoy.MaxMessageTimeout = 12 * time.Second
		p.Envoy.MaxRequests = 777
		p.Server.GRPC = "127.0.0.1:9903"
	})
	for what, c := range map[string]struct {
		got  *durationpb.Duration
		want time.Duration
	}{
		"message_timeout":     {s.extproc.GetMessageTimeout(), 1500 * time.Millisecond},
		"max_message_timeout": {s.extproc.GetMaxMessageTimeout(), 12 * time.Second},
	} {
		if c.got.AsDuration() != c.want {
			t.Errorf("%s is %v, the policy says %v", what, c.got.AsDuration(), c.want)
		}
	}
	weir := s.clusters[0]
	if n := weir.GetCircuitBreakers().GetThresholds()[0].GetMaxRequests().GetValue(); n != 777 {
		t.Errorf("max_requests is %d, want 777", n)
	}
	if port := weir.GetLoadAssignment().GetEndpoints()[0].GetLbEndpoints()[0].GetEndpoint().GetAddress().GetSocketAddress().GetPortValue(); port != 9903 {
		t.Errorf("port is %d, want 9903", port)
	}
}

func TestSnippetFailsClosedInEveryForm(t *testing.T) {
	for from, want := range map[policy.IdentityFrom]struct {
		authz     bool
		namespace string
		seesToken bool
	}{
		policy.FromAuthz:    {true, "envoy.filters.http.ext_authz", false},
		policy.FromExtProc:  {false, "", true},
		policy.FromMetadata: {false, "envoy.filters.http.jwt_authn", false},
	} {
		t.Run(fmt.Sprint(from), func(t *testing.T) {
			_, s := snippetOf(t, func(p *policy.Policy) { p.Identity.From = from })
			if (s.authz != nil) != want.authz {
				t.Errorf("ext_authz present: %v, want %v", s.authz != nil, want.authz)
			}
			if s.authz.GetFailureModeAllow() || s.extproc.GetFailureModeAllow() {
				t.Error("a filter fails open")
			}
			got := strings.Join(s.extproc.GetMetadataOptions().GetForwardingNamespaces().GetUntyped(), ",")
			if got != want.namespace {
				t.Errorf("forwards %q, want %q", got, want.namespace)
			}
			sees := true
			for _, p := range s.extproc.GetForwardRules().GetDisallowedHeaders().GetPatterns() {
				if p.GetExact() == "authorization" {
					sees = false
				}
			}
			if sees != want.seesToken {
				t.Errorf("ext_proc sees the token: %v, want %v", sees, want.seesToken)
			}
		})
	}
}

func TestSnippetWithoutOverrides(t *testing.T) {
	_, s := snippetOf(t, func(p *policy.Policy) { p.Envoy.MaxMessageTimeout = 0 })
	if s.extproc.GetMaxMessageTimeout() != nil {
		t.Error("max_message_timeout is set where the policy says that Envoy has no overrides")
	}
}

func TestSnippetRefusesAnAddressThatEnvoyCannotDial(t *testing.T) {
	for _, addr := range []string{"nonsense", "127.0.0.1:99999", "127.0.0.1:http"} {
		p := policy.Default()
		p.Server.GRPC = addr
		if _, err := Snippet(p); err == nil || !strings.Contains(err.Error(), "server.grpc") {
			t.Errorf("%q: error is %v, want one that names server.grpc", addr, err)
		}
	}
}
