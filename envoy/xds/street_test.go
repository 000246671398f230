package xds

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/weirproxy/weir/internal/envoytest"
)

type tree = envoytest.Tree

// street is a real Envoy with a control plane that a test can kill.
type street struct {
	t      *testing.T
	dir    string
	o      Options
	server *Server
	stop   func()
	envoy  *envoytest.Envoy
	admin  *http.Client
	client *http.Client
}

// source is how Envoy asks for a type: "ads", or a stream of its own.
func source(api string) tree {
	if api == "ads" {
		return tree{"resource_api_version": "V3", "initial_fetch_timeout": "10s", "ads": tree{}}
	}
	return tree{"resource_api_version": "V3", "initial_fetch_timeout": "2s", "api_config_source": apiSource(api)}
}

func apiSource(api string) tree {
	return tree{"api_type": api, "transport_api_version": "V3", "grpc_services": []any{tree{"envoy_grpc": tree{
		"cluster_name": "weir", "retry_policy": tree{"retry_back_off": tree{"base_interval": "0.2s", "max_interval": "1s"}}}}}}
}

// part is a route to those hosts of cluster m that have a variant.
func part(variant string) tree {
	return tree{
		"match": tree{"prefix": "/" + variant},
		"route": tree{"cluster": "m", "metadata_match": tree{"filter_metadata": tree{"envoy.lb": tree{"variant": variant}}}},
	}
}

// bootstrap is an Envoy that routes everything to cluster m, and /VARIANT to a
// part of it.
func bootstrap(dir, weir, id, api string) tree {
	own := api
	static := []any{tree{
		"name": "weir", "type": "STATIC", "connect_timeout": "0.25s",
		"typed_extension_protocol_options": tree{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": tree{
			"@type":                "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
			"explicit_http_config": tree{"http2_protocol_options": tree{}},
		}},
		"load_assignment": tree{"cluster_name": "weir", "endpoints": []any{tree{"lb_endpoints": []any{tree{"endpoint": tree{"address": tree{"pipe": tree{"path": filepath.Join(weir, "weir.sock")}}}}}}}},
	}}
	out := tree{}
	if ads, is := strings.CutPrefix(api, "ads "); is {
		own = "ads"
		out["dynamic_resources"] = tree{"ads_config": apiSource(ads), "cds_config": source("ads")}
	} else {
		static = append(static, tree{
			"name": "m", "type": "EDS", "connect_timeout": "1s", "eds_cluster_config": tree{"eds_config": source(api)},
			"common_lb_config": tree{"update_merge_window": "0s"},
		})
	}
	route := tree{"route_config": tree{"virtual_hosts": []any{tree{"name": "v", "domains": []any{"*"}, "routes": []any{
		part("fp16"), part("int8"), part("fp8"),
		tree{"match": tree{"prefix": "/"}, "route": tree{"cluster": "m"}},
	}}}, "validate_clusters": false}}
	hcm := tree{
		"@type":       "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
		"stat_prefix": "edge", "route_config": route["route_config"],
		"http_filters": []any{tree{"name": "router", "typed_config": tree{"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}},
	}
	out["node"] = tree{"id": id, "cluster": "edge"}
	out["admin"] = tree{"address": tree{"pipe": tree{"path": filepath.Join(dir, "envoy.sock")}}}
	out["layered_runtime"] = tree{"layers": []any{tree{"name": "weir", "rtds_layer": tree{"name": "weir", "rtds_config": source(own)}}}}
	out["static_resources"] = tree{"clusters": static, "listeners": []any{tree{
		"name": "edge", "address": tree{"socket_address": tree{"address": "127.0.0.1", "port_value": 0}},
		"filter_chains": []any{tree{"filters": []any{tree{"name": "hcm", "typed_config": hcm}}}},
	}}}
	return out
}

// newStreet starts a control plane with first content and an Envoy on it.
func newStreet(t *testing.T, b envoytest.Binary, api string, o Options, first *Snapshot) *street {
	t.Helper()
	dir := envoytest.Dir(t)
	w := &street{t: t, dir: dir, o: o, admin: envoytest.UnixClient(filepath.Join(dir, "envoy.sock")), client: &http.Client{Timeout: 5 * time.Second}}
	w.o.Dir = dir
	t.Cleanup(func() { w.client.CloseIdleConnections(); w.admin.CloseIdleConnections(); w.stop() })
	w.up()
	put(t, w.server, first)
	w.envoy = envoytest.Start(t, b, dir, bootstrap(dir, dir, "edge-"+b.Version, api))
	return w
}

// up starts the control plane, in the place of one that is down.
func (w *street) up() {
	w.t.Helper()
	l, err := net.Listen("unix", filepath.Join(w.dir, "weir.sock"))
	if err != nil {
		w.t.Fatal(err)
	}
	w.server = New(time.Now(), w.o)
	g := grpc.NewServer()
	w.server.Register(g)
	done := make(chan struct{})
	go func() { defer close(done); _ = g.Serve(l) }()
	w.stop = func() { g.Stop(); w.server.Close(); <-done }
}

// down kills the control plane as a crash does: what is on disk is what was
// there before.
func (w *street) down() { w.server.save(time.Now()); w.stop() }

// runtime reads an override from Envoy; "" = it has none.
func (w *street) runtime(key string) string {
	var out struct {
		Entries map[string]struct {
			Final string `json:"final_value"`
		} `json:"entries"`
	}
	w.get("http://envoy/runtime", &out)
	return out.Entries[key].Final
}

func (w *street) get(url string, into any) {
	w.t.Helper()
	res, err := w.admin.Get(url)
	if err != nil {
		w.t.Fatal(err)
	}
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(into); err != nil {
		w.t.Fatal(err)
	}
}

// call is one request through Envoy: its status, and its body.
func (w *street) call() (int, string) { return w.part("") }

// part is a request for hosts of a variant; "" = of any.
func (w *street) part(variant string) (int, string) {
	w.t.Helper()
	res, err := w.client.Get("http://" + w.envoy.Addr + "/" + variant)
	if err != nil {
		w.t.Fatal(err)
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(body)
}

func (w *street) want(code int, body string) {
	w.t.Helper()
	if c, b := w.call(); c != code || !strings.Contains(b, body) {
		w.t.Errorf("%d %q, want %d %q", c, b, code, body)
	}
}

// within polls and reports how long it took.
func (w *street) within(limit time.Duration, what string, ok func() bool) {
	w.t.Helper()
	start := time.Now()
	envoytest.Eventually(w.t, limit, what, ok)
	w.t.Logf("%s: %v", what, time.Since(start).Round(time.Millisecond))
}

// wire is what must not change when weir comes and goes.
func (w *street) wire() string {
	s := w.envoy.Stats(w.t, `^cluster\.m\.(upstream_cx_(total|destroy)|membership_total)$`)
	return fmt.Sprint(s["cluster.m.upstream_cx_total"], " opened, ", s["cluster.m.upstream_cx_destroy"], " closed, ", s["cluster.m.membership_total"], " hosts")
}

// upstream is a host that answers with its name.
func upstream(t *testing.T, name string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, name) }))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}
