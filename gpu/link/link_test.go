package link

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

func TestNewRefuses(t *testing.T) {
	token := policy.NewSecret("", "secret")
	for _, c := range []struct {
		name string
		cfg  Config
		want string // in the error; "" = none
	}{
		{"no port", Config{Address: "node"}, "host:port"},
		{"empty", Config{}, "host:port"},
		{"no host", Config{Address: ":9411"}, "host:port"},
		{"no such port", Config{Address: "node:65536"}, "host:port"},
		{"a URL", Config{Address: "https://node:1/x"}, "host:port"},
		{"token in the clear", Config{Address: "node:9400", Token: token}, "in the clear"},
		{"token within the machine", Config{Address: "127.0.0.1:9400", Token: token}, ""},
		{"token on a socket", Config{Address: "unix:/run/agent.sock", Token: token}, ""},
		{"token over TLS", Config{Address: "node:9400", Token: token, TLS: &policy.ClientTLS{}}, ""},
		{"files that are not there", Config{Address: "node:9400", TLS: &policy.ClientTLS{CA: "/nowhere/ca.pem"}}, "tls.ca"},
		{"v6", Config{Address: "[::1]:9400", Token: token}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := New(c.cfg)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("New = %v, want %q", err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("the token stands in %v", err)
			}
		})
	}
}

// The pause doubles up to its bound, and chance has the upper half of it.
func TestPause(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	want := minPause
	for failures := range 100 {
		for range 20 {
			if d := pause(failures, rng); d < want/2 || d > want {
				t.Fatalf("pause(%d) = %v, want %v to %v", failures, d, want/2, want)
			}
		}
		want = min(2*want, maxPause)
	}
	if want != 5*time.Second {
		t.Errorf("longest pause = %v", want)
	}
}
