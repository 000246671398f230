package examples_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/authz"
	"github.com/weirproxy/weir/examples"
	"github.com/weirproxy/weir/internal/envoytest"
	"github.com/weirproxy/weir/internal/modelsim"
)

// world is one Envoy, one weir and the pools of one test.
type world struct {
	t      *testing.T
	dir    string
	envoy  *envoytest.Envoy
	weir   *envoytest.Sidecar
	sims   map[string]*modelsim.Sim // by pool
	addrs  map[string]string        // of the pools
	signer *authz.Signer
	client *http.Client
}

// setup says what a world is made of; the zero value is the two-filters
// example with pools that answer at once and no limits.
type setup struct {
	example string                            // default two-filters.yaml
	policy  string                            // YAML below server, identity, models; "" = pools with 8 seats each
	sim     modelsim.Config                   // of every pool
	simOf   func(pool string) modelsim.Config // instead of sim
	envoy   func(tree envoytest.Tree)         // changes the example
	from    string                            // identity.from; default fits the example
	args    []string                          // of Envoy
	pools   []string                          // that run; default all four
	env     []string                          // of weir
	dir     string                            // default a new one
	server  string                            // the server section; default sockets in dir
}

var poolNames = []string{"chat-fp16", "chat-dyn", "chat-int8", "infer"}

const defaultPools = `
pools:
  - {name: chat-fp16, variant: fp16, seats: {requests: 8}}
  - {name: chat-dyn, variant: fp16-dyn, seats: {requests: 8}}
  - {name: chat-int8, variant: int8, seats: {requests: 8}}
  - {name: infer, variant: fp16, seats: {requests: 8}}
models:
  - {name: deepseek-v4, aliases: ["deepseek-*"], pools: [chat-fp16, chat-dyn, chat-int8]}
  - {name: infer, pools: [infer]}
`

// newWorld starts everything; the test ends it.
func newWorld(t *testing.T, b envoytest.Binary, s setup) *world {
	t.Helper()
	if s.dir == "" {
		s.dir = envoytest.Dir(t)
	}
	w := &world{t: t, dir: s.dir, sims: map[string]*modelsim.Sim{}, addrs: map[string]string{}}
	if s.example == "" {
		s.example = "two-filters.yaml"
	}
	if s.from == "" {
		s.from = map[string]string{"two-filters.yaml": "authz", "one-filter.yaml": "extproc"}[s.example]
	}
	if s.pools == nil {
		s.pools = poolNames
	}
	for _, name := range s.pools {
		config := s.sim
		if s.simOf != nil {
			config = s.simOf(name)
		}
		w.startPool(name, config)
	}
	w.weir = envoytest.Serve(t, w.dir, w.policy(s), s.env...)
	tree := envoytest.Example(t, s.example, w.dir, w.weir.Socket, w.addrs)
	if authz := envoytest.Filter(tree, "envoy.filters.http.ext_authz"); authz != nil {
		// A machine that tests run on has other things to do for half a second.
		examples.Set(authz, "5s", "grpc_service", "timeout")
	}
	if s.envoy != nil {
		s.envoy(tree)
	}
	w.envoy = envoytest.Start(t, b, w.dir, tree, s.args...)
	w.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1000}, Timeout: 60 * time.Second}
	t.Cleanup(w.client.CloseIdleConnections)
	return w
}

func (w *world) startPool(name string, config modelsim.Config) {
	w.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	sim := modelsim.New(config)
	done := make(chan struct{})
	go func() { defer close(done); _ = sim.Serve(l) }() // ends with Close
	w.sims[name], w.addrs[name] = sim, l.Addr().String()
	w.t.Cleanup(func() { _ = sim.Close(); <-done })
}

// policy is the world's weir.yaml, with keys made for it.
func (w *world) policy(s setup) string {
	w.t.Helper()
	private, public, err := authz.GenerateKey("EdDSA", "")
	if err != nil {
		w.t.Fatal(err)
	}
	if w.signer, err = authz.NewSigner(private, ""); err != nil {
		w.t.Fatal(err)
	}
	jwks := filepath.Join(w.dir, "jwks.json")
	if err := os.WriteFile(jwks, public, 0o600); err != nil {
		w.t.Fatal(err)
	}
	rest := s.policy
	for name, addr := range w.addrs { // what a policy calls a pool's engine
		rest = strings.ReplaceAll(rest, "http://"+name+":8000/", "http://"+addr+"/")
	}
	if !strings.Contains(rest, "pools:") {
		rest += defaultPools
	}
	if !strings.Contains(rest, "identity:") {
		rest += fmt.Sprintf("identity: {from: %s, issuers: [{issuer: %q, audiences: [llm], jwks: {file: %q}}]}\n", s.from, issuer, jwks)
	}
	if s.server == "" {
		s.server = envoytest.Server(w.dir)
	}
	return "version: 1\n" + s.server + rest
}

const issuer = "https://id.example"

