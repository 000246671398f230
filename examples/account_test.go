package examples_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/weirproxy/weir/internal/envoytest"
)

// TestBodyAtTheLimit: a body that is as long as Envoy buffers, or shorter by
// less than what weir would set in it, reaches the model and is charged what
// that counts: asking for a stream's usage makes no body too long.
func TestBodyAtTheLimit(t *testing.T) {
	const most = 4 << 20
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		up := newOddModel(t)
		w := oddWorld(t, b, up, nil)
		for _, spare := range []int{0, 1, 38, 39, 40, 41, 400} {
			name := fmt.Sprintf("spare-%d", spare)
			body := chatBody(64, true)
			body = strings.Replace(body, "What is", strings.Repeat("a", most-spare-len(body))+"What is", 1)
			a := w.odd(name, body)
			got, tries := up.seen(name)
			if a.code != http.StatusOK || a.header.Get("x-weir-reason") != "admitted" || tries != 1 {
				t.Errorf("%d bytes: %d %v %.200s, %d tries", len(body), a.code, a.err, a.body, tries)
			}
			if asked := strings.Contains(got.body, "include_usage"); asked != (spare >= 40) || len(got.body) > most || int(got.length) != len(got.body) {
				t.Errorf("%d bytes: the model got %d, its usage asked for: %v", len(body), len(got.body), asked)
			}
			w.settled(name, charge{1, 3, 4})
		}
		w.sound()
	})
}

// TestOfferedCodings: whatever the caller accepts, the model is offered what
// weir reads.
func TestOfferedCodings(t *testing.T) {
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		up := newOddModel(t)
		w := oddWorld(t, b, up, nil)
		for i, tt := range []struct {
			stream         bool
			accepted, want string
		}{
			{false, "br", "identity"}, {false, "zstd, br;q=0.5", "identity"}, {false, "gzip, br", "gzip"}, {false, "*", "gzip"},
			{false, "identity", "identity"}, {true, "gzip, br", "identity"}, {true, "br", "identity"},
		} {
			name := fmt.Sprintf("coding-%d", i)
			a := w.odd(name, chatBody(64, tt.stream), "Accept-Encoding", tt.accepted)
			got, _ := up.seen(name)
			if v := got.header.Values("Accept-Encoding"); a.code != http.StatusOK || len(v) != 1 || v[0] != tt.want {
				t.Errorf("%q: %d, the model is offered %q, want %q", tt.accepted, a.code, v, tt.want)
			}
			w.settled(name, charge{1, 3, 4})
		}
		w.sound()
	})
}
