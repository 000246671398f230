package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"sigs.k8s.io/yaml"

	"github.com/weirproxy/weir/authz"
	"github.com/weirproxy/weir/bench/load"
	"github.com/weirproxy/weir/bench/wire"
)

// Callers of the measured calls: each token is another caller's.
const (
	tokens  = 200
	tenants = 100
	issuer  = "https://id.example" // as in examples/policies
)

// shape is one kind of call, and the servers that take it.
type shape struct {
	name  string
	weir  *server
	calls []load.Call
}

// harness is everything that runs.
type harness struct {
	dir     string
	binary  string // weir
	noop    *server
	weirs   []*server
	clients map[*server]*load.Client
	shapes  []shape
}

// setUp starts the no-op server and a weir for each form of identity, and
// makes the messages.
func setUp(ctx context.Context, o *options, dir string) (_ *harness, err error) {
	h := &harness{dir: dir, clients: map[*server]*load.Client{}}
	defer func() {
		if err != nil {
			h.close()
		}
	}()
	root, err := checkout(ctx)
	if err != nil {
		return nil, err
	}
	if h.binary = o.weir; h.binary == "" {
		h.binary = filepath.Join(dir, "weir")
		fmt.Println("building weir ...")
		build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", h.binary, "./cmd/weir")
		build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("go build: %w\n%s", err, out)
		}
	}
	signed, err := callers(dir)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	grpcSocket, adminSocket := h.sockets("noop")
	if h.noop, err = start(ctx, "noop", grpcSocket, adminSocket, o.procs, self, "noop", grpcSocket, adminSocket); err != nil {
		return nil, err
	}
	authz, err := h.startWeir(ctx, root, "weir-authz", "authz", o.procs, nil)
	if err != nil {
		return nil, err
	}
	extproc, err := h.startWeir(ctx, root, "weir-extproc", "extproc", o.procs, nil)
	if err != nil {
		return nil, err
	}
	if err := h.makeShapes(ctx, authz, extproc, signed); err != nil {
		return nil, err
	}
	for _, s := range []*server{h.noop, authz, extproc} {
		if h.clients[s], err = load.Dial(ctx, "unix", s.grpc, 2); err != nil {
			return nil, err
		}
	}
	return h, nil
}

// close ends every child.
func (h *harness) close() {
	for _, c := range h.clients {
		if c != nil {
			c.Close()
		}
	}
	for _, s := range append(h.weirs, h.noop) {
		if s != nil {
			s.close()
		}
	}
}

func (h *harness) sockets(name string) (grpc, admin string) {
	return filepath.Join(h.dir, name+".sock"), filepath.Join(h.dir, name+"-admin.sock")
}