// claims are a token's; "" and nil leave a claim out.
type claims map[string]any

// token signs a token that lives for an hour and covers everything.
func (w *world) token(c claims) string {
	w.t.Helper()
	now := time.Now()
	all := claims{"iss": issuer, "aud": "llm", "sub": "user-1", "jti": rand.Text(), "iat": now.Unix(), "exp": now.Add(time.Hour).Unix(),
		"tenant": "acme", "class": "standard", "scope": "llm_service chat_completion completion embedding infer"}
	for k, v := range c {
		all[k] = v
		if v == nil {
			delete(all, k)
		}
	}
	token, err := w.signer.Sign(all)
	if err != nil {
		w.t.Fatal(err)
	}
	return token
}

// answer is a whole HTTP answer.
type answer struct {
	code   int
	header http.Header
	body   string
	took   time.Duration
	err    error // of the transport, or of an answer that was cut
}

// code is the error code in an OpenAI-shaped error body.
func (a answer) errorCode() string {
	var e struct {
		Error struct{ Type, Message, Code string }
	}
	_ = json.Unmarshal([]byte(a.body), &e)
	return e.Error.Code
}

// done reports whether an SSE answer came to its end.
func (a answer) done() bool { return a.err == nil && strings.Contains(a.body, "data: [DONE]") }

// request makes a request to Envoy. headers are name, value pairs.
func (w *world) request(ctx context.Context, method, path, body string, headers ...string) *http.Request {
	w.t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+w.envoy.Addr+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	if body == "" {
		req.Body, req.ContentLength = http.NoBody, 0
	} else {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	return req
}

// do sends a request and reads the whole answer.
func (w *world) do(req *http.Request) answer {
	start := time.Now()
	res, err := w.client.Do(req)
	if err != nil {
		return answer{err: err, took: time.Since(start)}
	}
	defer res.Body.Close()
	var b bytes.Buffer
	_, err = io.Copy(&b, res.Body)
	return answer{res.StatusCode, res.Header, b.String(), time.Since(start), err}
}

// chat is a chat completion of n output tokens.
func (w *world) chat(token string, n int, stream bool, headers ...string) answer {
	w.t.Helper()
	return w.do(w.request(w.t.Context(), http.MethodPost, "/v1/chat/completions", chatBody(n, stream), append(headers, "Authorization", "Bearer "+token)...))
}

func chatBody(n int, stream bool) string {
	return fmt.Sprintf(`{"model":"deepseek-v4","max_tokens":%d,"stream":%v,"messages":[{"role":"user","content":"What is a weir good for?"}]}`, n, stream)
}

// queue is /debug/queue.
type queue struct {
	Waiting, Running int
	Pools            []struct {
		Name      string
		Waiting   map[string]int
		Running   map[string]int
		Retrying  int
		SeatsUsed struct{ Requests, Tokens int64 } `json:"seats_used"`
		Breaker   string
	}
}

func (w *world) queue() (q queue) {
	w.t.Helper()
	w.adminJSON("/debug/queue", &q)
	return q
}

// idle waits until no seat is taken and nobody waits.
func (w *world) idle(limit time.Duration) {
	w.t.Helper()
	envoytest.Eventually(w.t, limit, "every seat is free again", func() bool {
		q := w.queue()
		used := int64(0)
		for _, p := range q.Pools {
			used += p.SeatsUsed.Requests
		}
		return q.Waiting == 0 && q.Running == 0 && used == 0
	})
}

// used is what a tenant's counters hold, by unit.
func (w *world) used(tenant string) map[string]int64 {
	w.t.Helper()
	var out struct {
		Counters []struct {
			Unit string
			Used int64
		}
	}
	w.adminJSON("/debug/quotas?tenant="+tenant, &out)
	used := map[string]int64{}
	for _, c := range out.Counters {
		used[c.Unit] += c.Used
	}
	return used
}

func (w *world) adminJSON(path string, into any) {
	w.t.Helper()
	body := w.admin(path)
	if err := json.Unmarshal([]byte(body), into); err != nil {
		w.t.Fatalf("%s: %v in %s", path, err, body)
	}
}

func (w *world) admin(path string) string {
	w.t.Helper()
	res, err := w.weir.Admin.Get("http://weir" + path)
	if err != nil {
		w.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		w.t.Fatalf("%s: %s: %v %s", path, res.Status, err, body)
	}
	return string(body)
}

// metric is the sum of a metric's samples whose labels contain all of with
// (`reason="admitted"`).
func (w *world) metric(name string, with ...string) float64 {
	w.t.Helper()
	sum := 0.
	for line := range strings.Lines(w.admin("/metrics")) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || (rest[0] != '{' && rest[0] != ' ') {
			continue
		}
		all := true
		for _, l := range with {
			all = all && strings.Contains(rest, l)
		}
		var v float64
		if _, err := fmt.Sscan(rest[strings.LastIndex(rest, " ")+1:], &v); err == nil && all {
			sum += v
		}
	}
	return sum
}
