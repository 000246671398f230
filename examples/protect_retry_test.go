package examples_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"

	"github.com/weirproxy/weir/examples"
	"github.com/weirproxy/weir/internal/envoytest"
	"github.com/weirproxy/weir/internal/modelsim"
)

// tries counts the attempts of grpc-go for a call, in the context.
type tries struct{}

func (tries) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }
func (tries) HandleRPC(ctx context.Context, s stats.RPCStats) {
	if _, begins := s.(*stats.Begin); !begins {
		return
	}
	if n, ok := ctx.Value(tries{}).(*atomic.Int32); ok {
		n.Add(1)
	}
}
func (tries) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (tries) HandleConn(context.Context, stats.ConnStats)                       {}

// hasty is what many write into their service config, and stop at nothing.
const hasty = `{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 5,
	"initialBackoff": "0.05s", "maxBackoff": "0.2s", "backoffMultiplier": 2, "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED"]}}]}`

// hastyChat is an HTTP client that tries six times, honouring what a server
// says of it as OpenAI's SDKs do.
func (s *street) hastyChat(ctx context.Context, token string, n *atomic.Int32) codes.Code {
	for try := range 6 {
		n.Add(1)
		a := s.do(s.request(ctx, http.MethodPost, chatPath, chatBody(2, false), "Authorization", "Bearer "+token))
		if a.err == nil && a.code < 429 {
			return codes.OK
		}
		wait := time.Duration(float64(50*time.Millisecond) * math.Exp2(float64(min(try, 2))) * (1 - 0.25*rand.Float64()))
		if a.err == nil {
			if a.header.Get("x-should-retry") == "false" {
				break
			}
			if ms, err := strconv.ParseFloat(a.header.Get("retry-after-ms"), 64); err == nil && ms > 0 && ms <= 60_000 {
				wait = time.Duration(ms * float64(time.Millisecond))
			} else if sec, err := strconv.ParseFloat(a.header.Get("retry-after"), 64); err == nil && sec > 0 && sec <= 60 {
				wait = time.Duration(sec * float64(time.Second))
			}
		}
		s.wait(wait)
	}
	return codes.Unavailable
}

// engines are the hosts of cluster chat: one model server that is closed and
// started again on its port.
type engines struct {
	t    *testing.T
	addr string
	stop func()
}

func newEngines(t *testing.T) *engines {
	e := &engines{t: t, addr: "127.0.0.1:0"}
	e.start()
	t.Cleanup(func() { e.stop() })
	return e
}

func (e *engines) start() {
	e.t.Helper()
	l, err := net.Listen("tcp", e.addr)
	if err != nil {
		e.t.Fatal(err)
	}
	e.addr = l.Addr().String()
	sim := modelsim.New(modelsim.Config{Speed: 100})
	done := make(chan struct{})
	go func() { defer close(done); _ = sim.Serve(l) }() // ends with Close
	e.stop = func() { _ = sim.Close(); <-done }
}

// amplified is what a pool's restart cost: attempts for each request that
// began while the pool was away.
type amplified struct {
	requests, attempts int
}

func (a amplified) each() float64 { return float64(a.attempts) / float64(max(a.requests, 1)) }
func (a amplified) String() string {
	return fmt.Sprintf("%.2f attempts for each of %d requests", a.each(), a.requests)
}

// restarted restarts all hosts of both pools under naive clients.
func (s *street) restarted(t *testing.T, chat *engines, away time.Duration) (grpcs, https amplified) {
	t.Helper()
	const tenants = 30 // of few calls each
	var tokens [tenants]string
	for i := range tokens {
		tokens[i] = s.token(claims{"tenant": fmt.Sprintf("naive-%d", i)})
	}
	conn := s.dial(grpc.WithDefaultServiceConfig(hasty), grpc.WithStatsHandler(tries{}))
	counted := make([]atomic.Int32, 4000)
	calls := s.rate(t, 60, func(ctx context.Context, i int) result {
		r := s.call(context.WithValue(ctx, tries{}, &counted[i]), conn, tokens[i%tenants])
		r.text = strconv.Itoa(int(counted[i].Load()))
		return r
	})
	chats := s.rate(t, 60, func(ctx context.Context, i int) result {
		r := result{at: time.Now()}
		var n atomic.Int32
		r.code = s.hastyChat(ctx, tokens[i%tenants], &n)
		r.text = strconv.Itoa(int(n.Load()))
		return r
	})
	s.wait(350 * time.Millisecond)
	for _, h := range append(s.near, s.far...) {
		h.stop()
	}
	chat.stop()
	gone := time.Now()
	s.wait(away)
	back := time.Now()
	for _, h := range append(s.near, s.far...) {
		h.start()
	}
	chat.start()
	s.wait(500 * time.Millisecond)
	sum := func(all []result) (a amplified) {
		for _, r := range all {
			if n, err := strconv.Atoi(r.text); err == nil && r.at.After(gone) && r.at.Before(back) {
				a.requests, a.attempts = a.requests+1, a.attempts+n
			}
		}
		return a
	}
	return sum(calls.end()), sum(chats.end())
}

