package policy

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// The numbers of B3, B5 and B7 to B10 that hold where a file says nothing.
func streetNumbers(p *Policy) []check {
	return []check{
		{"B1 protocol", p.Pools[0].Protocol, HTTP},
		{"B1 grpc", p.Breaker.GRPC, (*Breaker)(nil)},
		{"B3 cascade", []any{p.Breaker.Cascade.Bus, p.Breaker.Cascade.TTL, p.Breaker.Cascade.Renew}, []any{BusAuto, 15 * time.Second, 5 * time.Second}},
		{"B5 tenant levels", []any{p.Breaker.Tenant.Soft, p.Breaker.Tenant.Hard, p.Breaker.Tenant.MinRequests}, []any{Ratio(0.3), Ratio(0.5), 20}},
		{"B5 tenant", p.Breaker.Tenant.CoolDown, CoolDown{First: 5 * time.Minute, Factor: 1.5, Cap: 30 * time.Minute}},
		{"B5 tenants kept", p.Breaker.Tenant.Max, 10_000},
		{"B7", []any{p.Envoy.Watch.GoAway.PerSecond, p.Envoy.Watch.GoAway.Share, p.Envoy.Watch.GoAway.Window}, []any{5.0, Ratio(0.5), 10 * time.Second}},
		{"B8", p.Envoy.Watch.Protect, Protect{Below: 0.5, Above: 0.8, Calm: 5 * time.Second}},
		{"B7 sources", []any{p.Envoy.Watch.Metrics, p.Envoy.Watch.Every, len(p.Envoy.Watch.Admin)}, []any{true, 500 * time.Millisecond, 0}},
		{"B9", p.Retry, RetryControl{Base: 100 * time.Millisecond, Factor: 1.5, Max: 30 * time.Second, Jitter: 0.2, Storm: 10}},
		{"B10", p.Envoy.Protection, Protection{Calm: time.Second, Interval: 200 * time.Millisecond, MaxPerSec: 100, Floor: 0.1}},
	}
}

func TestStreetNumbers(t *testing.T) {
	for name, p := range map[string]*Policy{"code": Default(), "minimal": load(t, "w.yaml", minimal), "default": example(t, "default.yaml")} {
		t.Run(name, func(t *testing.T) {
			verify(t, append(streetNumbers(p), []check{
				{"B3", p.Breaker.Cascade.Literal, false},
				{"B4", p.Breaker.DynamicLiteral, false},
				{"B5", p.Breaker.Tenant.On, false},
				{"B7", p.Envoy.Watch.GoAway.Literal, false},
				{"B10", p.Envoy.XDS, (*XDS)(nil)},
			}...))
		})
	}
	p := example(t, "source.yaml")
	verify(t, append(streetNumbers(p), []check{
		{"B3 literal", p.Breaker.Cascade.Literal, true},
		{"B4 literal", p.Breaker.DynamicLiteral, true},
		{"B5 tenant on", p.Breaker.Tenant.On, true},
		{"B7 literal", p.Envoy.Watch.GoAway.Literal, true},
		{"B10 pushed", p.Envoy.XDS, &XDS{Layer: "weir"}},
	}...))
}

