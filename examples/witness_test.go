package examples_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// witness is an engine that remembers what it was sent and says who it is. It
// obeys two of modelsim's faults, hang and status=503, and claims in its
// answers to be weir.
type witness struct {
	name, addr string

	mu    sync.Mutex
	calls []received
}

// received is one request as an engine got it.
type received struct {
	header http.Header
	body   map[string]any
}

func newWitness(t *testing.T, name string) *witness {
	t.Helper()
	e := &witness{name: name}
	s := httptest.NewServer(e)
	t.Cleanup(s.Close)
	e.addr = strings.TrimPrefix(s.URL, "http://")
	return e
}

func (e *witness) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(r.Body)
	got := received{header: r.Header.Clone()}
	if err == nil {
		err = json.Unmarshal(raw, &got.body)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	e.mu.Lock()
	e.calls = append(e.calls, got)
	e.mu.Unlock()
	switch r.Header.Get("X-Sim-Fault") {
	case "hang":
		<-r.Context().Done()
		return
	case "status=503":
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	h := w.Header()
	for _, name := range []string{"reason", "variant", "notice", "evil"} {
		h.Set("x-weir-"+name, "forged")
	}
	h.Set("Content-Type", "application/json")
	_, _ = fmt.Fprintf(w, `{"object":"chat.completion","model":%q,"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}}`, e.name)
}

// seen are the requests so far.
func (e *witness) seen() []received {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]received(nil), e.calls...)
}

// last is the latest request.
func (e *witness) last(t *testing.T) received {
	t.Helper()
	all := e.seen()
	if len(all) == 0 {
		t.Fatalf("engine %s saw no request", e.name)
	}
	return all[len(all)-1]
}

// servedBy is the name of the witness that gave an answer.
func (a answer) servedBy() string {
	var said struct{ Model string }
	_ = json.Unmarshal([]byte(a.body), &said)
	return said.Model
}
