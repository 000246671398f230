package authz

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/identity"
	"github.com/weirproxy/weir/policy"
)

// keyServer is an issuer's key server in virtual time.
type keyServer struct {
	mu    sync.Mutex
	doc   []byte
	err   error
	slow  time.Duration
	asked []time.Time
}

func (s *keyServer) serve(ctx context.Context) ([]byte, error) {
	s.mu.Lock()
	s.asked = append(s.asked, time.Now())
	doc, err, slow := s.doc, s.err, s.slow
	s.mu.Unlock()
	if slow > 0 {
		select {
		case <-time.After(slow):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return doc, err
}

func (s *keyServer) set(doc []byte, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.doc, s.err = doc, err
}

func (s *keyServer) fetches() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.asked)
}

var jwksTimes = policy.JWKS{
	URL: "https://keys.example/", Refresh: 5 * time.Minute, MinRefresh: 10 * time.Second, StaleFor: time.Hour, Timeout: 2 * time.Second,
}

// fetched makes a verifier whose issuer's keys come from the server. To be
// called inside a bubble.
func fetched(t *testing.T, s *keyServer) *Verifier { return fetchedBy(t, s, jwksTimes) }

func fetchedBy(t *testing.T, s *keyServer, source policy.JWKS) *Verifier {
	t.Helper()
	p := policy.Default().Identity
	p.MaxLifetime = 0
	p.Issuers = []policy.Issuer{{Issuer: "https://id.example", Audiences: []string{"llm"}, JWKS: source}}
	v := &Verifier{log: slog.New(slog.DiscardHandler)}
	k := &KeySet{source: source, allowed: p.Algorithms, log: v.log, random: newRandom(7)}
	k.start(s.serve, func() {})
	v.current.Store(&rules{
		policy: p, accepted: newCache(1024), refused: newCache(1024),
		issuers: map[string]*issuer{"https://id.example": {name: "https://id.example", audiences: []string{"llm"}, allowed: p.Algorithms, keys: k}},
	})
	return v
}

// longClaims outlast every test.
func longClaims() map[string]any {
	return goodClaims(map[string]any{"iat": absent, "exp": int64(4102444800)})
}

func code(t *testing.T, v *Verifier, raw string) string {
	t.Helper()
	return codeAt(t, v, time.Now(), "Bearer "+raw)
}

// TestRotation: a new key is picked up at its first token, a withdrawn one is
// refused within the refresh time, also for tokens that were remembered.
func TestRotation(t *testing.T) {
	a, b := keyPair(t, "EdDSA", "a"), keyPair(t, "EdDSA", "b")
	docA, docAB, docB := keySetOf(t, a.public), keySetOf(t, a.public, b.public), keySetOf(t, b.public)
	byA, byB := a.sign(t, longClaims()), b.sign(t, longClaims())
	synctest.Test(t, func(t *testing.T) {
		s := &keyServer{doc: docA}
		v := fetched(t, s)
		defer v.Close()
		synctest.Wait()
		if got := code(t, v, byA); got != "" {
			t.Fatalf("A: %q", got)
		}
		s.set(docAB, nil)
		if got := code(t, v, byB); got != identity.CodeTokenKey {
			t.Fatalf("B within minRefresh of the last fetch: %q", got)
		}
		time.Sleep(jwksTimes.MinRefresh)
		if got := code(t, v, byB); got != "" {
			t.Fatalf("B after minRefresh: %q", got)
		}
		s.set(docB, nil)
		withdrawn := time.Now()
		for code(t, v, byA) == "" {
			if time.Since(withdrawn) > jwksTimes.Refresh {
				t.Fatal("A is accepted after the refresh time")
			}
			time.Sleep(time.Second)
		}
		if got := code(t, v, byB); got != "" {
			t.Errorf("B: %q", got)
		}
	})
}