// Only what breaker.grpc names differs from the common values, wherever it
// stands; the progressive cool-down is for HTTP pools (B5).
func TestBreakerOf(t *testing.T) {
	p := load(t, "w.yaml", minimal+`
breaker:
  grpc: {soft: 10%, open: 2s}
  window: 20s
  hard: 40%
  coolDown: progressive
  tenant: {enabled: true}
  cascade: {ttl: 30s}
`)
	http, grpc := p.BreakerOf(HTTP), p.BreakerOf(GRPCProtocol)
	if !reflect.DeepEqual(http, p.Breaker) {
		t.Errorf("http: %+v", http)
	}
	want := p.Breaker
	want.Soft, want.Open, want.Progressive, want.GRPC = 0.1, 2*time.Second, false, nil
	if !reflect.DeepEqual(grpc, want) || grpc.Window != 20*time.Second || !grpc.Tenant.On || grpc.Cascade.TTL != 30*time.Second {
		t.Errorf("grpc:\n%+v, want\n%+v", grpc, want)
	}
	if http.Soft != 0.3 || http.Hard != 0.4 || !http.Progressive {
		t.Errorf("grpc changed the common values: %+v", http)
	}
	same := load(t, "w.yaml", minimal+"breaker: {coolDown: progressive, soft: 20%}\n")
	if b := same.BreakerOf(GRPCProtocol); b.Progressive || b.Soft != 0.2 {
		t.Errorf("without grpc: %+v", b)
	}
	own := load(t, "w.yaml", minimal+"breaker: {grpc: {coolDown: progressive}}\n")
	if !own.BreakerOf(GRPCProtocol).Progressive || own.BreakerOf(HTTP).Progressive {
		t.Error("grpc's own cool-down")
	}
}

const streetFile = `version: 1
identity: {issuers: [{issuer: https://id.example, audiences: [llm], jwks: {file: jwks.json}}]}
server: {grpc: "0.0.0.0:9903", tls: {cert: c.pem, key: k.pem, clientCA: ca.pem, clients: ["spiffe://x/*", envoy.example]}, replicas: 2}
models: [{name: m, pools: [a, b, c, g]}]
pools:
  - {name: a, variant: fp16, envoy: {cluster: chat, subset: {v: a}}, seats: {requests: 10}}
  - {name: b, variant: fp16-dyn, envoy: {cluster: chat, subset: {v: b}}, seats: {adaptive: {min: 4, max: 30}}}
  - {name: c, variant: int8, seats: {requests: 8}}
  - {name: g, variant: int8, protocol: grpc, seats: {requests: 5}}
queue: {length: {max: 100}}
profiles:
  deep: {queue: {length: {max: 150}}}
  edge: {queue: {length: {max: 0}}}
breaker:
  grpc: {minRequests: 5, release: [50%, 100%]}
  tenant: {enabled: true, coolDown: {first: 1m, factor: 2, cap: 10m}, max: 50}
  cascade: {bus: etcd, etcd: {endpoints: ["e1:2379", "[::1]:2379"], username: weir, password: {file: pw}, tls: true, ca: ca.pem}, literal: true, ttl: 20s, renew: 4s}
retryControl: {disabled: true, base: 50ms, factor: 1, max: 1s, jitter: 0, storm: 3}
envoy:
  clusters:
    - {name: g, maxRequests: 500, retryBudget: 0, minRetries: 0, maxRetries: 0}
    - name: batch
      protocol: grpc
      maxConnections: 4294967295
      endpoints:
        priorities:
          - {region: east, static: ["10.0.0.1:80", "[fd00::1]:80"]}
          - {region: west, slices: slices.yaml, port: http, every: 1s, subset: {v: a}, priority: 0}
          - {dns: "models.example:443", priority: 1}
          - {file: hosts.yaml, priority: 2}
        return: 1m
  watch:
    admin: [{node: n1, url: "http://127.0.0.1:9901"}, {node: n2, url: "unix:/run/envoy/admin.sock"}, {node: n3, url: "http://[::1]:9901/"}]
    metrics: false
    goaway: {perSecond: 2.5, literal: true}
    protect: {below: 40%, above: 90%, calm: 0}
  protection: {calm: 1s, interval: 100ms, maxPerSecond: 10, floor: 0, softDrop: 10%, hardDrop: 100%, shedding: maintenance}
  xds:
    state: /var/lib/weir/xds
    nodes:
      - {name: edge, id: "edge-*", sans: ["spiffe://x/*", envoy.example], clusters: [chat, batch]}
      - {name: rest}
`

func streetPolicy(t *testing.T) *Policy {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "pw"), []byte("s3cret"), 0o600); err != nil {
		t.Fatal(err)
	}
	return load(t, filepath.Join(dir, "w.yaml"), streetFile)
}

