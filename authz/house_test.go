package authz

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weirproxy/weir/identity"
	"github.com/weirproxy/weir/policy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// noon is the instant at which tokens are judged where a test does not say
// otherwise.
var noon = time.Date(2030, 3, 1, 12, 0, 0, 0, time.UTC)

// pair is a key pair of a test.
type pair struct {
	signer *Signer
	public map[string]any // the public JWK
}

// pairs keeps key pairs by algorithm and name: RSA keys take long to make.
var pairs sync.Map

func keyPair(tb testing.TB, alg, kid string) pair {
	tb.Helper()
	if p, ok := pairs.Load(alg + "/" + kid); ok {
		return p.(pair)
	}
	private, set, err := GenerateKey(alg, kid)
	if err != nil {
		tb.Fatal(err)
	}
	signer, err := NewSigner(private, "")
	if err != nil {
		tb.Fatal(err)
	}
	doc, err := decodeObject(set)
	if err != nil {
		tb.Fatal(err)
	}
	p := pair{signer, doc["keys"].([]any)[0].(map[string]any)}
	pairs.Store(alg+"/"+kid, p)
	return p
}

// without is the public key less some members.
func (p pair) without(members ...string) map[string]any {
	m := maps.Clone(p.public)
	for _, name := range members {
		delete(m, name)
	}
	return m
}

func (p pair) sign(tb testing.TB, claims map[string]any) string {
	tb.Helper()
	t, err := p.signer.Sign(claims)
	if err != nil {
		tb.Fatal(err)
	}
	return t
}

func keySetOf(tb testing.TB, keys ...any) []byte {
	tb.Helper()
	data, err := json.Marshal(map[string]any{"keys": keys})
	if err != nil {
		tb.Fatal(err)
	}
	return data
}

func writeKeySet(tb testing.TB, path string, keys ...any) {
	tb.Helper()
	if err := os.WriteFile(path, keySetOf(tb, keys...), 0o600); err != nil {
		tb.Fatal(err)
	}
}

// identityPolicy is the default policy's, with one issuer whose keys are in a
// file.
func identityPolicy(tb testing.TB, keys ...any) *policy.Identity {
	tb.Helper()
	p := policy.Default().Identity
	file := filepath.Join(tb.TempDir(), "jwks.json")
	writeKeySet(tb, file, keys...)
	p.Issuers = []policy.Issuer{{Issuer: "https://id.example", Audiences: []string{"llm", "llm-eu"}, JWKS: policy.JWKS{File: file}}}
	return &p
}

func newVerifier(tb testing.TB, p *policy.Identity) *Verifier {
	tb.Helper()
	v, err := NewVerifier(p, Options{Seed: 1})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(v.Close)
	return v
}

// goodClaims are accepted at noon; change replaces, and removes where the
// value is absent.
func goodClaims(change map[string]any) map[string]any {
	c := map[string]any{
		"iss": "https://id.example", "aud": "llm", "tenant": "acme", "sub": "ann",
		"scope": "llm_service chat_completion", "iat": noon.Unix() - 60, "exp": noon.Unix() + 3600,
	}
	for k, v := range change {
		if v == absent {
			delete(c, k)
		} else {
			c[k] = v
		}
	}
	return c
}

const absent = "\x00absent"

// authHeader gives Authorization and nothing else.
func authHeader(values ...string) Headers {
	return func(name string) []string {
		if name == "authorization" {
			return values
		}
		return nil
	}
}

// codeAt verifies a token at an instant and gives "" or the denial's code. It
// checks what holds for every denial.
func codeAt(tb testing.TB, v *Verifier, now time.Time, values ...string) string {
	tb.Helper()
	who, d := v.verify(context.Background(), now, authHeader(values...))
	if d == nil {
		if who == nil || who.id.Tenant == "" {
			tb.Fatalf("accepted without an identity: %+v", who)
		}
		return ""
	}
	if who != nil {
		tb.Fatal("a denial with an identity")
	}
	if !slices.Contains([]int{401, 403, 503}, d.Status) || d.Message == "" || (d.Status != 503) != (d.Challenge != "") {
		tb.Fatalf("denial %+v", d)
	}
	return d.Code
}

func verifyOne(tb testing.TB, v *Verifier, raw string) *identity.Identity {
	tb.Helper()
	who, d := v.verify(context.Background(), noon, authHeader("Bearer "+raw))
	if d != nil {
		tb.Fatalf("denied: %v", d)
	}
	return who.id
}

func newRandom(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 1)) }

func pemOf(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