// TestUnknownKidFlood: 1,000 tokens with random key ids in 10 s cause at most
// one fetch for each minRefresh, and good tokens are not delayed.
func TestUnknownKidFlood(t *testing.T) {
	k := keyPair(t, "EdDSA", "k")
	doc, good := keySetOf(t, k.public), k.sign(t, longClaims())
	raws := make([]string, 1000)
	for i := range raws {
		raws[i] = k.signer.WithKeyID("random-"+string(rune('a'+i%26))+strings.Repeat("x", i%50)).mustSign(t, longClaims())
	}
	synctest.Test(t, func(t *testing.T) {
		s := &keyServer{doc: doc, slow: time.Second}
		v := fetched(t, s)
		defer v.Close()
		time.Sleep(2 * time.Second) // the first fetch is done
		before := s.fetches()
		for _, raw := range raws {
			go func() {
				if got := code(t, v, raw); got != identity.CodeTokenKey {
					t.Errorf("random kid: %q", got)
				}
			}()
			start := time.Now()
			if got := code(t, v, good); got != "" || time.Since(start) != 0 {
				t.Errorf("good token: %q after %v", got, time.Since(start))
			}
			time.Sleep(10 * time.Millisecond)
		}
		if n := s.fetches() - before; n > 1 {
			t.Errorf("%d fetches in 10 s", n)
		}
		time.Sleep(time.Minute)
	})
}

// TestUnknownKidWaitsBriefly: the token that causes a fetch waits for it, but
// not long.
func TestUnknownKidWaitsBriefly(t *testing.T) {
	a, b := keyPair(t, "EdDSA", "a"), keyPair(t, "EdDSA", "b")
	docA, docB, raw := keySetOf(t, a.public), keySetOf(t, b.public), b.sign(t, longClaims())
	for slow, want := range map[time.Duration]string{50 * time.Millisecond: "", time.Second: identity.CodeTokenKey} {
		synctest.Test(t, func(t *testing.T) {
			s := &keyServer{doc: docA}
			v := fetched(t, s)
			defer v.Close()
			time.Sleep(jwksTimes.MinRefresh)
			s.set(docB, nil)
			s.mu.Lock()
			s.slow = slow
			s.mu.Unlock()
			start := time.Now()
			if got := code(t, v, raw); got != want {
				t.Errorf("key server takes %v: %q, want %q", slow, got, want)
			}
			if took := time.Since(start); took > keyWait {
				t.Errorf("waited %v", took)
			}
			time.Sleep(2 * time.Second)
			if got := code(t, v, raw); got != "" {
				t.Errorf("after the fetch: %q", got)
			}
		})
	}
}

// TestKeyServerDown: the last keys serve for refresh + staleFor, then every
// token is refused as unavailable, and the first good answer heals it.
func TestKeyServerDown(t *testing.T) {
	k := keyPair(t, "EdDSA", "k")
	doc, raw := keySetOf(t, k.public), k.sign(t, longClaims())
	for name, fault := range map[string]func(*keyServer){
		"refuses":          func(s *keyServer) { s.set(nil, errors.New("refused")) },
		"serves no JSON":   func(s *keyServer) { s.set([]byte("<html>"), nil) },
		"serves odd keys":  func(s *keyServer) { s.set([]byte(`{"keys":[{"kty":"AKP"}]}`), nil) },
		"serves 2 MiB":     func(s *keyServer) { s.set(make([]byte, 2<<20), nil) },
		"hangs":            func(s *keyServer) { s.mu.Lock(); s.slow = time.Hour; s.mu.Unlock() },
		"serves no 'keys'": func(s *keyServer) { s.set([]byte(`{}`), nil) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &keyServer{doc: doc}
				v := fetched(t, s)
				defer v.Close()
				synctest.Wait()
				loaded := time.Now()
				fault(s)
				time.Sleep(jwksTimes.Refresh + jwksTimes.StaleFor - time.Minute)
				if got := code(t, v, raw); got != "" {
					t.Fatalf("stale keys after %v: %q", time.Since(loaded), got)
				}
				if st := v.Stats().KeySets[0]; !st.Usable || st.Failed == 0 || st.Age < time.Hour {
					t.Errorf("stats %+v", st)
				}
				time.Sleep(2 * time.Minute)
				if got := code(t, v, raw); got != identity.CodeKeysUnavailable {
					t.Fatalf("after %v: %q", time.Since(loaded), got)
				}
				if v.Ready() {
					t.Error("ready without usable keys")
				}
				// What can be refused without keys still is: it is the caller's fault.
				if got := code(t, v, "x.y.z"); got != identity.CodeTokenMalformed {
					t.Errorf("garbage: %q", got)
				}
				s.mu.Lock()
				s.slow = 0
				s.mu.Unlock()
				s.set(doc, nil)
				time.Sleep(jwksTimes.MinRefresh + jwksTimes.Timeout)
				if got := code(t, v, raw); got != "" {
					t.Errorf("healed: %q", got)
				}
			})
		})
	}
}