// What is read is what the file says, and a dump says it again, without the
// password.
func TestStreetReads(t *testing.T) {
	p := streetPolicy(t)
	zeroth, first, second := 0, 1, 2
	file := func(name string) string { return filepath.Join(p.dir, name) }
	c, e := p.Breaker.Cascade, p.Envoy
	verify(t, []check{
		{"bus", c.Bus, BusEtcd},
		{"endpoints", c.Etcd.Endpoints, []string{"e1:2379", "[::1]:2379"}},
		{"etcd", []any{c.Etcd.Prefix, c.Etcd.Username, c.Etcd.TLS, c.Etcd.CA, c.Etcd.Password.Reveal()}, []any{"/weir/", "weir", true, file("ca.pem"), "s3cret"}},
		{"words", []any{c.Literal, c.TTL, c.Renew}, []any{true, 20 * time.Second, 4 * time.Second}},
		{"grpc", []any{p.Breaker.GRPC.MinRequests, p.Breaker.GRPC.Release, p.Breaker.GRPC.Soft}, []any{5, []Ratio{0.5, 1}, Ratio(0.3)}},
		{"tenant", p.Breaker.Tenant, TenantBreaker{On: true, Soft: 0.3, Hard: 0.5, MinRequests: 20, CoolDown: CoolDown{time.Minute, 10 * time.Minute, 2}, Max: 50}},
		{"retry", p.Retry, RetryControl{Off: true, Base: 50 * time.Millisecond, Factor: 1, Max: time.Second, Storm: 3}},
		{"pool", p.Pools[3].Protocol, GRPCProtocol},
		{"endpoints", *e.Clusters[1].Endpoints, Endpoints{Return: time.Minute, Heartbeat: 500 * time.Millisecond, Priorities: []EndpointSet{
			{Region: "east", Static: []string{"10.0.0.1:80", "[fd00::1]:80"}},
			{Region: "west", Slices: file("slices.yaml"), Port: "http", Every: time.Second, Subset: map[string]string{"v": "a"}, Priority: &zeroth},
			{DNS: "models.example:443", Every: 5 * time.Second, Priority: &first},
			{File: file("hosts.yaml"), Every: 5 * time.Second, Priority: &second},
		}}},
		{"admin", e.Watch.Admin, []EnvoyAdmin{{"n1", "http://127.0.0.1:9901"}, {"n2", "unix:/run/envoy/admin.sock"}, {"n3", "http://[::1]:9901/"}}},
		{"watch", []any{e.Watch.Metrics, e.Watch.Every}, []any{false, 500 * time.Millisecond}},
		{"goaway", e.Watch.GoAway, GoAway{PerSecond: 2.5, Share: 0.5, Window: 10 * time.Second, Literal: true}},
		{"protect", e.Watch.Protect, Protect{Below: 0.4, Above: 0.9}},
		{"protection", e.Protection, Protection{Calm: time.Second, Interval: 100 * time.Millisecond, MaxPerSec: 10, SoftDrop: 0.1, HardDrop: 1, Shedding: Maintenance}},
		{"xds", *e.XDS, XDS{State: "/var/lib/weir/xds", Layer: "weir", Nodes: []XDSGroup{
			{Name: "edge", ID: "edge-*", SANs: []string{"spiffe://x/*", "envoy.example"}, Clusters: []string{"chat", "batch"}},
			{Name: "rest"},
		}}},
	})
	again := load(t, filepath.Join(p.dir, "w.yaml"), string(p.Dump()))
	if !same(p, again) || p.Hash != again.Hash {
		t.Errorf("the dump is another policy:\n%s", p.Dump())
	}
	if strings.Contains(string(p.Dump()), "s3cret") {
		t.Error("the dump has the password")
	}
}

