package lint

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/weirproxy/weir/internal/envoytest"
)

func rulesOf(r *Report, s Severity) []string {
	var rules []string
	for _, f := range r.Findings {
		if f.Severity == s && !slices.Contains(rules, f.Rule) {
			rules = append(rules, f.Rule)
		}
	}
	slices.Sort(rules)
	return rules
}

// TestCases: bootstraps on which Envoy's verdict is easily missed.
func TestCases(t *testing.T) {
	for name, want := range map[string]string{
		"anyvalue": "", "base": "", "double-nan": "invalid", "dur-dot5": "bad-value", "duration-mapping": "", "empty-any": "",
		"enum-case": "", "filter-empty-type": "extension", "foreign-ads": "", "router-bare": "extension", "runtime-string": "",
		"runtime-uint32": "", "tls-bare": "extension", "typedstruct-udpa": "", "typeurl-noslash": "unknown-type",
		"with-authz": "", "with-http-authz": "", "wrapper-mapping": "",
	} {
		data, err := os.ReadFile(filepath.Join("testdata", "cases", name+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		r := Check(name, data, Options{})
		if got := strings.Join(rulesOf(r, Error), " "); got != want {
			t.Errorf("%s: errors %q, want %q:\n%s", name, got, want, r)
		}
	}
}

// asDump is a bootstrap as a dump of an Envoy that runs it tells it, its routes
// from RDS.
func asDump(t *testing.T, text string, camel bool) string {
	t.Helper()
	var b map[string]any
	if err := yaml.Unmarshal([]byte(text), &b); err != nil {
		t.Fatal(err)
	}
	static, _ := b["static_resources"].(map[string]any)
	wrap := func(list any, in, kind string) []any {
		var out []any
		for _, one := range list.([]any) {
			one.(map[string]any)["@type"] = "type.googleapis.com/envoy.config." + kind
			out = append(out, map[string]any{in: one})
		}
		return out
	}
	listeners := wrap(static["listeners"], "listener", "listener.v3.Listener")
	var dynamic []any
	for _, l := range listeners {
		dynamic = append(dynamic, map[string]any{"name": "l", "active_state": l})
	}
	hcm := static["listeners"].([]any)[0].(map[string]any)["filter_chains"].([]any)[0].(map[string]any)["filters"].([]any)[0].(map[string]any)["typed_config"].(map[string]any)
	routes, _ := hcm["route_config"].(map[string]any)
	routes["name"] = "edge"
	hcm["rds"] = map[string]any{"route_config_name": "edge", "config_source": map[string]any{"ads": map[string]any{}}}
	delete(hcm, "route_config")
	clusters := wrap(static["clusters"], "cluster", "cluster.v3.Cluster")
	delete(b, "static_resources")
	const admin = "type.googleapis.com/envoy.admin.v3."
	out, err := yaml.Marshal(map[string]any{"configs": []any{
		map[string]any{"@type": admin + "BootstrapConfigDump", "bootstrap": b},
		map[string]any{"@type": admin + "ClustersConfigDump", "dynamic_active_clusters": clusters},
		map[string]any{"@type": admin + "ListenersConfigDump", "dynamic_listeners": dynamic},
		map[string]any{"@type": admin + "RoutesConfigDump", "dynamic_route_configs": []any{map[string]any{"route_config": routes}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if !camel {
		return string(out)
	}
	text = string(out)
	for _, key := range []string{"dynamic_active_clusters", "dynamic_listeners", "active_state", "dynamic_route_configs", "route_config", "virtual_hosts", "http_filters", "filter_chains", "typed_config", "route_config_name", "load_assignment", "cluster_name"} {
		text = strings.ReplaceAll(text, key+":", inJSON(key)+":")
	}
	return text
}

// TestDumps: what runs is read from a dump, with both spellings of fields, and
// what is wrong with it is found at its place.
func TestDumps(t *testing.T) {
	p := load(t, nil)
	for _, camel := range []bool{false, true} {
		well := asDump(t, read(t, "envoy", "two-filters.yaml"), camel)
		if r := Check("dump", []byte(well), Options{Policy: p}); r.Source != FromDump || r.Errors() != 0 {
			t.Errorf("camel %v: %s: %s", camel, r.Source, r)
		}
		for old, want := range map[string][2]string{
			"request_body_mode: BUFFERED":                     {"request_body_mode: NONE", "mode"},
			"string_match: {exact: chat-int8}":                {"string_match: {exact: chat-int9}", "pool-route"},
			"failure_mode_allow: false\n              status": {"failure_mode_allow: true\n              status", "fail-open"},
		} {
			bad := asDump(t, strings.ReplaceAll(read(t, "envoy", "two-filters.yaml"), old, want[0]), camel)
			r := Check("dump", []byte(bad), Options{Policy: p})
			if !slices.Contains(rulesOf(r, Error), want[1]) {
				t.Errorf("%s: no %s in\n%s", want[0], want[1], r)
			}
			for _, f := range r.Findings {
				if f.Line <= 1 {
					t.Errorf("no place: %s", f)
				}
			}
		}
	}
	nested := "xds:\n  envoy-gateway-system/eg:\n    \"@type\": type.googleapis.com/envoy.admin.v3.ConfigDump\n    " + strings.ReplaceAll(asDump(t, read(t, "envoy", "two-filters.yaml"), true), "\n", "\n    ")
	if r := Check("egctl", []byte(nested), Options{Policy: p}); r.Source != FromDump || r.Errors() != 0 {
		t.Errorf("under a name: %s: %s", r.Source, r)
	}
	const lists = `[{"name": "l", "filterChains": [{"filters": [{"name": "h", "typedConfig": {"@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager", "statPrefix": "s", "rds": {"routeConfigName": "r"}, "httpFilters": [{"name": "istio.stats", "typedConfig": {"@type": "type.googleapis.com/stats.PluginConfig"}}, {"name": "envoy.filters.http.router", "typedConfig": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}]}}]}]}]`
	r := Check("istioctl", []byte(lists), Options{Policy: p})
	if r.Source != FromDump || !slices.Equal(rulesOf(r, Error), []string{"weir-absent"}) {
		t.Errorf("a list of listeners: %s: %s", r.Source, r)
	}
}

// TestDumpOfARunningEnvoy asks a real one.
func TestDumpOfARunningEnvoy(t *testing.T) {
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		dir := envoytest.Dir(t)
		e := envoytest.Start(t, b, dir, envoytest.Example(t, "two-filters.yaml", dir, filepath.Join(dir, "weir.sock"), map[string]string{}))
		r := Check("config_dump", e.Dump(t), Options{Policy: load(t, nil), Release: Release(b.Minor())}) //nolint:gosec // a minor number
		var others []string
		for _, rule := range rulesOf(r, Error) {
			if rule != "local-reply" && rule != "port" { // of 1.36, of the test's addresses
				others = append(others, rule)
			}
		}
		if r.Source != FromDump || len(others) > 0 || len(r.Findings) > 20 {
			t.Errorf("%s, %v: %s", r.Source, others, fmt.Sprint(r))
		}
	})
}
