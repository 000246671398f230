package policy

import (
	"slices"
	"strings"
	"testing"
)

// TestPeers: which addresses are served and which peers are reached without a
// word, and which with one; the rest is refused (testdata/bad/grpc-*).
func TestPeers(t *testing.T) {
	const names = `tls: {cert: c, key: k, clientCA: a, clients: ["spiffe://mesh/envoy/*"]}`
	for _, tt := range []struct {
		text string
		want []string // every note, by a part of it
	}{
		{"", nil},
		{`server: {grpc: "unix:/tmp/w.sock"}`, nil},
		{`server: {grpc: "unix:@weir"}`, []string{"server.grpc unix:@weir has no file mode: every process of this network namespace is taken for Envoy"}},
		{`server: {grpc: "127.0.0.1:9903"}`, []string{"server.grpc 127.0.0.1:9903: every process of this machine or pod is taken for Envoy and may call as any tenant"}},
		{`server: {grpc: "[::1]:9903"}`, []string{"server.grpc [::1]:9903: every process"}},
		{`server: {grpc: "localhost:9903", tls: {cert: c, key: k, clientCA: a}}`, []string{"server.grpc localhost:9903: every process"}},
		{`server: {grpc: "127.0.0.1:9903", ` + names + `}`, nil},
		{`server: {grpc: "10.0.0.1:9903", ` + names + `}`, nil},
		{`server: {grpc: "10.0.0.1:9903", insecure: true, ` + names + `}`, nil},
		{`server: {grpc: ":9903", insecure: true}`, []string{"INSECURE: server.insecure is true and server.grpc :9903 takes whoever reaches it for Envoy: without a token it may call as any tenant, forge metrics and read what xDS serves"}},
		{`server: {grpc: "10.0.0.1:9903", insecure: true, tls: {cert: c, key: k, clientCA: a}}`, []string{"INSECURE: "}},
		{`server: {insecure: true}`, []string{"server.insecure has no effect"}},
		{`server: {admin: "0.0.0.0:9902", adminToken: {file: t}}`, []string{"server.admin 0.0.0.0:9902 is plain HTTP"}},
		{`store: {redis: {addresses: ["127.0.0.1:6379"]}}`, nil},
		{`store: {redis: {addresses: ["127.0.0.1:6379", "r:6379"]}}`, []string{"store.redis r:6379 is reached in plain text: who is on the way can forge counters, revocations"}},
		{`store: {redis: {addresses: ["r:6379"], tls: true}}`, []string{"store.redis r:6379 is reached without a password or certificate"}},
		{`store: {redis: {addresses: ["r:6379"], tls: true, password: {file: p}}}`, nil},
		{`store: {redis: {addresses: ["r:6379"], tls: true, cert: c, key: k}}`, nil},
		{`breaker: {cascade: {bus: etcd, etcd: {endpoints: ["e:2379"]}}}`, []string{"breaker.cascade.etcd e:2379 is reached in plain text"}},
		{`breaker: {cascade: {bus: etcd, etcd: {endpoints: ["e:2379"], tls: true, cert: c, key: k}}}`, nil},
		{`telemetry: {otlp: {endpoint: "o:4317", insecure: true}}`, []string{"telemetry.otlp o:4317 is reached in plain text"}},
		{`telemetry: {otlp: {endpoint: "o:4317"}}`, nil},
		{`telemetry: {otlp: {endpoint: "127.0.0.1:4317", insecure: true}}`, nil},
	} {
		p, err := Load("w.yaml", []byte(minimal+tt.text+"\n"), WithoutSecrets())
		if err != nil {
			t.Errorf("%s: %v", tt.text, err)
			continue
		}
		before := load(t, "w.yaml", minimal).Notes()
		got := slices.DeleteFunc(p.Notes(), func(n string) bool { return slices.Contains(before, n) })
		if len(got) != len(tt.want) {
			t.Errorf("%s: %q, want %q", tt.text, got, tt.want)
			continue
		}
		for i := range got {
			if !strings.HasPrefix(got[i], tt.want[i]) || !strings.Contains(Report(p), got[i]) {
				t.Errorf("%s: %q, want %q, in the report too", tt.text, got[i], tt.want[i])
			}
		}
		if loud := len(p.Insecure()) > 0; loud != (len(tt.want) > 0 && strings.HasPrefix(tt.want[0], "INSECURE")) {
			t.Errorf("%s: insecure %v", tt.text, loud)
		}
	}
}