// Each cluster of the pools and each listed one, once, with the numbers that
// follow from the pools: seats (the most of adaptive ones) + the longest line.
func TestProtectedClusters(t *testing.T) {
	p := streetPolicy(t)
	base := Cluster{MaxConnections: 1024, MaxPending: 1024, MaxRetries: 3, Budget: 0.2, MinRetries: 50}
	chat, c := base, base
	chat.Name, chat.MaxRequests, chat.Subsets = "chat", 10+30+150, []map[string]string{{"v": "a"}, {"v": "b"}}
	c.Name, c.MaxRequests = "c", 8+150
	g := Cluster{Name: "g", Protocol: GRPCProtocol, MaxConnections: 1024, MaxPending: 1024, MaxRequests: 500}
	batch := base
	batch.Name, batch.Protocol, batch.protocolSet = "batch", GRPCProtocol, true
	batch.MaxConnections, batch.MaxRequests, batch.Endpoints = 4294967295, 1024, p.Envoy.Clusters[1].Endpoints
	got := p.ProtectedClusters()
	if want := []Cluster{batch, c, chat, g}; !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v\nwant\n%+v", got, want)
	}
	for _, want := range got {
		if one, ok := p.ClusterOf(want.Name); !ok || !reflect.DeepEqual(one, want) {
			t.Errorf("%s: %+v %v", want.Name, one, ok)
		}
	}
	for _, name := range []string{"a", "", "chat2", "zz"} {
		if one, ok := p.ClusterOf(name); ok {
			t.Errorf("there is no cluster %q: %+v", name, one)
		}
	}
	got[0].Name = "changed"
	if _, ok := p.ClusterOf("batch"); !ok || p.Envoy.Clusters[1].Name != "batch" || p.Envoy.Clusters[1].MaxRequests != 0 {
		t.Error("the answer is the policy's own")
	}
	edge, err := p.For(Overrides{Profile: "edge"})
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(edge.ProtectedClusters(), p.ProtectedClusters()) {
		t.Error("profiles have clusters of their own")
	}
}

// A policy that a test changes after Default has the clusters of what it
// became, with Finish or without an index at all.
func TestProtectedClustersByHand(t *testing.T) {
	p := Default()
	p.Pools = append(slices.Clone(p.Pools), Pool{Name: "x", Cluster: "x", Protocol: GRPCProtocol, Seats: Seats{Requests: 7}})
	if c, ok := p.Finish().ClusterOf("x"); !ok || c.MaxRequests != 207 || c.Protocol != GRPCProtocol {
		t.Errorf("%+v %v", c, ok)
	}
	bare := &Policy{Pools: []Pool{{Name: "y", Cluster: "y", Seats: Seats{Requests: 3}}}}
	if c, ok := bare.ClusterOf("y"); !ok || c.MaxRequests != 3 {
		t.Errorf("%+v %v", c, ok)
	}
}

// Istio's cluster names have dots.
func TestClusterWithDots(t *testing.T) {
	text := strings.Replace(minimal, "variant: fp16", `variant: fp16, envoy: {cluster: "outbound|80||m.ns.svc"}`, 1)
	p := load(t, "w.yaml", text)
	if c, ok := p.ClusterOf("outbound|80||m.ns.svc"); !ok || c.MaxRequests != 204 {
		t.Errorf("%+v %v", c, ok)
	}
}

