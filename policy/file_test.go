package policy

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Only plain files of a bounded length are read; a pipe without a writer and
// a device without an end do not hold anybody up.
func TestReadFile(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, err := range map[string]error{
		"file": os.WriteFile(at("file"), []byte("12345"), 0o600),
		"link": os.Symlink(at("file"), at("link")),
		"pipe": syscall.Mkfifo(at("pipe"), 0o600),
		"zero": os.Symlink("/dev/zero", at("zero")),
		"loop": os.Symlink(at("loop"), at("loop")),
	} {
		if err != nil {
			t.Fatal(name, err)
		}
	}
	for _, name := range []string{"file", "link"} {
		if data, err := ReadFile(at(name), 5); err != nil || string(data) != "12345" {
			t.Errorf("%s: %q, %v", name, data, err)
		}
		if data, err := ReadFile(at(name), 4); err == nil || data != nil {
			t.Errorf("%s of one byte too many: %q", name, data)
		}
	}
	for _, name := range []string{"pipe", "zero", "."} {
		if _, err := ReadFile(at(name), 5); !errors.Is(err, errNotPlain) {
			t.Errorf("%q: %v, want that it is not a plain file", name, err)
		}
	}
	for _, name := range []string{"loop", "none"} {
		if _, err := ReadFile(at(name), 5); err == nil {
			t.Errorf("%s was read", name)
		}
	}
}

// Certificates and keys are read from plain files alone, and an error names
// the file at fault.
func TestReadCertificates(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"cert":  os.WriteFile(at("cert"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), 0o600),
		"key":   os.WriteFile(at("key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600),
		"empty": os.WriteFile(at("empty"), nil, 0o600),
		"pipe":  syscall.Mkfifo(at("pipe"), 0o600),
	} {
		if err != nil {
			t.Fatal(name, err)
		}
	}
	if pool, err := ReadCAs(at("cert")); err != nil || pool == nil {
		t.Errorf("CAs: %v", err)
	}
	for _, name := range []string{"key", "empty", "pipe", "none"} {
		if _, err := ReadCAs(at(name)); err == nil || !strings.Contains(err.Error(), at(name)) {
			t.Errorf("CAs of %s: %v, want an error that names the file", name, err)
		}
	}
	if pair, err := ReadPair(at("cert"), at("key")); err != nil || len(pair.Certificate) != 1 {
		t.Errorf("pair: %v", err)
	}
	for _, pair := range [][2]string{{"cert", "pipe"}, {"pipe", "key"}, {"cert", "empty"}, {"key", "cert"}, {"none", "key"}} {
		if _, err := ReadPair(at(pair[0]), at(pair[1])); err == nil || !strings.Contains(err.Error(), dir) {
			t.Errorf("pair %v: %v, want an error that names the file", pair, err)
		}
	}
}
