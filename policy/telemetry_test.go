package policy

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// withSources loads the minimal policy with these sources; a token's file is
// there.
func withSources(t *testing.T, sources, rest string) (*Policy, error) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "token"), []byte("t0ken\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(minimal, "seats: {requests: 4}", "seats: {requests: 4}, telemetry: ["+sources+"]", 1) + rest
	return Load(filepath.Join(dir, "weir.yaml"), []byte(text))
}

// Every kind loads with what it needs and all that it takes, has its period,
// and refuses each key that it does not know.
func TestSourceKinds(t *testing.T) {
	values := map[string]string{
		keyURL: "https://node:9400/metrics", keyFile: "curve.yaml", keyMatch: "{pod: a}",
		keyTLS: "{ca: ca.pem, cert: c.pem, key: k.pem, serverName: node}", keyToken: "{file: token}",
		keyEndpoint: "a", keyEndpointLabel: "pod", keyEndpointsFile: "places.yaml", keyAgent: "/opt/agent",
	}
	for _, kind := range append(sourceKinds(), textKind("mine")) {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			text := func(keys ...string) string {
				s := "{kind: " + kind.name
				for _, k := range keys {
					v := values[k]
					if k == keyURL && kind.grpc {
						v = "node:9400"
					}
					s += fmt.Sprintf(", %s: %q", k, v)
					if strings.HasPrefix(v, "{") {
						s = strings.TrimSuffix(s, fmt.Sprintf("%q", v)) + v
					}
				}
				return s + "}"
			}
			rest := ""
			if kind.name == "mine" {
				rest = `engines: [{name: mine, waiting: ["a{b=\"c\"}", d], kv: [e]}]` + "\n"
			}
			all := kind.needs
			for _, k := range kind.takes {
				if k != keyEndpointLabel && k != keyEndpointsFile {
					all = append(all[:len(all):len(all)], k)
				}
			}
			p, err := withSources(t, text(all...), rest)
			if err != nil {
				t.Fatal(err)
			}
			period := time.Second
			if kind.slow {
				period = 5 * time.Second
			}
			if s := p.Pools[0].Telemetry[0]; s.Every != period || s.Timeout > s.Every || s.Timeout == 0 {
				t.Errorf("every %v, timeout %v", s.Every, s.Timeout)
			}
			again, err := Load("w.yaml", p.Dump(), WithoutSecrets())
			if err != nil || again.Pools[0].Telemetry[0].Kind != kind.name {
				t.Errorf("its dump does not load: %v\n%s", err, p.Dump())
			}
			for _, k := range sourceKeys() {
				_, err := withSources(t, text(append(all[:len(all):len(all)], k)...), rest)
				taken := strings.Contains(strings.Join(append(kind.takes, kind.needs...), " "), k)
				if refused := err != nil && strings.Contains(err.Error(), k+": is not used by kind "+kind.name); refused == taken {
					t.Errorf("%s taken: %v, but %v", k, taken, err)
				}
			}
			for i, k := range kind.needs {
				_, err := withSources(t, text(append(kind.needs[:i:i], kind.needs[i+1:]...)...), rest)
				if err == nil || !strings.Contains(err.Error(), k+": is missing: kind "+kind.name+" needs it") {
					t.Errorf("without %s: %v", k, err)
				}
			}
		})
	}
}

// A token goes to nobody who could be overheard.
func TestSourceTokens(t *testing.T) {
	for _, tt := range []struct {
		source string
		taken  bool
	}{
		{`kind: vllm, url: "http://node:8000/metrics"`, false},
		{`kind: vllm, url: "https://node:8000/metrics"`, true},
		{`kind: vllm, url: "http://127.0.0.1:8000/metrics"`, true},
		{`kind: vllm, url: "http://[::1]:8000/metrics"`, true},
		{`kind: vllm, url: "http://localhost.evil.example/metrics"`, false},
		{`kind: agent, url: "node:9410"`, false},
		{`kind: agent, url: "node:9410", tls: {}`, true},
		{`kind: agent, url: "127.0.0.1:9410"`, true},
		{`kind: agent, url: "unix:/run/weir/gpu.sock"`, true},
		{`kind: orca-grpc, url: "unix:@orca"`, true},
		{`kind: orca-grpc, url: "node:80"`, false},
	} {
		_, err := withSources(t, "{"+tt.source+", token: {file: token}}", "")
		if (err == nil) != tt.taken || err != nil && !strings.Contains(err.Error(), "would be told in plain text") {
			t.Errorf("%s: %v, want taken %v", tt.source, err, tt.taken)
		}
	}
}

func TestSourceFields(t *testing.T) {
	p, err := withSources(t, `{kind: agent, url: "node:9410", tls: {ca: ca.pem, serverName: n}, token: {file: token}, endpoint: chat-0, match: {gpu: "1"}}`, "gauge: {faultFor: 90s}\n")
	if err != nil {
		t.Fatal(err)
	}
	s := p.Pools[0].Telemetry[0]
	if s.TLS == nil || !strings.HasSuffix(s.TLS.CA, "/ca.pem") || s.TLS.ServerName != "n" || s.Token.Reveal() != "t0ken" || s.Endpoint != "chat-0" || s.Match["gpu"] != "1" || p.Gauge.FaultFor != 90*time.Second {
		t.Errorf("%+v", s)
	}
	if strings.Contains(string(p.Dump()), "t0ken") {
		t.Error("the token is in the dump")
	}
	if p := load(t, "w.yaml", minimal); p.Gauge.FaultFor != 10*time.Minute {
		t.Errorf("faultFor %v", p.Gauge.FaultFor)
	}
}