func TestStreetNotes(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       []string // every note, by a part of it
	}{
		{"none", "envoy: {xds: {}}", nil},
		{"listed in vain", "envoy: {clusters: [{name: ghost}]}", []string{"cluster ghost: no pool has it and it has no endpoints: nothing protects it"}},
		{"too few", "envoy: {clusters: [{name: p, maxRequests: 203}]}", []string{"cluster p: maxRequests 203 is below the 4 seats of its pools and the 200 places of the line"}},
		{"enough", "envoy: {clusters: [{name: p, maxRequests: 204}]}", nil},
		{"endpoints", `envoy: {clusters: [{name: p, endpoints: {priorities: [{dns: "m:80"}]}}]}`, []string{"cluster p: its endpoints are not served: there is no envoy.xds"}},
		{"drops", "envoy: {protection: {shedding: maintenance, hardDrop: 5%}}", []string{"envoy.protection drops nothing"}},
		{"drops switched off", "envoy: {protection: {disabled: true, hardDrop: 5%}}", nil},
		{"cds", "envoy: {xds: {cds: true}}", []string{"cluster p: envoy.xds.cds does not serve it: it has no endpoints"}},
		{"hidden", "envoy: {xds: {nodes: [{name: all}, {name: x, id: x}]}}", []string{"envoy.xds.nodes x gets nobody: all before it takes every node"}},
		{"open", `envoy: {xds: {}}
server: {grpc: "0.0.0.0:1", insecure: true}`, []string{"INSECURE: server.insecure is true and server.grpc 0.0.0.0:1 takes whoever reaches it for Envoy"}},
		{"authorised", `envoy: {xds: {}}
server: {grpc: "0.0.0.0:1", tls: {cert: c, key: k, clientCA: a, clients: [e]}}`, nil},
		{"bus off", `server: {replicas: 2}
store: {redis: {addresses: ["127.0.0.1:1"]}}
breaker: {cascade: {bus: "off"}}`, []string{"server.replicas is 2 and breaker.cascade.bus is off"}},
		{"cool-down of HTTP", "breaker: {coolDown: progressive, grpc: {open: 6s}}", nil},
		{"cool-down of gRPC", "breaker: {grpc: {coolDown: progressive}}", []string{"breaker.grpc.coolDown has no effect: "}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := load(t, "w.yaml", minimal).Notes()
			got := slices.DeleteFunc(load(t, "w.yaml", minimal+tt.text+"\n").Notes(), func(n string) bool { return slices.Contains(before, n) })
			if len(got) != len(tt.want) {
				t.Fatalf("%q, want %q", got, tt.want)
			}
			for i := range got {
				if !strings.HasPrefix(got[i], tt.want[i]) {
					t.Errorf("%q, want %q", got[i], tt.want[i])
				}
			}
		})
	}
}

func TestReportOfClusters(t *testing.T) {
	contains(t, Report(streetPolicy(t)),
		"# clusters of Envoy, with nothing wrong\n",
		"#   batch                grpc, 4294967295 connections, 1024 pending, 1024 requests, retries of 20% or 50, endpoints of 4 priorities\n",
		"#   g                    grpc, 1024 connections, 1024 pending, 500 requests, 0 retries\n",
	)
	if strings.Contains(Report(Default()), "clusters of Envoy") {
		t.Error("speaks of clusters that nobody asked for")
	}
}

// A pool's part of a cluster whose endpoints weir serves must have a set that
// may have hosts of it.
func TestSubsetsOfServedEndpoints(t *testing.T) {
	for _, c := range []struct {
		sets string
		ok   bool
	}{
		{`{file: h.yaml}`, true}, // its hosts may say it
		{`{static: ["10.0.0.1:80"], subset: {v: a}}`, true},
		{`{static: ["10.0.0.1:80"], subset: {v: a, zone: x}}`, true}, // more labels than are asked for
		{`{dns: "m:80"}, {slices: s.yaml, subset: {v: a}}`, true},
		{`{static: ["10.0.0.1:80"]}`, false},
		{`{static: ["10.0.0.1:80"], subset: {v: b}}`, false},
		{`{static: ["10.0.0.1:80"], subset: {}}`, false},
		{`{static: ["10.0.0.1:80"], subset: {w: a}}`, false},
	} {
		_, err := Load("w.yaml", []byte(`version: 1
identity: {issuers: [{issuer: https://id.example, audiences: [llm], jwks: {file: jwks.json}}]}
models: [{name: m, pools: [p]}]
pools: [{name: p, variant: fp16, seats: {requests: 4}, envoy: {cluster: c, subset: {v: a}}}]
envoy: {clusters: [{name: c, endpoints: {priorities: [`+c.sets+`]}}]}
`))
		if (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), "w.yaml:4:") {
			t.Errorf("%s: %v", c.sets, err)
		}
	}
}
