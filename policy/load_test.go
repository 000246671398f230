package policy

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// minimal is the shortest policy: everything else is defaulted.
const minimal = `version: 1
identity: {issuers: [{issuer: https://id.example, audiences: [llm], jwks: {file: jwks.json}}]}
models: [{name: m, pools: [p]}]
pools: [{name: p, variant: fp16, seats: {requests: 4}}]
`

func load(t *testing.T, name, text string) *Policy {
	t.Helper()
	p, err := Load(name, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// same compares what a policy says, without its look-up tables and caches.
func same(a, b *Policy) bool {
	x, y := bare(a), bare(b)
	if len(x.profiles) != len(y.profiles) {
		return false
	}
	for name := range x.profiles {
		if y.profiles[name] == nil || !reflect.DeepEqual(bare(x.profiles[name]), bare(y.profiles[name])) {
			return false
		}
	}
	x.profiles, y.profiles = nil, nil
	return reflect.DeepEqual(x, y)
}

func bare(p *Policy) Policy {
	q := *p
	q.index, q.cache = nil, nil
	return q
}

func TestDumpLoadsAgainEqual(t *testing.T) {
	text := minimal + `
profiles:
  edge: {mode: shadow, queue: {length: {max: 0}}, classes: [{name: batch, maxWait: 0, mode: enforce}]}
quotas:
  - {name: q, match: {tenant: "a*", class: batch}, by: [tenant, model], limits: [{requests: 5, per: 1s}, {concurrency: 2}]}
tenants: [{match: {tenant: acme}, class: batch, models: [m]}]
gauge: {smoothing: [0.5, 0.25, 0.25]}
queue: {softLimit: 33.3%, coldStart: []}
telemetry: {otlp: {endpoint: "127.0.0.1:4317", insecure: true}}
`
	p := load(t, "conf/weir.yaml", text)
	q := load(t, "conf/weir.yaml", string(p.Dump()))
	if !same(p, q) {
		t.Errorf("not equal:\n%s\n%s", p.Dump(), q.Dump())
	}
	if len(p.Hash) != 12 || p.Hash != q.Hash {
		t.Errorf("hashes %q %q", p.Hash, q.Hash)
	}
	if p.Identity.Issuers[0].JWKS.File != "conf/jwks.json" {
		t.Errorf("relative file: %q", p.Identity.Issuers[0].JWKS.File)
	}
	if other := load(t, "/etc/weir/weir.yaml", text); other.Hash != p.Hash {
		t.Error("the hash depends on where the file lies")
	}
	if other := load(t, "conf/weir.yaml", text+"mode: shadow\n"); other.Hash == p.Hash {
		t.Error("the hash does not depend on the content")
	}
}

func TestProfiles(t *testing.T) {
	p := load(t, "w.yaml", minimal+`
queue: {length: {max: 120}, softLimit: 70%}
profiles:
  edge: {queue: {length: {max: 0}}, mode: shadow}
  deep: {queue: {softLimit: 90%}, classes: [{name: standard, maxWait: 2s, mode: pass}], quotas: []}
quotas: [{name: q, limits: [{requests: 1, per: 1s}]}]
`)
	edge, err := p.For(Overrides{Profile: "edge"})
	if err != nil {
		t.Fatal(err)
	}
	if l := edge.Queue.Length; l.Max != 0 || l.Min != 0 || edge.Queue.SoftLimit != 0.7 || edge.Queue.ColdStart[0] != 0 {
		t.Errorf("edge: %+v", edge.Queue)
	}
	if edge.ModeOf(Standard) != Shadow || len(edge.Quotas) != 1 || edge.ID() != p.Hash+"/edge" {
		t.Errorf("edge: %v %v %s", edge.ModeOf(Standard), edge.Quotas, edge.ID())
	}
	deep, err := p.For(Overrides{Profile: "deep"})
	if err != nil {
		t.Fatal(err)
	}
	if deep.Queue.Length.Max != 120 || deep.Queue.SoftLimit != 0.9 || len(deep.Quotas) != 0 {
		t.Errorf("deep: %+v", deep.Queue)
	}
	if deep.ModeOf(Standard) != Pass || deep.ModeOf(Batch) != Enforce || deep.Classes[Standard].Weight != 2 {
		t.Errorf("deep: %+v", deep.Classes)
	}
	if p.Queue.ColdStart[0] != 50 || p.Classes[Standard].MaxWait.String() != "500ms" {
		t.Error("a profile changed the base")
	}
	if _, ok := deep.Model("m"); !ok {
		t.Error("a profile lost the models")
	}
}

// The secret is read, and appears in no form of the policy.
func TestSecret(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "admin"), []byte("s3cret-token\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "weir.yaml")
	text := minimal + "server: {admin: \"0.0.0.0:9902\", adminToken: {file: admin}}\nstore: {redis: {addresses: [\"r:6379\"], password: {file: admin}}}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := LoadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !p.Server.AdminToken.Equal("s3cret-token") || p.Server.AdminToken.Equal("s3cret-token\n") || p.Server.AdminToken.Equal("") {
		t.Error("the token is not what the file says")
	}
	if p.Store.Redis.Password.Reveal() != "s3cret-token" {
		t.Error("password")
	}
	if (Secret{}).Equal("") {
		t.Error("no secret equals the empty one")
	}
	for form, s := range printed(t, p) {
		if strings.Contains(s, "s3cret") {
			t.Errorf("%s shows the secret: %s", form, s)
		}
	}
	q, err := LoadFile(file, WithoutSecrets())
	if err != nil || q.Server.AdminToken.Set() {
		t.Errorf("without secrets: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "admin")); err != nil {
		t.Fatal(err)
	}
	_, err = LoadFile(file)
	want := file + `:5:52: server.adminToken.file: cannot be read: no such file or directory (got "` + filepath.Join(dir, "admin") + `")`
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v\nwant %s", err, want)
	}
}

// A file with every section.
const wholeFile = `version: 1
mode: enforce                        # shadow, pass
server: {grpc: "unix:/run/weir/weir.sock", admin: "127.0.0.1:9902", adminToken: {file: admin}, drain: 25s, maxBody: 4MiB, replicas: 1}
store: {memory: {}}
identity:
  from: authz                        # extproc, metadata
  issuers: [{issuer: https://id.example, audiences: [llm], jwks: {file: jwks.json}}]
  claims: {tenant: tenant, class: class, colour: colour, tier: tier, user: sub}
  algorithms: [EdDSA, ES256, RS256]
envoy: {messageTimeout: 1s, maxMessageTimeout: 30s, maxRequests: 50000}
apis:
  - {path: /v1/chat/completions, kind: openai.chat, function: chat_completion}
  - {path: /v1/models, kind: free}
models:
  - {name: deepseek-v4, aliases: ["deepseek-*"], pools: [chat-fp16, chat-dyn, chat-int8]}
pools:
  - name: chat-fp16
    variant: fp16
    envoy: {cluster: chat-fp16}
    seats: {requests: 64, tokens: 400000}
    telemetry:
      - {kind: dcgm-exporter, url: "http://gpu-node:9400/metrics", every: 5s}
      - {kind: vllm, url: "http://model:8000/metrics", every: 1s}
  - {name: chat-dyn, variant: fp16-dyn, envoy: {cluster: chat-dyn}, seats: {requests: 64, tokens: 400000}}
  - {name: chat-int8, variant: int8, envoy: {cluster: chat-int8}, seats: {requests: 128, tokens: 800000}}
classes:
  - {name: critical, weight: 3, maxWait: 200ms, onExpiry: drop, variant: fp16}
  - {name: standard, weight: 2, maxWait: 500ms, onExpiry: degrade, variant: fp16-dyn}
  - {name: batch, weight: 1, maxWait: 1s, onExpiry: retryQueue, variant: int8}
queue: {length: {intercept: 1000, slope: 10, min: 50, max: 200}, softLimit: 80%, perTenant: 50%, maxHeldBytes: 256MiB, coldStart: [50, 75, 100], coldStartFor: 30s, retryQueue: {limit: 5s, length: 200}}
tenants:
  - {match: {tenant: "acme"}, tier: gold}
profiles:
  edge: {queue: {length: {max: 0}}}
quotas:
  - {name: per-tenant, match: {tenant: "*"}, by: [tenant], limits: [{requests: 600, per: 1m}, {tokens: 200000, per: 5m}, {concurrency: 20}]}
`

func TestWholeFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "admin"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := load(t, filepath.Join(dir, "weir.yaml"), wholeFile)
	verify(t, common(p))
	if api, ok := p.Route("GET", "/v1/models"); !ok || api.Kind != Free {
		t.Errorf("%v %v", api, ok)
	}
	if p.Tenant("acme").Tier != "gold" || p.TierWeight("gold") != 1 || p.TierWeight("none") != 1 {
		t.Error("tiers")
	}
	if len(p.Notes()) != 0 {
		t.Error(p.Notes())
	}
}

func TestLoadFileRefusesWhatIsNoFile(t *testing.T) {
	dir := t.TempDir()
	for path, want := range map[string]string{
		dir:                           "is not a plain file",
		filepath.Join(dir, "no.yaml"): "no such file or directory",
	} {
		if _, err := LoadFile(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
}
