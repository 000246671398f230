package envoytest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/weirproxy/weir/examples"
)

// Envoy is a running Envoy.
type Envoy struct {
	*Process
	Binary Binary
	Addr   string // host:port of the first listener
	admin  *http.Client
}

// Tree is an Envoy configuration as generic JSON.
type Tree = examples.Tree

// Example loads examples/envoy/NAME and points it at this test: the listener
// takes any port, admin is a socket under dir, and each model cluster goes to
// the address given (nobody listens where none is given).
func Example(t testing.TB, name, dir, weirSocket string, clusters map[string]string) Tree {
	t.Helper()
	tree, err := examples.Envoy(name, examples.Place{
		Listen: "127.0.0.1:0", Admin: filepath.Join(dir, "envoy.sock"), Weir: weirSocket, Clusters: clusters,
	})
	if err != nil {
		t.Fatal(err)
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

// Dump is what /config_dump of its admin address says.
func (e *Envoy) Dump(t testing.TB) []byte {
	t.Helper()
	resp, err := e.admin.Get("http://envoy/config_dump")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return b
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
	return examples.Get(tree, "static_resources", "listeners", 0, "filter_chains", 0, "filters", 0, "typed_config").(Tree)
}

// Route is a route of the first virtual host by name, nil when absent.
func Route(tree Tree, name string) Tree {
	for _, r := range examples.Get(HCM(tree), "route_config", "virtual_hosts", 0, "routes").([]any) {
		if r.(Tree)["name"] == name {
			return r.(Tree)
		}
	}
	return nil
}
