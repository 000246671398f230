package examples_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/weirproxy/weir/examples"
	"github.com/weirproxy/weir/internal/envoytest"
	"github.com/weirproxy/weir/internal/modelsim"
)

// street is the protected example: one weir, one Envoy, and three gRPC hosts
// in region a with one in region b behind cluster infer.
type street struct {
	*world
	near []*host // region a
	far  []*host // region b
	hand *http.Client
}

// streetSetup is what differs from the example.
type streetSetup struct {
	dir     string
	work    time.Duration             // of a call at a host
	policy  func(tree envoytest.Tree) // changes the policy
	envoy   func(tree envoytest.Tree) // changes Envoy's file
	chat    map[string][]string       // addresses of cluster chat by region; default nobody
	node    string                    // of Envoy; default the example's
	weir    *street                   // shares that one's weir and hosts
	bare    bool                      // nobody is asked: the same Envoy without weir
	started func(s *street)           // the hosts run, weir not yet
	far     int                       // hosts of region b; default 1
}

// newStreet starts it; the test ends it.
func newStreet(t *testing.T, b envoytest.Binary, o streetSetup) *street {
	t.Helper()
	if o.dir == "" {
		o.dir = envoytest.Dir(t)
	}
	s := &street{world: &world{t: t, dir: o.dir, sims: map[string]*modelsim.Sim{}, addrs: map[string]string{}}}
	if o.weir == nil {
		for i := range 3 {
			s.near = append(s.near, newHost(t, fmt.Sprintf("a%d", i+1), o.work))
		}
		for i := range max(o.far, 1) {
			s.far = append(s.far, newHost(t, fmt.Sprintf("b%d", i+1), o.work))
		}
		if o.started != nil {
			o.started(s)
		}
		s.weir = envoytest.Serve(t, s.dir, s.policy(setup{policy: protectedPolicy(s, o)}))
	} else {
		s.near, s.far, s.weir, s.signer = o.weir.near, o.weir.far, o.weir.weir, o.weir.signer
	}
	tree := envoytest.Example(t, "protected.yaml", s.dir, s.weir.Socket, nil)
	protectedEnvoy(tree, b)
	if o.node != "" {
		examples.Set(tree, o.node, "node", "id")
	}
	if o.envoy != nil {
		o.envoy(tree)
	}
	if o.bare {
		withoutWeir(tree, map[string][]string{"chat": o.chat["a"], "infer": append(addresses(s.near), addresses(s.far)...)})
	}
	s.envoy = envoytest.Start(t, b, s.dir, tree)
	s.hand = envoytest.UnixClient(filepath.Join(s.dir, "envoy.sock"))
	s.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1000}, Timeout: 60 * time.Second}
	t.Cleanup(s.client.CloseIdleConnections)
	envoytest.Eventually(t, 10*time.Second, "Envoy has the endpoints and finds them well", func() bool {
		return s.stat("cluster.infer.membership_healthy") == int64(len(s.near)+len(s.far))
	})
	return s
}

// protectedEnvoy widens the timeouts that run while a busy machine does other
// things. On 1.36 it takes the file's advice for local replies.
func protectedEnvoy(tree envoytest.Tree, b envoytest.Binary) {
	filter := envoytest.Filter(tree, "envoy.filters.http.ext_proc")
	filter["message_timeout"], filter["max_message_timeout"] = "30s", "60s"
	examples.Set(envoytest.Filter(tree, "envoy.filters.http.ext_authz"), "30s", "grpc_service", "timeout")
	delete(envoytest.HCM(tree), "access_log") // a line for each of thousands of calls
	for _, c := range clustersOf(tree, "infer", "chat") {
		examples.Set(c, "1s", "health_checks", 0, "no_traffic_interval") // it also delays the second check of a fresh Envoy
	}
	if b.Minor() == 36 {
		examples.Set(tree, false, "layered_runtime", "layers", 0, "static_layer", "envoy.reloadable_features.skip_ext_proc_on_local_reply")
	}
}

// protectedPolicy is the example's policy at this place, without version and
// server.
func protectedPolicy(s *street, o streetSetup) string {
	s.t.Helper()
	raw, err := examples.Files.ReadFile("policies/protected.yaml")
	if err != nil {
		s.t.Fatal(err)
	}
	text := strings.ReplaceAll(string(raw), "/inference.GRPCInferenceService/", "/"+modelsim.ServiceName+"/")
	var tree envoytest.Tree
	if err := yaml.UnmarshalStrict([]byte(text), &tree); err != nil {
		s.t.Fatal(err)
	}
	delete(tree, "version")
	delete(tree, "server")
	examples.Set(tree, filepath.Join(s.dir, "jwks.json"), "identity", "issuers", 0, "jwks", "file")
	state := filepath.Join(s.dir, "state")
	if err := os.Mkdir(state, 0o700); err != nil {
		s.t.Fatal(err)
	}
	examples.Set(tree, state, "envoy", "xds", "state")
	examples.Set(tree, "30s", "envoy", "messageTimeout")
	examples.Set(tree, "60s", "envoy", "maxMessageTimeout")
	regions := func(cluster int, a, b []string) {
		examples.Set(tree, []any{envoytest.Tree{"region": "a", "static": a}, envoytest.Tree{"region": "b", "static": b}},
			"envoy", "clusters", cluster, "endpoints", "priorities")
	}
	if o.chat == nil {
		o.chat = map[string][]string{"a": {"127.0.0.1:1"}, "b": {"127.0.0.1:2"}}
	}
	regions(0, o.chat["a"], o.chat["b"])
	regions(1, addresses(s.near), addresses(s.far))
	if o.policy != nil {
		o.policy(tree)
	}
	out, err := yaml.Marshal(tree)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(out)
}

