package examples_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/weirproxy/weir/examples"
	"github.com/weirproxy/weir/internal/envoytest"
)

// echo is a model that remembers what it was sent, and claims in its answer
// to be weir.
type echo struct {
	addr string

	mu     sync.Mutex
	header http.Header
	bytes  int64
	seen   int
}

func newEcho(t *testing.T) *echo {
	t.Helper()
	e := &echo{}
	s := httptest.NewServer(e)
	t.Cleanup(s.Close)
	e.addr = strings.TrimPrefix(s.URL, "http://")
	return e
}

func (e *echo) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n, err := io.Copy(io.Discard, r.Body)
	if err != nil {
		return // the caller left
	}
	e.mu.Lock()
	e.header, e.bytes = r.Header.Clone(), n
	e.seen++
	e.mu.Unlock()
	h := w.Header()
	h.Set("Content-Type", "application/json")
	for _, name := range []string{"reason", "variant", "pool", "request-id", "tenant", "waited-ms", "evil"} {
		h.Add("x-weir-"+name, "forged")
		h.Add("x-weir-"+name, "twice")
	}
	_, _ = io.WriteString(w, `{"object":"chat.completion","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}}`)
}

// last is the header of the last request.
func (e *echo) last(t *testing.T) http.Header {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.header == nil {
		t.Fatal("the model saw no request")
	}
	return e.header.Clone()
}

// received is how many requests came, and the bytes of the last one's body.
func (e *echo) received() (requests int, bytes int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.seen, e.bytes
}

// pointAt sends a cluster of an Envoy configuration to another host and port.
func pointAt(tree envoytest.Tree, cluster, addr string) {
	host, port, _ := strings.Cut(addr, ":")
	for _, c := range examples.Get(tree, "static_resources", "clusters").([]any) {
		if examples.Get(c, "name") == cluster {
			examples.Set(c, envoytest.Tree{"socket_address": envoytest.Tree{"address": host, "port_value": json.Number(port)}},
				"load_assignment", "endpoints", 0, "lb_endpoints", 0, "endpoint", "address")
		}
	}
}