// checkout is the folder of this module.
func checkout(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("go list -m: %w (run in a checkout of weir)", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// startWeir runs weir on the default policy of the examples.
func (h *harness) startWeir(ctx context.Context, root, name, from string, procs int, change func(tree map[string]any)) (*server, error) {
	grpcSocket, adminSocket := h.sockets(name)
	tree, err := examplePolicy(root, from, grpcSocket, adminSocket)
	if err != nil {
		return nil, err
	}
	if change != nil {
		change(tree)
	}
	data, err := yaml.Marshal(tree)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(h.dir, name+".yaml")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		return nil, err
	}
	s, err := start(ctx, name, grpcSocket, adminSocket, procs, h.binary, "serve", "--config", file)
	if err == nil {
		h.weirs = append(h.weirs, s)
	}
	return s, err
}

// examplePolicy is examples/policies/default.yaml with every rule in force,
// in which the numbers leave room for the load: nothing waits, nothing is
// refused, and telemetry comes from a file, because no GPU is here.
func examplePolicy(root, from, grpcSocket, adminSocket string) (map[string]any, error) {
	data, err := os.ReadFile(filepath.Join(root, "examples", "policies", "default.yaml"))
	if err != nil {
		return nil, err
	}
	var tree map[string]any
	if err := yaml.Unmarshal(data, &tree); err != nil {
		return nil, fmt.Errorf("examples/policies/default.yaml: %w", err)
	}
	const plenty = 1_000_000_000
	tree["server"] = map[string]any{"grpc": "unix:" + grpcSocket, "admin": "unix:" + adminSocket}
	identity, _ := tree["identity"].(map[string]any)
	identity["from"] = from
	for _, p := range list(tree["pools"]) {
		p["seats"] = map[string]any{"requests": 1_000_000, "tokens": plenty}
		p["telemetry"] = []any{map[string]any{"kind": "script", "file": "gpu.yaml", "every": "1s"}}
	}
	for _, q := range list(tree["quotas"]) {
		for _, l := range list(q["limits"]) {
			for _, unit := range []string{"requests", "tokens", "concurrency"} {
				if _, ok := l[unit]; ok {
					l[unit] = plenty
				}
			}
		}
	}
	return tree, os.WriteFile(filepath.Join(filepath.Dir(grpcSocket), "gpu.yaml"),
		[]byte("interpolate: true\nrepeat: true\npoints:\n  - {at: 0s, util: 50%, kv: 0.4, waiting: 0, running: 8}\n  - {at: 10s, util: 60%, kv: 0.5, waiting: 0, running: 8}\n"), 0o600)
}

func list(v any) []map[string]any {
	var out []map[string]any
	items, _ := v.([]any)
	for _, i := range items {
		if m, ok := i.(map[string]any); ok {
			out = append(out, m)
		}
	}
	return out
}

// callers makes a key, its jwks.json beside the policies, and the tokens.
func callers(dir string) ([]string, error) {
	private, public, err := authz.GenerateKey("EdDSA", "")
	if err != nil {
		return nil, err
	}
	signer, err := authz.NewSigner(private, "")
	if err != nil {
		return nil, err
	}
	now := time.Now()
	out := make([]string, tokens)
	for i := range out {
		out[i], err = signer.Sign(map[string]any{
			"iss": issuer, "aud": "llm", "sub": fmt.Sprintf("user-%d", i), "jti": rand.Text(),
			"iat": now.Unix(), "exp": now.Add(time.Hour).Unix(),
			"tenant": fmt.Sprintf("tenant-%03d", i%tenants), "class": "standard", "tier": "gold",
			"scope": "llm_service chat_completion max_tokens<=1024",
		})
		if err != nil {
			return nil, err
		}
	}
	return out, os.WriteFile(filepath.Join(dir, "jwks.json"), public, 0o600)
}

// makeShapes makes the calls of each shape, one for each token. What ext_proc
// finds of the identity is what ext_authz has just answered.
func (h *harness) makeShapes(ctx context.Context, authz, extproc *server, signed []string) error {
	conn, err := grpc.NewClient("unix:"+authz.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // of two calls; nothing to save
	client := authv3.NewAuthorizationClient(conn)
	check := shape{name: "check", weir: authz}
	short := shape{name: "headers_body/authz", weir: authz}
	full := shape{name: "full_stream/authz", weir: authz}
	shortToken := shape{name: "headers_body/extproc", weir: extproc}
	fullToken := shape{name: "full_stream/extproc", weir: extproc}
	for _, token := range signed {
		request := wire.Check(token)
		answer, err := client.Check(ctx, request)
		if err != nil {
			return err
		}
		if answer.GetOkResponse() == nil {
			return errors.New("weir refuses the harness's tokens: " + answer.String())
		}
		identity := answer.DynamicMetadata
		identity.Fields["ext_authz_duration"] = structpb.NewNumberValue(1) // Envoy adds it
		stored, own := wire.Caller{Identity: identity}, wire.Caller{Token: token}
		err = errors.Join(
			check.add(load.Call{Path: authv3.Authorization_Check_FullMethodName, Timeout: "500m", Unary: true}, request),
			short.side(wire.HeadersAndBody(stored)),
			full.side(wire.FullStream(stored)),
			shortToken.side(wire.HeadersAndBody(own)),
			fullToken.side(wire.FullStream(own)))
		if err != nil {
			return err
		}
	}
	h.shapes = []shape{check, short, shortToken, full, fullToken}
	return nil
}

// side adds a side stream of messages.
func (s *shape) side(messages []*extprocv3.ProcessingRequest) error {
	all := make([]proto.Message, len(messages))
	for i, m := range messages {
		all[i] = m
	}
	return s.add(load.Call{Path: extprocv3.ExternalProcessor_Process_FullMethodName}, all...)
}

// add adds a call with messages.
func (s *shape) add(c load.Call, messages ...proto.Message) error {
	for _, m := range messages {
		data, err := proto.Marshal(m)
		if err != nil {
			return err
		}
		c.Messages = append(c.Messages, load.Frame(data))
	}
	s.calls = append(s.calls, c)
	return nil
}
