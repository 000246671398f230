package lint

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/weirproxy/weir/internal/envoytest"
)

// probe is a bootstrap that differs in one place from one that Envoy takes.
// strict says why it is refused here though `envoy --mode validate` takes it.
type probe struct{ name, text, strict string }

const probeCluster = `  - name: a
    type: STATIC
    connect_timeout: 1s
    load_assignment: {cluster_name: a, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: 22001}}}}]}]}
`

// slots are the places of a bootstrap where a probe writes something.
type slots struct{ top, cluster, hcm, route, host, filters, listener, chain, network, router string }

func (s slots) text() string {
	return `node: {id: x1, cluster: c1}
` + s.top + `
static_resources:
  clusters:
` + probeCluster + s.cluster + `
  listeners:
  - name: l
    address: {socket_address: {address: 127.0.0.1, port_value: 22002}}
` + s.listener + `
    filter_chains:
    - filters:
` + s.network + `
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: s
` + s.hcm + `
          route_config:
            virtual_hosts:
            - name: v
              domains: ["*"]
` + s.host + `
              routes:
              - match: {prefix: /}
                route: {cluster: a` + s.route + `}
          http_filters:
` + s.filters + `
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router` + s.router + `}
` + s.chain + "\n"
}

// scalarForms are ways to write a value, by a field of each kind.
var scalarForms = []struct {
	field string // of cluster a, %s is the value
	forms []string
}{
	{"lb_policy: %s", []string{"round_robin", "Round_Robin", "round-robin", `"0"`, "0", "1", `"1"`, "77", `"77"`, "1.0", `"1.0"`, "ROUND ROBIN", "true", "null", `""`, "-1", "[ROUND_ROBIN]", "{}", `"+1"`, `" 1"`, "0x1", "01", "least_request", "Maglev"}},
	{"alt_stat_name: %s", []string{"1", "1.5", "true", "on", "null", "~", "[x]", "{}", "2147483648", "99999999999999999999", "0x10", "010", "1e3", ".5", "2001-01-01", "!!str 1", `!!int "1"`, "!foo x", "!!binary YQ==", "!!bool \"true\""}},
	{"respect_dns_ttl: %s", []string{`"true"`, "True", `"True"`, "yes", "on", "1", "0", `"1"`, "null", "[true]", "{}", "y", `"on"`, "t", "'false'", `"no"`, `"F"`, `"tru"`}},
	{"wait_for_warm_on_init: %s", []string{`"true"`, "{value: true}", `{value: "true"}`, "{}", "1", "null", "yes", "{valu: true}", "[true]"}},
	{"per_connection_buffer_limit_bytes: %s", []string{`"10"`, "10.0", "1e1", `"1e1"`, `"0x10"`, "0x10", "010", `"010"`, "+10", `"+10"`, `" 10"`, "-1", `"-1"`, "4294967295", "4294967296", `"4294967295"`, "1.5", "{value: 10}", `{value: "10"}`, "{}", "[10]", "true", `""`, "NaN", "10_000", "1E2"}},
	{"ring_hash_lb_config: {minimum_ring_size: %s}", []string{"{value: 5}", "1e1", "8388609", "1.0", "18446744073709551616", `"7"`, "1e30"}},
	{"common_lb_config: {healthy_panic_threshold: %s}", []string{"{value: NaN}", `{value: "NaN"}`, "{value: .5}", "{value: 1.5}", `{value: "1.5"}`, "{value: 1e1}", "{value: inf}", "{value: Infinity}", "{value: .inf}", "{value: 101}", "{value: -0.0}", `{value: "0x1"}`, "{value: +5}", "{value: 5.}", "10", `{value: " 5"}`, `{value: ""}`, "{value: null}", "{value: {value: 5}}", "{value: 1_0}", "{value: nan}"}},
	{"common_lb_config: {update_merge_window: %s}", []string{".5s", "+1s", "1.s", "1.5s", "1.1234567891s", "1.123456789s", "-1s", "-0.5s", "0s", "1S", "1 s", "500ms", "1m", "1", "{seconds: 1}", "{seconds: 1, nanos: 5}", `{seconds: "1"}`, "{}", "{second: 1}", "315576000000s", "315576000001s", "s", "01s", "1e1s", `" 1s"`, "null", "[1s]", "{seconds: 1, nanos: -5}", "1_0s", "-.5s", "9223372036s", "{seconds: -1}"}},
	{"metadata: {filter_metadata: %s}", []string{"{x: null}", "null", "{x: {}}", "{x: {a: null}}", "{x: {a: [1, null]}}", "{x: 5}", "{x: [1]}", "[]", "{1: {a: b}}", "{true: {a: b}}", "{x: {1: b}}", "{x: {a: .nan}}", `{"": {a: b}}`}},
	{"metadata: {typed_filter_metadata: {x: {\"@type\": type.googleapis.com/google.protobuf.%s}}}", []string{"StringValue, value: hello", "StringValue, value: 5", "StringValue", "Duration, value: 5s", "Duration, value: 5", "Duration, value: .5s", "Struct, value: {a: b}", "Struct, value: 5", "Struct, a: b", "Empty", "Empty, value: {}", "UInt32Value, value: \"7\"", "Value, value: [1]", "ListValue, value: [1, {a: null}]", "BoolValue, value: maybe", "Nobody, value: 1"}},
	{"load_balancing_policy: {policies: [{typed_extension_config: {name: r, typed_config: {\"@type\": type.googleapis.com/envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin, slow_start_config: {slow_start_window: %s}}}}]}", []string{"{seconds: 5}", "5s", "5", "+5s", "null"}},
	{"circuit_breakers: {thresholds: %s}", []string{"{max_requests: 5}", "[{max_requests: 5}]", "[[{max_requests: 5}]]", "[null]", "null", "[5]", "[{maxRequests: 5}]", "[{max_requests: 5, maxRequests: 6}]", "[{priority: high}]", "[{retry_budget: {budget_percent: {value: NaN}}}]"}},
	{"upstream_bind_config: {source_address: {address: 127.0.0.1, port_value: 0, protocol: %s}}", []string{"tcp", "UDP", "sctp", "1", `"1"`}},
}

