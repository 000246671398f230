package envoytest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

// Envoy is a running Envoy.
type Envoy struct {
	*Process
	Binary Binary
	Addr   string // host:port of the first listener
	admin  *http.Client
}

// Tree is an Envoy configuration as generic JSON.
type Tree = map[string]any

// Example loads examples/envoy/NAME and points it at this test: the listener
// takes any port, admin and weir are sockets under dir, and each model cluster
// goes to the address given ("127.0.0.1:1" when not given: nobody listens).
func Example(t testing.TB, name, dir, weirSocket string, clusters map[string]string) Tree {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(Root(), "examples", "envoy", name))
	if err != nil {
		t.Fatal(err)
	}
	var tree Tree
	if err := yaml.UnmarshalStrict(raw, &tree); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	Set(tree, filepath.Join(dir, "envoy.sock"), "admin", "address", "pipe", "path")
	Set(tree, float64(0), "static_resources", "listeners", 0, "address", "socket_address", "port_value")
	for _, c := range Get(tree, "static_resources", "clusters").([]any) {
		cluster := c.(Tree)
		at := []any{"load_assignment", "endpoints", 0, "lb_endpoints", 0, "endpoint", "address"}
		if cluster["name"] == "weir" {
			Set(cluster, Tree{"pipe": Tree{"path": weirSocket}}, at...)
			continue
		}
		addr, ok := clusters[cluster["name"].(string)]
		if !ok {
			addr = "127.0.0.1:1"
		}
		host, port := split(t, addr)
		Set(cluster, Tree{"socket_address": Tree{"address": host, "port_value": port}}, at...)
	}
	return tree
}

// Start runs an Envoy on a configuration and waits until it is live.
func Start(t testing.TB, b Binary, dir string, config Tree, args ...string) *Envoy {
	t.Helper()
	raw, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "envoy.json")
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	args = append([]string{"-c", file, "--disable-hot-restart", "--concurrency", "1", "-l", "warning"}, args...)
	e := &Envoy{Binary: b, admin: UnixClient(filepath.Join(dir, "envoy.sock"))}
	e.Process = start(t, "envoy "+b.Version, exec.Command(b.Path, args...))
	Eventually(t, 20*time.Second, "envoy "+b.Version+" is live", func() bool {
		select {
		case <-e.Exited():
			t.Fatalf("envoy %s ended at start:\n%s", b.Version, e.Log())
		default:
		}
		res, err := e.admin.Get("http://envoy/ready")
		if err != nil {
			return false
		}
		res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
	e.Addr = e.listener(t)
	return e
}

// listener asks the admin interface where the first listener listens.
func (e *Envoy) listener(t testing.TB) string {
	t.Helper()
	var out struct {
		Statuses []struct {
			Local struct {
				Socket struct {
					Address string `json:"address"`
					Port    int    `json:"port_value"`
				} `json:"socket_address"`
			} `json:"local_address"`
		} `json:"listener_statuses"`
	}
	if err := getJSON(e.admin, "http://envoy/listeners?format=json", &out); err != nil {
		t.Fatal(err)
	}
	if len(out.Statuses) == 0 {
		t.Fatal("envoy has no listener")
	}
	s := out.Statuses[0].Local.Socket
	return fmt.Sprintf("%s:%d", s.Address, s.Port)
}

// Stats returns the counters and gauges whose names match the regular
// expression.
func (e *Envoy) Stats(t testing.TB, filter string) map[string]int64 {
	t.Helper()
	var out struct {
		Stats []struct {
			Name  string          `json:"name"`
			Value json.RawMessage `json:"value"`
		} `json:"stats"`
	}
	req, _ := http.NewRequest(http.MethodGet, "http://envoy/stats", http.NoBody)
	q := req.URL.Query()
	q.Set("filter", filter)
	q.Set("format", "json")
	req.URL.RawQuery = q.Encode()
	if err := getJSON(e.admin, req.URL.String(), &out); err != nil {
		t.Fatal(err)
	}
	m := map[string]int64{}
	for _, s := range out.Stats {
		var n int64
		if json.NewDecoder(bytes.NewReader(s.Value)).Decode(&n) == nil {
			m[s.Name] = n
		}
	}
	return m
}

// Get walks a tree by keys and indexes; nil when a step is missing.
func Get(node any, path ...any) any {
	for _, step := range path {
		switch s := step.(type) {
		case string:
			m, _ := node.(Tree)
			node = m[s]
		case int:
			l, _ := node.([]any)
			if s >= len(l) {
				return nil
			}
			node = l[s]
		}
	}
	return node
}

// Set puts a value into a tree at a path whose parents exist.
func Set(node any, value any, path ...any) {
	parent := Get(node, path[:len(path)-1]...)
	switch last := path[len(path)-1].(type) {
	case string:
		parent.(Tree)[last] = value
	case int:
		parent.([]any)[last] = value
	}
}

// Filter is the typed_config of an HTTP filter by name, nil when absent.
func Filter(tree Tree, name string) Tree {
	hcm := HCM(tree)
	for _, f := range hcm["http_filters"].([]any) {
		if f.(Tree)["name"] == name {
			return f.(Tree)["typed_config"].(Tree)
		}
	}
	return nil
}

// HCM is the typed_config of the first listener's connection manager.
func HCM(tree Tree) Tree {
	return Get(tree, "static_resources", "listeners", 0, "filter_chains", 0, "filters", 0, "typed_config").(Tree)
}

// Route is a route of the first virtual host by name, nil when absent.
func Route(tree Tree, name string) Tree {
	for _, r := range Get(HCM(tree), "route_config", "virtual_hosts", 0, "routes").([]any) {
		if r.(Tree)["name"] == name {
			return r.(Tree)
		}
	}
	return nil
}
