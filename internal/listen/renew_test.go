package listen

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

// TestRenewed: a new certificate is taken at the next handshake; one that
// cannot be read, a pipe for one, keeps the last good pair and waits for
// nobody.
func TestRenewed(t *testing.T) {
	dir := t.TempDir()
	r := &renewed{files: &policy.TLS{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}}
	serial := func() int64 {
		t.Helper()
		pair, err := r.get(nil)
		if err != nil {
			t.Fatal(err)
		}
		return pair.Leaf.SerialNumber.Int64()
	}
	if _, err := r.get(nil); err == nil {
		t.Error("no certificate is no error")
	}
	writePair(t, r.files, 1)
	if n := serial(); n != 1 {
		t.Errorf("certificate %d, want 1", n)
	}
	writePair(t, r.files, 2)
	if n := serial(); n != 2 {
		t.Errorf("certificate %d, want 2", n)
	}
	for name, spoil := range map[string]func() error{
		"a broken one": func() error { return os.WriteFile(r.files.Cert, []byte("nothing"), 0o600) },
		"a pipe":       func() error { return syscall.Mkfifo(r.files.Cert, 0o600) },
		"none":         func() error { return nil },
	} {
		if err := os.Remove(r.files.Cert); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		if n := serial(); n != 2 {
			t.Errorf("%s: certificate %d, want the last good one", name, n)
		}
	}
}

// writePair writes a certificate with a serial number of its own; its files
// are as old as the number says.
func writePair(t *testing.T, files *policy.TLS, serial int64) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour)}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	changed := time.Unix(1_900_000_000+serial, 0)
	for name, b := range map[string]*pem.Block{files.Cert: {Type: "CERTIFICATE", Bytes: cert}, files.Key: {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(b), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(name, changed, changed); err != nil {
			t.Fatal(err)
		}
	}
}