// extensionForms are ways to write an extension of a TYPE with REQUIRED fields;
// RIGHT is the one that Envoy takes.
var extensionForms = []string{
	"", "typed_config: RIGHT", "typed_config: {}", "typed_config: null", "typed_config: 5", "config: {}",
	`typed_config: {"@type": type.googleapis.com/google.protobuf.Empty}`, `typed_config: {"@type": type.googleapis.com/google.protobuf.Struct}`,
	`typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault}`,
	`typed_config: {"@type": TYPE}`, `typed_config: {"@type": /TYPE}`, `typed_config: {"@type": x/TYPEREQUIRED}`, `typed_config: {"@type": x/envoy.nobody.v3.X}`,
	`typed_config: {"@type": x/TYPE, nobody: 1REQUIRED}`,
	`typed_config: {"@type": x/xds.type.v3.TypedStruct, type_url: x/TYPE, value: {x: 1}}`,
	`typed_config: {"@type": x/udpa.type.v1.TypedStruct, type_url: x/TYPE, value: {FIELDS}}`, `typed_config: {"@type": x/udpa.type.v1.TypedStruct, type_url: TYPE, value: {FIELDS}}`,
	`typed_config: {"@type": x/xds.type.v3.TypedStruct, value: {}}`,
}

const packageOf = "envoy.extensions."

