package listen

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

// authority signs the certificates of one test.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{t, cert, key}
}

// sign makes a certificate; change changes what it says.
func (a *authority) sign(change func(*x509.Certificate)) tls.Certificate {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(2), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}}
	change(template)
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// files writes the authority and a server's pair.
func (a *authority) files() *policy.TLS {
	a.t.Helper()
	dir := a.t.TempDir()
	pair := a.sign(func(c *x509.Certificate) { c.DNSNames = []string{"weir"} })
	private, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		a.t.Fatal(err)
	}
	t := &policy.TLS{Cert: filepath.Join(dir, "cert"), Key: filepath.Join(dir, "key"), ClientCA: filepath.Join(dir, "ca")}
	for name, b := range map[string]*pem.Block{
		t.Cert: {Type: "CERTIFICATE", Bytes: pair.Certificate[0]}, t.Key: {Type: "PRIVATE KEY", Bytes: private}, t.ClientCA: {Type: "CERTIFICATE", Bytes: a.cert.Raw},
	} {
		if err := os.WriteFile(name, pem.EncodeToMemory(b), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	return t
}

// TestClientNames: a connection is served to a client whose certificate the
// authority signed, is in force, is meant for clients and has a listed name;
// to nobody else, also when a session is resumed.
func TestClientNames(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	dns := func(names ...string) func(*x509.Certificate) {
		return func(c *x509.Certificate) { c.DNSNames = names }
	}
	uri := func(s string) func(*x509.Certificate) {
		u, err := url.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		return func(c *x509.Certificate) { c.URIs = []*url.URL{u} }
	}
	both := func(list ...func(*x509.Certificate)) func(*x509.Certificate) {
		return func(c *x509.Certificate) {
			for _, f := range list {
				f(c)
			}
		}
	}
	names := []string{"envoy.example", "spiffe://mesh/envoy/*"}
	for name, tt := range map[string]struct {
		by      *authority
		cert    func(*x509.Certificate) // nil = none is shown
		clients []string
		served  bool
	}{
		"its name":               {ca, dns("envoy.example"), names, true},
		"one of its names":       {ca, dns("a.example", "envoy.example"), names, true},
		"a prefix":               {ca, uri("spiffe://mesh/envoy/edge-1"), names, true},
		"no names listed":        {ca, dns("a.example"), nil, true},
		"another name":           {ca, dns("a.example"), names, false},
		"a longer name":          {ca, dns("envoy.example.org"), names, false},
		"a subdomain":            {ca, dns("x.envoy.example"), names, false},
		"another prefix":         {ca, uri("spiffe://mesh/envoyx/edge-1"), names, false},
		"the common name alone":  {ca, func(c *x509.Certificate) { c.Subject.CommonName = "envoy.example" }, names, false},
		"a wildcard":             {ca, dns("*.example"), names, false},
		"no certificate":         {ca, nil, names, false},
		"no certificate, none":   {ca, nil, nil, false},
		"another authority":      {other, dns("envoy.example"), names, false},
		"another, no names":      {other, dns("envoy.example"), nil, false},
		"expired":                {ca, both(dns("envoy.example"), func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }), names, false},
		"not yet valid":          {ca, both(dns("envoy.example"), func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Minute) }), names, false},
		"meant for servers":      {ca, both(dns("envoy.example"), func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }), names, false},
		"its name, case differs": {ca, dns("ENVOY.example"), names, false},
	} {
		t.Run(name, func(t *testing.T) {
			files := ca.files()
			files.Clients = tt.clients
			server, err := TLS(files)
			if err != nil {
				t.Fatal(err)
			}
			roots := x509.NewCertPool()
			roots.AddCert(ca.cert)
			client := &tls.Config{RootCAs: roots, ServerName: "weir", ClientSessionCache: tls.NewLRUClientSessionCache(1)}
			if tt.cert != nil {
				client.Certificates = []tls.Certificate{tt.by.sign(tt.cert)}
			}
			for i := range 2 { // the second resumes, where the first was served
				if err := exchange(t, server, client); (err == nil) != tt.served {
					t.Errorf("connection %d: %v, served: %v", i, err, tt.served)
				}
			}
		})
	}
}

// exchange sends a byte each way over TLS.
func exchange(t *testing.T, server, client *tls.Config) error {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			s := tls.Server(c, server)
			if err = s.Handshake(); err == nil {
				_, err = io.CopyN(s, s, 1)
			}
			_ = c.Close()
		}
		served <- err
	}()
	c, err := tls.Dial("tcp", l.Addr().String(), client)
	if err == nil {
		if _, err = c.Write([]byte{1}); err == nil {
			_, err = c.Read(make([]byte, 1))
		}
		_ = c.Close()
	}
	_ = l.Close()
	return errors.Join(err, <-served)
}

// TestSocketFile: the socket is its owner's and group's, its folder is made
// where it is missing, and an error says what to do where it cannot be.
func TestSocketFile(t *testing.T) {
	dir, err := os.MkdirTemp("", "weir") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	l, err := Open("unix:" + filepath.Join(dir, "run", "weir.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for path, want := range map[string]os.FileMode{"run": os.ModeDir | 0o750, "run/weir.sock": os.ModeSocket | 0o660} {
		info, err := os.Stat(filepath.Join(dir, path))
		if err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v, want %v", path, info, err, want)
		}
	}
	if _, err := Open("unix:" + filepath.Join(dir, "no", "such", "weir.sock")); err == nil || !strings.Contains(err.Error(), "the socket's folder is missing") {
		t.Errorf("two folders missing: %v", err)
	}
}