// TestFirstFetch: before the first set arrives tokens are refused as
// unavailable, and the server is asked again soon.
func TestFirstFetch(t *testing.T) {
	k := keyPair(t, "EdDSA", "k")
	doc, raw := keySetOf(t, k.public), k.sign(t, longClaims())
	synctest.Test(t, func(t *testing.T) {
		s := &keyServer{err: errors.New("refused")}
		v := fetched(t, s)
		defer v.Close()
		synctest.Wait()
		if got := code(t, v, raw); got != identity.CodeKeysUnavailable {
			t.Fatalf("got %q", got)
		}
		if st := v.Stats().KeySets[0]; st.Usable || st.Keys != 0 {
			t.Errorf("stats %+v", st)
		}
		s.set(doc, nil)
		time.Sleep(time.Second)
		if got := code(t, v, raw); got != "" {
			t.Errorf("a second later: %q", got)
		}
	})
}

// TestEmptySet: an answer without keys is a bad one: the keys at hand go on,
// and it is told; where the policy says so it is the issuer's word.
func TestEmptySet(t *testing.T) {
	k := keyPair(t, "EdDSA", "k")
	doc, raw := keySetOf(t, k.public), k.sign(t, longClaims())
	for _, empty := range []string{`{"keys":[]}`, `{"keys":[{"kty":"oct","k":"AA"}]}`, `{"keys":null}`, `[]`} {
		synctest.Test(t, func(t *testing.T) {
			s := &keyServer{doc: doc}
			v := fetched(t, s)
			defer v.Close()
			synctest.Wait()
			s.set([]byte(empty), nil)
			time.Sleep(2 * jwksTimes.Refresh)
			stats := v.Stats().KeySets[0]
			if got := code(t, v, raw); got != "" || !v.Ready() || stats.Keys != 1 || stats.Failed == 0 || stats.Trouble == "" {
				t.Errorf("%s: got %q, %+v", empty, got, stats)
			}
			time.Sleep(jwksTimes.StaleFor)
			if got := code(t, v, raw); got != identity.CodeKeysUnavailable || v.Ready() {
				t.Errorf("%s: stale: got %q", empty, got)
			}
			s.set(doc, nil)
			time.Sleep(jwksTimes.Refresh)
			if got := code(t, v, raw); got != "" || v.Stats().KeySets[0].Trouble != "" {
				t.Errorf("%s: back: got %q, %+v", empty, got, v.Stats())
			}
		})
	}
}

// TestAllKeysWithdrawn: where the policy says so, an empty set is the issuer's
// word.
func TestAllKeysWithdrawn(t *testing.T) {
	source := jwksTimes
	source.AllowEmpty = true
	k := keyPair(t, "EdDSA", "k")
	doc, raw := keySetOf(t, k.public), k.sign(t, longClaims())
	synctest.Test(t, func(t *testing.T) {
		s := &keyServer{doc: doc}
		v := fetchedBy(t, s, source)
		defer v.Close()
		synctest.Wait()
		s.set([]byte(`{"keys":[]}`), nil)
		time.Sleep(jwksTimes.Refresh)
		if got := code(t, v, raw); got != identity.CodeTokenKey {
			t.Errorf("got %q", got)
		}
	})
}