// extensionPlaces are places for extensions: around each stands what %s is not.
var extensionPlaces = []struct {
	slots          slots // one has a %s
	name, required string
	strict         string // of what Envoy's validation does not look at
}{
	{slots: slots{filters: "          - {name: c, %s}"}, name: packageOf + "filters.http.cors.v3.Cors"},
	{slots: slots{network: "      - {name: c, %s}"}, name: packageOf + "filters.network.rbac.v3.RBAC", required: ", stat_prefix: x"},
	{slots: slots{listener: "    listener_filters: [{name: c, %s}]"}, name: packageOf + "filters.listener.tls_inspector.v3.TlsInspector"},
	{slots: slots{cluster: "    transport_socket: {name: c, %s}"}, name: packageOf + "transport_sockets.tls.v3.UpstreamTlsContext"},
	{slots: slots{chain: "      transport_socket: {name: c, %s}"}, name: packageOf + "transport_sockets.raw_buffer.v3.RawBuffer"},
	{slots: slots{hcm: "          access_log: [{name: c, %s}]"}, name: packageOf + "access_loggers.stream.v3.StdoutAccessLog"},
	{slots: slots{route: ", retry_policy: {retry_on: 5xx, retry_host_predicate: [{name: c, %s}]}"}, name: packageOf + "retry.host.previous_hosts.v3.PreviousHostsPredicate"},
	{slots: slots{route: ", retry_policy: {retry_on: 5xx, retry_priority: {name: c, %s}}"}, name: packageOf + "retry.priority.previous_priorities.v3.PreviousPrioritiesConfig", required: ", update_frequency: 2"},
	{slots: slots{cluster: "    health_checks: [{timeout: 1s, interval: 1s, unhealthy_threshold: 1, healthy_threshold: 1, custom_health_check: {name: c, %s}}]"}, name: packageOf + "health_checkers.redis.v3.Redis"},
	{slots: slots{top: "stats_sinks: [{name: c, %s}]"}, name: "envoy.config.metrics.v3.HystrixSink"},
	{slots: slots{top: "overload_manager: {resource_monitors: [{name: c, %s}]}"}, name: packageOf + "resource_monitors.fixed_heap.v3.FixedHeapConfig", required: ", max_heap_size_bytes: 1000000000"},
	{slots: slots{cluster: "    load_balancing_policy: {policies: [{typed_extension_config: {name: c, %s}}]}"}, name: packageOf + "load_balancing_policies.round_robin.v3.RoundRobin"},
	{slots: slots{hcm: "          early_header_mutation_extensions: [{name: c, %s}]"}, name: packageOf + "http.early_header_mutation.header_mutation.v3.HeaderMutation", required: ", mutations: [{remove: a}]"},
	{slots: slots{hcm: "          original_ip_detection_extensions: [{name: c, %s}]"}, name: packageOf + "http.original_ip_detection.xff.v3.XffConfig"},
	{slots: slots{hcm: "          tracing: {provider: {name: c, %s}}"}, name: "envoy.config.trace.v3.OpenTelemetryConfig", required: ", grpc_service: {envoy_grpc: {cluster_name: a}}, service_name: x"},
	{slots: slots{route: ", internal_redirect_policy: {predicates: [{name: c, %s}]}"}, name: packageOf + "internal_redirect.safe_cross_scheme.v3.SafeCrossSchemeConfig"},
	{slots: slots{router: `, upstream_http_filters: [{name: c, %s}, {name: u, typed_config: {"@type": x/envoy.extensions.filters.http.upstream_codec.v3.UpstreamCodec}}]`}, name: packageOf + "filters.http.header_mutation.v3.HeaderMutation"},
	{slots: slots{filters: `          - {name: d, typed_config: {"@type": x/envoy.extensions.filters.http.compressor.v3.Compressor, compressor_library: {name: c, %s}}}`}, name: packageOf + "compression.gzip.compressor.v3.Gzip"},
	{slots: slots{cluster: "    typed_dns_resolver_config: {name: c, %s}"}, name: packageOf + "network.dns_resolver.cares.v3.CaresDnsResolverConfig", strict: "a static cluster resolves nothing"},
}

func probes() []probe {
	var all []probe
	for _, s := range scalarForms {
		for _, form := range s.forms {
			line := fmt.Sprintf(s.field, form)
			all = append(all, probe{name: line, text: slots{cluster: "    " + line}.text()})
		}
	}
	for _, p := range extensionPlaces {
		right := `{"@type": type.googleapis.com/` + p.name + p.required + "}"
		for _, form := range extensionForms {
			body := strings.NewReplacer("TYPE", p.name, "REQUIRED", p.required, "RIGHT", right, "FIELDS", strings.TrimPrefix(p.required, ", ")).Replace(form)
			s := p.slots
			for _, slot := range []*string{&s.top, &s.cluster, &s.hcm, &s.route, &s.filters, &s.listener, &s.chain, &s.network, &s.router} {
				*slot = strings.ReplaceAll(*slot, "%s", body)
			}
			all = append(all, probe{name: p.name + ": " + body, text: s.text(), strict: p.strict})
		}
	}
	return all
}

// TestAsStrictAsEnvoy holds the verdict on one bootstrap after another against
// `envoy --mode validate`, in both directions. Each run draws some; all of
// them take minutes: WEIR_LINT_ALL turns them on.
func TestAsStrictAsEnvoy(t *testing.T) {
	all := probes()
	if os.Getenv("WEIR_LINT_ALL") == "" {
		rng := rand.New(rand.NewPCG(rand.Uint64(), 0))
		rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		all = all[:40]
	}
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		differ := 0
		for _, p := range all {
			r := Check("probe.yaml", []byte(p.text), Options{Release: Release(b.Minor())}) //nolint:gosec // a minor number
			refused := slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Severity == Error })
			said := validate(t, b, p.text)
			if (said != "") != refused && !(refused && p.strict != "") {
				differ++
				t.Errorf("%s\nEnvoy: %q\nhere: %s", p.name, clip(said), r)
			}
		}
		t.Logf("%d of %d differ", differ, len(all))
	})
}

// TestExtensionTable: every place names categories that have types.
func TestExtensionTable(t *testing.T) {
	table := extensionTable()
	if len(table.places) < 50 || len(table.since) < 40 {
		t.Fatalf("%d places, %d categories", len(table.places), len(table.since))
	}
	for m, places := range table.places {
		for _, p := range places {
			for _, c := range p.categories {
				if len(table.since[c]) == 0 {
					t.Errorf("%s.%s: category %s has no types", m, p.field, c)
				}
			}
		}
	}
}
