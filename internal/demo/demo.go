// Package demo shows weir's main job on one machine in under a minute: a real
// Envoy, a real weir and a simulated model pool on loopback, three tenants of
// three classes, steady load and one burst of four times the capacity.
//
// It starts everything itself, ends everything it started, by pid, and leaves
// nothing behind. Loops are bounded by the phases' lengths.
package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/weirproxy/weir/examples"
	"github.com/weirproxy/weir/internal/modelsim"
)

// Options of a demo.
type Options struct {
	Envoy string // path of an Envoy 1.36 or newer
	Weir  string // path of the weir binary
	Mint  func(g Group) (token string, err error)
	Keys  func(dir string) (jwks string, err error) // writes the public keys into dir
	Out   io.Writer
	Live  bool // redraw a table; else plain lines
	Hold  bool // keep everything up after the summary, until ctx ends
	Short bool // a few seconds instead of half a minute (tests)
}

// Group is one tenant with its class and its share of the load.
type Group struct {
	Tenant, Class, Tier string
	share               float64 // of the offered load
}

// Groups are the three tenants of the demo. In the burst the critical one stays
// within its part of the pools; the other two ask for four times what there is.
func Groups() []Group {
	return []Group{
		{"acme-trading", "critical", "gold", 0.03},
		{"globex-rag", "standard", "silver", 0.37},
		{"initech-batch", "batch", "bronze", 0.6},
	}
}

// Seats and speed of the two pools; an answer has outputTokens tokens.
const (
	fp16Seats    = 12
	int8Seats    = 12
	outputTokens = 40
	promptWords  = 40
)

// Run shows the demo. It returns an error when a part does not start or when
// what it shows is not what weir promises.
func Run(ctx context.Context, o Options) error {
	dir, err := os.MkdirTemp("", "weir-demo")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // best effort: the system clears its temporary folder
	s := &stage{o: o, dir: dir}
	defer s.strike()
	if err := s.build(ctx); err != nil {
		return err
	}
	show := newShow(s)
	if err := show.play(ctx); err != nil {
		return err
	}
	if o.Hold && ctx.Err() == nil {
		s.hold(ctx)
	}
	return nil
}

// stage is everything that runs beside the show.
type stage struct {
	o      Options
	dir    string
	fp16   *modelsim.Sim
	int8   *modelsim.Sim
	procs  []*exec.Cmd // in order of start
	tokens []string    // by group
	addr   string      // Envoy's listener
	admin  *http.Client
}

func (s *stage) say(format string, args ...any) { fmt.Fprintf(s.o.Out, format+"\n", args...) }

// build puts up pools, keys, weir and Envoy.
func (s *stage) build(ctx context.Context) error {
	s.say("weir demo: Envoy, weir and two simulated model pools on loopback")
	var addrs [2]string
	for i, p := range []struct {
		sim     **modelsim.Sim
		variant string
	}{{&s.fp16, "fp16"}, {&s.int8, "int8"}} {
		*p.sim = modelsim.New(modelsim.Config{Models: []string{"deepseek-v4"}, Variant: p.variant, Seed: uint64(i + 1), Output: outputTokens})
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		addrs[i] = l.Addr().String()
		sim := *p.sim
		go func() { _ = sim.Serve(l) }() // ends with Close, which waits for it
	}
	s.say("  model pools   chat-fp16 at %s (%d seats), chat-int8 at %s (%d seats)", addrs[0], fp16Seats, addrs[1], int8Seats)
	jwks, err := s.o.Keys(s.dir)
	if err != nil {
		return err
	}
	for _, g := range Groups() {
		token, err := s.o.Mint(g)
		if err != nil {
			return err
		}
		s.tokens = append(s.tokens, token)
	}
	policyFile := filepath.Join(s.dir, "weir.yaml")
	if err := os.WriteFile(policyFile, []byte(s.policy(jwks, addrs)), 0o600); err != nil {
		return err
	}
	if err := s.startWeir(ctx, policyFile); err != nil {
		return err
	}
	return s.startEnvoy(ctx, addrs)
}

// policy is the demo's weir.yaml.
func (s *stage) policy(jwks string, addrs [2]string) string {
	return fmt.Sprintf(`version: 1
server: {grpc: "unix:%[1]s/weir.sock", admin: "unix:%[1]s/admin.sock", drain: 2s}
identity:
  from: authz
  issuers: [{issuer: "https://demo.weir.example", audiences: [llm], jwks: {file: %[2]q}}]
models:
  - {name: deepseek-v4, aliases: ["deepseek-*"], pools: [chat-fp16, chat-int8]}
pools:
  - name: chat-fp16
    variant: fp16
    seats: {requests: %[3]d, tokens: 400000}
    telemetry: [{kind: vllm, url: "http://%[5]s/metrics", every: 1s}]
  - name: chat-int8
    variant: int8
    seats: {requests: %[4]d, tokens: 800000}
    telemetry: [{kind: vllm, url: "http://%[6]s/metrics", every: 1s}]
tiers: [{name: gold, weight: 2, share: 60%%}, {name: silver, share: 20%%}, {name: bronze, share: 20%%}]
quotas:
  - {name: per-tenant, match: {tenant: "*"}, by: [tenant], limits: [{requests: 100000, per: 1m}, {tokens: 50000000, per: 5m}]}
`, s.dir, jwks, fp16Seats, int8Seats, addrs[0], addrs[1])
}

