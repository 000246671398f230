package authz

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirproxy/weir/identity"
	"github.com/weirproxy/weir/policy"
)

// TestFetcher talks to a real HTTP server.
func TestFetcher(t *testing.T) {
	k := keyPair(t, "EdDSA", "k")
	doc := keySetOf(t, k.public)
	var hits atomic.Int64
	mux := http.NewServeMux()
	mux.HandleFunc("/good", func(w http.ResponseWriter, _ *http.Request) { hits.Add(1); _, _ = w.Write(doc) })
	mux.HandleFunc("/moved", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/good", http.StatusFound) })
	mux.HandleFunc("/loop", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/loop", http.StatusFound) })
	mux.HandleFunc("/500", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500); _, _ = w.Write(doc) })
	mux.HandleFunc("/big", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, maxKeySet+1)) })
	plain := httptest.NewServer(mux)
	defer plain.Close()
	secure := httptest.NewTLSServer(mux)
	defer secure.Close()
	mux.HandleFunc("/down", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, plain.URL+"/good", http.StatusFound)
	})
	elsewhere := httptest.NewServer(mux)
	defer elsewhere.Close()
	mux.HandleFunc("/elsewhere", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere.URL+"/good", http.StatusFound)
	})
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pemOf(secure.Certificate().Raw), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, url, ca string
		ok            bool
	}{
		{"http", plain.URL + "/good", "", true},
		{"redirect", plain.URL + "/moved", "", true},
		{"https with its CA", secure.URL + "/good", ca, true},
		{"https without its CA", secure.URL + "/good", "", false},
		{"https to http", secure.URL + "/down", ca, false},
		{"http to another host", plain.URL + "/elsewhere", "", false},
		{"endless redirects", plain.URL + "/loop", "", false},
		{"500 with a body", plain.URL + "/500", "", false},
		{"404", plain.URL + "/none", "", false},
		{"too large", plain.URL + "/big", "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, err := newFetcher(policy.JWKS{URL: c.url, CA: c.ca, Timeout: 2 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			defer f.close()
			data, err := f.get(t.Context())
			if (err == nil) != c.ok || c.ok && string(data) != string(doc) {
				t.Errorf("got %d bytes, %v", len(data), err)
			}
		})
	}
	if _, err := newFetcher(policy.JWKS{URL: secure.URL, CA: os.DevNull}); err == nil {
		t.Error("an empty CA file is accepted")
	}

	p := identityPolicy(t, k.public)
	p.Issuers[0].JWKS = jwksTimes
	p.Issuers[0].JWKS.URL = plain.URL + "/good"
	v := newVerifier(t, p)
	<-firstFetch(v)
	verifyOneNow(t, v, k.sign(t, longClaims()), p)
	if hits.Load() == 0 || v.Stats().KeySets[0].Fetches == 0 {
		t.Error("the key server was not asked")
	}
}

// firstFetch is closed when the first fetch has ended.
func firstFetch(v *Verifier) chan struct{} {
	k := v.current.Load().issuers["https://id.example"].keys
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.pending == nil {
		done := make(chan struct{})
		close(done)
		return done
	}
	return k.pending
}

func verifyOneNow(t *testing.T, v *Verifier, raw string, p *policy.Identity) {
	t.Helper()
	p.MaxLifetime = 0
	if err := v.Update(p); err != nil {
		t.Fatal(err)
	}
	id, err := v.Verify(t.Context(), authHeader("Bearer "+raw))
	if err != nil || id.Tenant != "acme" {
		t.Fatalf("got %v, %v", id, err)
	}
	if _, err := v.Verify(t.Context(), authHeader()); err == nil {
		t.Fatal("no token, no error")
	} else if d, ok := identity.AsDenial(err); !ok || d.Code != identity.CodeTokenMissing {
		t.Fatalf("got %v", err)
	}
}