// withoutWeir is the same Envoy with nobody in it: no filter asks weir, and the
// hosts are in the file.
func withoutWeir(tree envoytest.Tree, hosts map[string][]string) {
	filters(tree, without("envoy.filters.http.ext_authz"))
	filters(tree, without("envoy.filters.http.ext_proc"))
	for _, r := range examples.Get(envoytest.HCM(tree), "route_config", "virtual_hosts", 0, "routes").([]any) {
		delete(r.(envoytest.Tree), "typed_per_filter_config")
	}
	for name, addresses := range hosts {
		for _, c := range clustersOf(tree, name) {
			var list []any
			for _, addr := range addresses {
				host, port, _ := strings.Cut(addr, ":")
				n, _ := strconv.Atoi(port)
				list = append(list, envoytest.Tree{"endpoint": envoytest.Tree{"address": envoytest.Tree{"socket_address": envoytest.Tree{"address": host, "port_value": n}}}})
			}
			cluster := c.(envoytest.Tree)
			delete(cluster, "eds_cluster_config")
			cluster["type"] = "STATIC"
			cluster["load_assignment"] = envoytest.Tree{"cluster_name": name, "endpoints": []any{envoytest.Tree{"lb_endpoints": list}}}
		}
	}
}

// TestProtectRetries (B9): a pool restarts under clients that try again and
// again. Without weir each request costs three attempts and more; with it, at
// most 1.3.
func TestProtectRetries(t *testing.T) {
	const away = 2 * time.Second
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		chat := newEngines(t)
		bare := newStreet(t, b, streetSetup{work: 10 * time.Millisecond, chat: map[string][]string{"a": {chat.addr}, "b": {"127.0.0.1:2"}}, bare: true})
		grpcs, https := bare.restarted(t, chat, away)
		t.Logf("without weir: gRPC %v, HTTP %v", grpcs, https)
		if grpcs.each() < 3 || https.each() < 3 || grpcs.requests < 50 || https.requests < 50 {
			t.Errorf("without weir a request costs %v (gRPC) and %v (HTTP), want 3 and more: nothing is shown", grpcs, https)
		}
		guarded := newStreet(t, b, streetSetup{work: 10 * time.Millisecond, chat: map[string][]string{"a": {chat.addr}, "b": {"127.0.0.1:2"}}})
		grpcs, https = guarded.restarted(t, chat, away)
		t.Logf("with weir: gRPC %v, HTTP %v", grpcs, https)
		if grpcs.each() > 1.3 || https.each() > 1.3 || grpcs.requests < 50 || https.requests < 50 {
			t.Errorf("with weir a request costs %v (gRPC) and %v (HTTP), want 1.3 at most", grpcs, https)
		}
		if t.Failed() {
			guarded.told(0)
		}
	})
}

// restless is the stock OpenAI client under a pool that is away: a number of
// calls at nearly one time, each of which may be tried four times.
const restless = `
import sys, time, threading, openai
base, token, n = sys.argv[1], sys.argv[2], int(sys.argv[3])
c = openai.OpenAI(base_url=base, api_key=token, max_retries=3, timeout=30)
def one():
    try: c.chat.completions.create(model="deepseek-v4", max_tokens=2, messages=[{"role": "user", "content": "hello"}])
    except openai.APIStatusError: pass
threads = [threading.Thread(target=one) for _ in range(n)]
for t in threads: t.start(); time.sleep(0.01)
for t in threads: t.join()
`

// TestProtectStockRetries (B9): the stock OpenAI client for Python, under a
// pool that is away.
func TestProtectStockRetries(t *testing.T) {
	const calls = 60
	b := newest(t)
	run := func(s *street) float64 {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "python3", "-", "http://"+s.envoy.Addr+"/v1", s.token(nil), strconv.Itoa(calls))
		cmd.Stdin = strings.NewReader(restless)
		cmd.Env = append(os.Environ(), "PYTHONPATH="+openAI(t))
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			t.Fatalf("%v\n%s", err, out)
		}
		return float64(s.stat("http.edge.downstream_rq_total")) / calls
	}
	nobody := map[string][]string{"a": {"127.0.0.1:1"}, "b": {"127.0.0.1:2"}}
	bare := run(newStreet(t, b, streetSetup{chat: nobody, bare: true}))
	guarded := run(newStreet(t, b, streetSetup{chat: nobody}))
	t.Logf("attempts for each request: %.2f without weir, %.2f with it", bare, guarded)
	if bare < 3 || guarded > 1.3 {
		t.Errorf("a request costs %.2f attempts without weir and %.2f with it, want 3 and more, and 1.3 at most", bare, guarded)
	}
}