func (s *stage) startWeir(ctx context.Context, policyFile string) error {
	if err := s.start("weir", exec.Command(s.o.Weir, "serve", "--config", policyFile)); err != nil {
		return err
	}
	s.admin = unixClient(filepath.Join(s.dir, "admin.sock"))
	if err := s.await(ctx, "weir", s.admin, "http://weir/readyz"); err != nil {
		return err
	}
	s.say("  weir          ready (identity by ext_authz, admission by ext_proc, quotas in memory)")
	return nil
}

func (s *stage) startEnvoy(ctx context.Context, addrs [2]string) error {
	tree, err := examples.Envoy("two-filters.yaml", examples.Place{
		Listen: "127.0.0.1:0", Admin: filepath.Join(s.dir, "envoy.sock"), Weir: filepath.Join(s.dir, "weir.sock"),
		Clusters: map[string]string{"chat-fp16": addrs[0], "chat-int8": addrs[1]},
	})
	if err != nil {
		return err
	}
	raw, err := json.Marshal(tree)
	if err != nil {
		return err
	}
	file := filepath.Join(s.dir, "envoy.json")
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		return err
	}
	cmd := exec.Command(s.o.Envoy, "-c", file, "--disable-hot-restart", "--concurrency", "1", "-l", "error")
	if err := s.start("envoy", cmd); err != nil {
		return err
	}
	client := unixClient(filepath.Join(s.dir, "envoy.sock"))
	if err := s.await(ctx, "envoy", client, "http://envoy/ready"); err != nil {
		return err
	}
	if s.addr, err = listenerAddress(ctx, client); err != nil {
		return err
	}
	s.say("  Envoy         examples/envoy/two-filters.yaml at http://%s\n", s.addr)
	return nil
}

// start runs a child with its output in a file of the demo's folder.
func (s *stage) start(name string, cmd *exec.Cmd) error {
	log, err := os.Create(filepath.Join(s.dir, name+".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	s.procs = append(s.procs, cmd)
	return nil
}

// await polls until a child answers 200, at most 20 s.
func (s *stage) await(ctx context.Context, name string, c *http.Client, url string) error {
	ctx, stop := context.WithTimeout(ctx, 20*time.Second)
	defer stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if body, err := get(ctx, c, url); err == nil && body != nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			log, _ := os.ReadFile(filepath.Join(s.dir, name+".log"))
			return fmt.Errorf("%s does not get ready: %w; its output:\n%s", name, ctx.Err(), tail(log, 4096))
		}
	}
}

// strike takes everything down: Envoy first, then weir by SIGTERM, so that it
// drains, then the pools.
func (s *stage) strike() {
	for i := len(s.procs) - 1; i >= 0; i-- {
		end(s.procs[i])
	}
	for _, sim := range []*modelsim.Sim{s.fp16, s.int8} {
		if sim != nil {
			if err := sim.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
				slog.Debug("close pool", "error", err)
			}
		}
	}
}

// end stops a child: SIGTERM, and SIGKILL after ten seconds.
func end(cmd *exec.Cmd) {
	_ = cmd.Process.Signal(syscall.SIGTERM) // gone already is fine
	done := make(chan struct{})
	go func() { _ = cmd.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		_ = cmd.Process.Kill()
		<-done
	}
}

// hold keeps everything up and says how to try it by hand.
func (s *stage) hold(ctx context.Context) {
	names := make([]string, len(s.tokens))
	for i, g := range Groups() {
		names[i] = strings.ToUpper(g.Class)
		s.say("%s=%s", names[i], s.tokens[i])
	}
	s.say(`
# paste the three lines above, then for example:
curl -si http://%[1]s/v1/chat/completions -H "authorization: Bearer $STANDARD" -H 'content-type: application/json' \
  -d '{"model":"deepseek-v4","stream":true,"max_tokens":20,"messages":[{"role":"user","content":"What is a weir?"}]}'
curl -si http://%[1]s/v1/models -H "authorization: Bearer $STANDARD"
curl -si http://%[1]s/v1/chat/completions -d '{}'                      # no token: 401

# the OpenAI SDK (pip install openai):
python3 - "$STANDARD" <<'PY'
import sys, openai
client = openai.OpenAI(base_url="http://%[1]s/v1", api_key=sys.argv[1])
for event in client.chat.completions.create(model="deepseek-v4", stream=True, max_tokens=20,
        messages=[{"role": "user", "content": "What is a weir?"}]):
    if event.choices: print(event.choices[0].delta.content or "", end="", flush=True)
print()
PY

# look inside:
curl -s --unix-socket %[2]s/admin.sock http://weir/debug/queue
curl -s --unix-socket %[2]s/admin.sock 'http://weir/debug/quotas?tenant=globex-rag'
%[3]s explain --admin unix:%[2]s/admin.sock

Everything stays up until Ctrl-C.`, s.addr, s.dir, s.o.Weir)
	<-ctx.Done()
}