func addresses(hosts []*host) (out []string) {
	for _, h := range hosts {
		out = append(out, h.addr)
	}
	return out
}

// ask reads a page of Envoy's admin address.
func (s *street) ask(path string) string {
	s.t.Helper()
	res, err := s.hand.Get("http://envoy" + path)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		s.t.Fatalf("%s: %s %v", path, res.Status, err)
	}
	return string(body)
}

// stat is one counter or gauge of Envoy; 0 where it was never touched.
func (s *street) stat(name string) int64 {
	s.t.Helper()
	return s.envoy.Stats(s.t, "^"+strings.ReplaceAll(name, ".", `\.`)+"$")[name]
}

// overrides are the keys that weir's layer has in Envoy, with their values.
func (s *street) overrides() map[string]string {
	s.t.Helper()
	var page struct {
		Layers  []string
		Entries map[string]struct {
			LayerValues []string `json:"layer_values"`
		}
	}
	if err := json.Unmarshal([]byte(s.ask("/runtime")), &page); err != nil {
		s.t.Fatal(err)
	}
	at := slices.Index(page.Layers, "weir")
	out := map[string]string{}
	for key, e := range page.Entries {
		if at >= 0 && at < len(e.LayerValues) && e.LayerValues[at] != "" {
			out[key] = e.LayerValues[at]
		}
	}
	return out
}

// retriesStopped reports whether all three numbers of retries are 0 in Envoy.
func (s *street) retriesStopped(cluster string) bool {
	s.t.Helper()
	o, key := s.overrides(), "circuit_breakers."+cluster+".default."
	return o[key+"retry_budget.budget_percent"] == "0" && o[key+"retry_budget.min_retry_concurrency"] == "0" && o[key+"max_retries"] == "0"
}

// flags are the health flags of an endpoint in Envoy's /clusters.
func (s *street) flags(cluster, address string) string {
	s.t.Helper()
	for line := range strings.Lines(s.ask("/clusters")) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), cluster+"::"+address+"::health_flags::"); ok {
			return rest
		}
	}
	return ""
}

// happened is an entry of weir's timeline.
type happened struct {
	Seq                                                            uint64
	At                                                             time.Time
	What, Breaker, Kind, Cluster, Node, Key, From, To, Because, By string
}

// timeline are weir's entries since a number.
func (s *street) timeline(since uint64) []happened {
	s.t.Helper()
	var page struct{ Entries []happened }
	s.adminJSON("/debug/timeline?since="+strconv.FormatUint(since, 10), &page)
	return page.Entries
}

// last is the number of the newest entry.
func (s *street) last() uint64 {
	s.t.Helper()
	var page struct{ Last uint64 }
	s.adminJSON("/debug/timeline", &page)
	return page.Last
}

// entry is the first of those since a number that fits.
func (s *street) entry(since uint64, ok func(e *happened) bool) (happened, bool) {
	s.t.Helper()
	all := s.timeline(since)
	if i := slices.IndexFunc(all, func(e happened) bool { return ok(&e) }); i >= 0 {
		return all[i], true
	}
	return happened{}, false
}

// transition looks for one of a breaker.
func transition(breaker, to string) func(e *happened) bool {
	return func(e *happened) bool { return e.What == "transition" && e.Breaker == breaker && e.To == to }
}

// push looks for a number that a cluster was told.
func push(cluster, key string) func(e *happened) bool {
	return func(e *happened) bool {
		return e.What == "push" && e.Cluster == cluster && strings.HasSuffix(e.Key, key)
	}
}

// breaker is the state of a pool's breaker.
func (s *street) breaker(pool string) string {
	s.t.Helper()
	for _, p := range s.queue().Pools {
		if p.Name == pool {
			return p.Breaker
		}
	}
	return ""
}

// act trips, resets or holds a breaker by the admin address.
func (s *street) act(name, body string) {
	s.t.Helper()
	res, err := s.weir.Admin.Post("http://weir/debug/breakers/"+name, "application/json", strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	if text, _ := io.ReadAll(res.Body); res.StatusCode != http.StatusOK {
		s.t.Fatalf("%s: %s %s", name, res.Status, text)
	}
}

// told logs the timeline, for who reads a failure.
func (s *street) told(since uint64) {
	for _, e := range s.timeline(since) {
		s.t.Logf("%s %s %s%s %s %s>%s %s", e.At.Format("05.000"), e.What, e.Breaker, e.Cluster, e.Key, e.From, e.To, e.Because)
	}
}
