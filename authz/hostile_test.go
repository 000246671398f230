package authz

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/envoytest"
	"github.com/weirproxy/weir/policy"
)

// Whatever a key server answers: no fetch lasts longer than its time, takes
// more memory than a key set may have, or gives keys.
func TestHostileKeyServer(t *testing.T) {
	for name, page := range envoytest.Pages() {
		t.Run(name, func(t *testing.T) {
			server := envoytest.StartParrot(t, page)
			before, began := envoytest.Allocated(), time.Now()
			k := keysFrom(t, server.Addr, time.Second)
			if err := k.load(t.Context()); err == nil {
				t.Error("it has keys")
			}
			if took := time.Since(began); took > 3*time.Second {
				t.Errorf("took %v", took)
			}
			if got := int(envoytest.Allocated() - before); got > 16<<20 {
				t.Errorf("%d MiB allocated", got>>20)
			}
		})
	}
}

// A drop at a time ends with the fetch's time, and the next good answer heals.
func TestDrippingKeyServer(t *testing.T) {
	k := keyPair(t, "EdDSA", "k")
	good := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(keySetOf(t, k.public)) }))
	defer good.Close()
	slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-r.Context().Done():
				return
			case <-tick.C:
				_, _ = w.Write([]byte(" "))
				_ = http.NewResponseController(w).Flush()
			}
		}
	}))
	defer slow.Close()
	server := envoytest.StartParrot(t, nil)
	server.Lead(strings.TrimPrefix(slow.URL, "http://"))
	set := keysFrom(t, server.Addr, 100*time.Millisecond)
	began := time.Now()
	if err := set.load(t.Context()); err == nil || time.Since(began) > time.Second {
		t.Errorf("%v after %v", err, time.Since(began))
	}
	server.Lead(strings.TrimPrefix(good.URL, "http://"))
	envoytest.Eventually(t, 5*time.Second, "keys", func() bool { return set.load(t.Context()) == nil })
}

// A panic while keys are read is a fetch that failed.
func TestPanicOfAFetch(t *testing.T) {
	k := keysFrom(t, "127.0.0.1:1", time.Second)
	k.fetch = func(context.Context) ([]byte, error) { panic("odd") }
	if err := k.load(t.Context()); err == nil || !strings.Contains(err.Error(), "panic: odd") {
		t.Error(err)
	}
}

// keysFrom is a key set of a server that fetches only when it is told to.
func keysFrom(t testing.TB, addr string, within time.Duration) *KeySet {
	t.Helper()
	source := policy.JWKS{URL: "http://" + addr, Timeout: within}
	f, err := newFetcher(source)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.close)
	return &KeySet{source: source, allowed: []string{"EdDSA", "RS256", "ES256"}, log: slog.New(slog.DiscardHandler), fetch: f.get}
}

// FuzzKeyServer: any bytes in answer to a fetch.
func FuzzKeyServer(f *testing.F) {
	for _, page := range envoytest.Pages() {
		if len(page) < 1000 {
			f.Add(page)
		}
	}
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Length: 62\r\n\r\n" + `{"keys":[{"kty":"OKP","crv":"Ed25519","x":"AAAA"}, {"kty":1}]}`))
	f.Add([]byte("HTTP/1.1 302 Found\r\nLocation: //\r\nContent-Length: 0\r\n\r\n"))
	f.Fuzz(func(t *testing.T, page []byte) {
		if len(page) > 1<<16 {
			return
		}
		k := keysFrom(t, envoytest.StartParrot(t, page).Addr, 30*time.Millisecond)
		began := time.Now()
		_ = k.load(t.Context())
		if took := time.Since(began); took > time.Second {
			t.Errorf("took %v", took)
		}
	})
}
