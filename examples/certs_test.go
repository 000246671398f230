package examples_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// authority is a certificate authority of one test.
type authority struct {
	t    *testing.T
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	der  []byte
}

type leaf struct {
	der []byte
	key *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t}
	a.der, a.key = a.make(&x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, nil)
	var err error
	if a.cert, err = x509.ParseCertificate(a.der); err != nil {
		t.Fatal(err)
	}
	return a
}

func (a *authority) issue(name string) *leaf {
	der, key := a.make(&x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}, a.cert)
	return &leaf{der, key}
}

func (a *authority) make(c, parent *x509.Certificate) ([]byte, *ecdsa.PrivateKey) {
	a.t.Helper()
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	signer := a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	return der, key
}

// write writes a leaf, or the authority's own certificate for nil.
func (a *authority) write(dir, cert, key string, l *leaf) {
	a.t.Helper()
	der := a.der
	if l != nil {
		der = l.der
		raw, err := x509.MarshalECPrivateKey(l.key)
		if err != nil {
			a.t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, key), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw}), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, cert), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		a.t.Fatal(err)
	}
}
