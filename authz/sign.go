package authz

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/lestrrat-go/jwx/v3/jwa"
	"github.com/lestrrat-go/jwx/v3/jwk"
	"github.com/lestrrat-go/jwx/v3/jws"
)

// Signer signs tokens: for the command line, for tests, and for whoever
// issues keys of its own. It is immutable.
type Signer struct {
	sign jwa.SignatureAlgorithm
	alg  string
	kid  string
	key  any
}

// NewSigner reads a private JWK (RFC 7517). alg is the algorithm to sign
// with; empty means the key's own, else the usual one of its type (EdDSA,
// ES256, RS256).
func NewSigner(privateJWK []byte, alg string) (*Signer, error) {
	m, err := decodeObject(privateJWK)
	if err != nil {
		return nil, fmt.Errorf("private key: %w", err)
	}
	if _, private := m["d"]; !private {
		return nil, errors.New("private key: no private part (d)")
	}
	parsed, err := jwk.ParseKey(privateJWK)
	if err != nil {
		return nil, errors.New("private key: is not a valid JWK")
	}
	s := &Signer{}
	if err := jwk.Export(parsed, &s.key); err != nil {
		return nil, errors.New("private key: is not a usable key")
	}
	kind, err := privateKind(s.key)
	if err != nil {
		return nil, err
	}
	named := m["alg"]
	if alg != "" && named != nil && named != alg {
		return nil, fmt.Errorf("private key: is for another algorithm than %s", alg)
	}
	if alg != "" {
		named = alg
	}
	if s.alg, err = pin(named, kind, signing); err != nil {
		return nil, fmt.Errorf("private key: %w", err)
	}
	s.sign = algorithms[s.alg].sign
	s.kid, _ = m["kid"].(string)
	return s, nil
}

// signing lists all algorithms in the order in which a key without one takes
// its own.
var signing = []string{"EdDSA", "ES256", "ES384", "ES512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}

func privateKind(key any) (string, error) {
	switch k := key.(type) {
	case ed25519.PrivateKey:
		return okp, nil
	case *ecdsa.PrivateKey:
		return k.Params().Name, nil
	case *rsa.PrivateKey:
		if n := k.N.BitLen(); n < minRSABits || n > maxRSABits {
			return "", fmt.Errorf("private key: RSA of %d bits; %d to %d are allowed", n, minRSABits, maxRSABits)
		}
		return rsaKey, nil
	}
	return "", errors.New("private key: is not a key for signatures")
}

// WithKeyID returns a signer that names another key id in its tokens.
func (s *Signer) WithKeyID(kid string) *Signer {
	c := *s
	c.kid = kid
	return &c
}

// Sign makes a token of the claims.
func (s *Signer) Sign(claims map[string]any) (string, error) {
	payload, err := json.Marshal(claims)
	if err != nil {
		return "", fmt.Errorf("sign: %w", err)
	}
	h := jws.NewHeaders()
	if err := h.Set(jws.TypeKey, "JWT"); err != nil {
		return "", fmt.Errorf("sign: %w", err)
	}
	if s.kid != "" {
		if err := h.Set(jws.KeyIDKey, s.kid); err != nil {
			return "", fmt.Errorf("sign: %w", err)
		}
	}
	signed, err := jws.Sign(payload, jws.WithKey(s.sign, s.key, jws.WithProtectedHeaders(h)))
	if err != nil {
		return "", fmt.Errorf("sign: %w", err)
	}
	return string(signed), nil
}

// GenerateKey makes a key pair for an algorithm: the private JWK and a JWK set
// with the public one. An empty kid becomes the key's thumbprint (RFC 7638).
func GenerateKey(alg, kid string) (private, publicSet []byte, err error) {
	raw, public, err := newPair(alg)
	if err != nil {
		return nil, nil, err
	}
	key, err := jwk.Import(raw)
	if err != nil {
		return nil, nil, fmt.Errorf("generate key: %w", err)
	}
	pub, err := jwk.Import(public)
	if err != nil {
		return nil, nil, fmt.Errorf("generate key: %w", err)
	}
	if kid == "" {
		sum, err := pub.Thumbprint(crypto.SHA256)
		if err != nil {
			return nil, nil, fmt.Errorf("generate key: %w", err)
		}
		kid = base64.RawURLEncoding.EncodeToString(sum)
	}
	for _, k := range []jwk.Key{key, pub} {
		for _, f := range []struct {
			name  string
			value any
		}{{jwk.KeyIDKey, kid}, {jwk.AlgorithmKey, algorithms[alg].sign}, {jwk.KeyUsageKey, "sig"}} {
			if err := k.Set(f.name, f.value); err != nil {
				return nil, nil, fmt.Errorf("generate key: %w", err)
			}
		}
	}
	if private, err = json.MarshalIndent(key, "", "  "); err != nil {
		return nil, nil, fmt.Errorf("generate key: %w", err)
	}
	publicSet, err = json.MarshalIndent(map[string]any{"keys": []any{pub}}, "", "  ")
	return private, publicSet, err
}

func newPair(alg string) (private, public any, err error) {
	switch a := algorithms[alg]; a.kind {
	case okp:
		pub, key, err := ed25519.GenerateKey(rand.Reader)
		return key, pub, err
	case rsaKey:
		key, err := rsa.GenerateKey(rand.Reader, minRSABits)
		if err != nil {
			return nil, nil, err
		}
		return key, &key.PublicKey, nil
	case "P-256", "P-384", "P-521":
		curve := map[string]elliptic.Curve{"P-256": elliptic.P256(), "P-384": elliptic.P384(), "P-521": elliptic.P521()}[a.kind]
		key, err := ecdsa.GenerateKey(curve, rand.Reader)
		if err != nil {
			return nil, nil, err
		}
		return key, &key.PublicKey, nil
	}
	return nil, nil, fmt.Errorf("algorithm %q is not supported", alg)
}