// TestReloadFile: a changed file takes effect at once, also on remembered
// tokens; a bad one changes nothing.
func TestReloadFile(t *testing.T) {
	a, b := keyPair(t, "EdDSA", "a"), keyPair(t, "EdDSA", "b")
	p := identityPolicy(t, a.public)
	v := newVerifier(t, p)
	file := p.Issuers[0].JWKS.File
	byA, byB := a.sign(t, goodClaims(nil)), b.sign(t, goodClaims(nil))
	verifyOne(t, v, byA)
	if got := codeAt(t, v, noon, "Bearer "+byB); got != identity.CodeTokenKey {
		t.Fatalf("B before: %q", got)
	}
	for _, bad := range []string{"", "{", `{"keys":[{"kty":"oct","k":"AA"}]}`} {
		if err := os.WriteFile(file, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := v.Reload(); err == nil || !strings.Contains(err.Error(), filepath.Base(file)) {
			t.Errorf("reload of %q: %v", bad, err)
		}
		verifyOne(t, v, byA)
	}
	for what, replace := range map[string]func() error{ // Reload neither waits nor reads for ever
		"a pipe":   func() error { return syscall.Mkfifo(file, 0o600) },
		"a device": func() error { return os.Symlink("/dev/zero", file) },
	} {
		if err := errors.Join(os.Remove(file), replace()); err != nil {
			t.Fatal(err)
		}
		if err := v.Reload(); err == nil || !strings.Contains(err.Error(), "is not a plain file") {
			t.Errorf("reload of %s: %v", what, err)
		}
		verifyOne(t, v, byA)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	writeKeySet(t, file, b.public)
	if err := v.Reload(); err != nil {
		t.Fatal(err)
	}
	if got := codeAt(t, v, noon, "Bearer "+byA); got != identity.CodeTokenKey {
		t.Errorf("A after: %q", got)
	}
	verifyOne(t, v, byB)
	if files := v.Files(); len(files) != 1 || files[0] != file {
		t.Errorf("files %v", files)
	}
	if st := v.Stats().KeySets[0]; st.Failed != 5 || st.Keys != 1 || !st.Usable || st.Age != 0 || !v.Ready() {
		t.Errorf("stats %+v", st)
	}
}

// TestUpdate: another policy forgets what was remembered and keeps the key
// sets that are the same; a bad policy changes nothing.
func TestUpdate(t *testing.T) {
	k := keyPair(t, "EdDSA", "k")
	p := identityPolicy(t, k.public)
	v := newVerifier(t, p)
	raw := k.sign(t, goodClaims(nil))
	verifyOne(t, v, raw)
	keys := v.current.Load().issuers["https://id.example"].keys
	next := *p
	next.Issuers = []policy.Issuer{p.Issuers[0]}
	next.Issuers[0].Audiences = []string{"other"}
	if err := v.Update(&next); err != nil {
		t.Fatal(err)
	}
	if got := codeAt(t, v, noon, "Bearer "+raw); got != identity.CodeTokenAudience {
		t.Errorf("got %q", got)
	}
	if v.current.Load().issuers["https://id.example"].keys != keys {
		t.Error("the key set was loaded again")
	}
	bad := next
	bad.Issuers = []policy.Issuer{{Issuer: "x"}}
	if err := v.Update(&bad); err == nil || !strings.Contains(err.Error(), "identity.issuers[0]") {
		t.Errorf("bad policy: %v", err)
	}
	if got := codeAt(t, v, noon, "Bearer "+raw); got != identity.CodeTokenAudience {
		t.Errorf("after a bad policy: %q", got)
	}
}
