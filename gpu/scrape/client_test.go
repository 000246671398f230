package scrape

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/policy"
)

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	a := &authority{}
	a.cert, a.key = a.sign(t, &x509.Certificate{Subject: pkix.Name{CommonName: "yard"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return a
}

func (a *authority) sign(t *testing.T, c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c.SerialNumber, c.NotBefore, c.NotAfter = big.NewInt(time.Now().UnixNano()), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

func (a *authority) client(t *testing.T, name string) (cert, key []byte) {
	t.Helper()
	c, k := a.sign(t, &x509.Certificate{Subject: pkix.Name{CommonName: name}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	der, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return pemOf("CERTIFICATE", c.Raw), pemOf("EC PRIVATE KEY", der)
}

func pemOf(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// secure serves over TLS to those with a certificate, whose names it notes.
func (a *authority) secure(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	cert, key := a.sign(t, &x509.Certificate{DNSNames: []string{"node.yard"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	srv := httptest.NewUnstartedServer(h)
	srv.TLS = &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: key}},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    pool,
	}
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	srv.StartTLS()
	t.Cleanup(srv.Close)
	return srv
}

func put(t *testing.T, path string, content []byte) string {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Certificates are checked and shown, and read anew for each connection.
func TestTLS(t *testing.T) {
	yard := newAuthority(t)
	var mu sync.Mutex
	var seen []string
	srv := yard.secure(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		seen = append(seen, r.TLS.PeerCertificates[0].Subject.CommonName)
		mu.Unlock()
		text("vllm:num_requests_waiting 7\n")(w, r)
	})
	dir := t.TempDir()
	one, key := yard.client(t, "one")
	files := policy.ClientTLS{
		CA:   put(t, filepath.Join(dir, "ca.pem"), pemOf("CERTIFICATE", yard.cert.Raw)),
		Cert: put(t, filepath.Join(dir, "cert.pem"), one), Key: put(t, filepath.Join(dir, "key.pem"), key),
		ServerName: "node.yard",
	}
	open := func(files *policy.ClientTLS) *Source {
		s, err := New("node", policy.TelemetrySource{Kind: policy.KindVLLM, URL: srv.URL, TLS: files}, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	s := open(&files)
	look := func() error {
		got, err := s.Sample(t.Context())
		if err == nil && got.Waiting != gpu.Some(7) {
			t.Errorf("Sample = %+v", got)
		}
		return err
	}
	if err := look(); err != nil {
		t.Fatal(err)
	}
	two, key := yard.client(t, "two")
	put(t, files.Cert, two)
	put(t, files.Key, key)
	srv.CloseClientConnections()
	if err := look(); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(seen, " "); got != "one two" {
		t.Errorf("certificates shown: %s; want one, then two", got)
	}
	put(t, files.Cert, []byte("not yet whole"))
	srv.CloseClientConnections()
	if err := look(); gpu.FaultOf(err) != gpu.FaultConnect || !strings.Contains(err.Error(), "tls.cert") {
		t.Errorf("broken certificate = %v, want a miss that names it", err)
	}
	put(t, files.Cert, two)
	if err := look(); err != nil {
		t.Errorf("certificate whole again: %v", err)
	}
	wrongName, stranger := files, files
	wrongName.ServerName = "other.yard"
	stranger.CA = put(t, filepath.Join(dir, "other.pem"), pemOf("CERTIFICATE", newAuthority(t).cert.Raw))
	for what, files := range map[string]*policy.ClientTLS{"another name": &wrongName, "another authority": &stranger, "the system's authorities": nil} {
		if got, err := open(files).Sample(t.Context()); err == nil {
			t.Errorf("%s: Sample = %+v, want an error", what, got)
		}
	}
}

// The token goes out with each look and is read again when its file changes.
func TestToken(t *testing.T) {
	var mu sync.Mutex
	var seen []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		seen = append(seen, r.Header.Get("Authorization"))
		mu.Unlock()
		text("vllm:num_requests_waiting 7\n")(w, r)
	}))
	t.Cleanup(srv.Close)
	path := put(t, filepath.Join(t.TempDir(), "token"), []byte("first\n"))
	s, err := New("node", policy.TelemetrySource{Kind: policy.KindVLLM, URL: srv.URL, Token: policy.NewSecret(path, "first")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	look := func() {
		t.Helper()
		if _, err := s.Sample(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	look()
	put(t, path, []byte("the second\n"))
	look()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	look()
	if got := strings.Join(seen, ", "); got != "Bearer first, Bearer the second, Bearer the second" {
		t.Errorf("sent %s", got)
	}
}

// A token is never readable on the way.
func TestTokenNeedsCover(t *testing.T) {
	token := policy.NewSecret("", "s3cret")
	for url, ok := range map[string]bool{
		"http://10.0.0.7:9400/metrics": false, "http://node/metrics": false, "http://localhost.evil/metrics": false,
		"https://10.0.0.7:9400/metrics": true, "http://127.0.0.1:9400/metrics": true, "http://[::1]:9400/": true, "http://localhost:9400/": true,
	} {
		_, err := New("node", policy.TelemetrySource{Kind: policy.KindVLLM, URL: url, Token: token}, nil)
		if (err == nil) != ok {
			t.Errorf("%s with a token: %v", url, err)
		}
		if err != nil && strings.Contains(err.Error(), "s3cret") {
			t.Errorf("the error shows the token: %v", err)
		}
	}
	if _, err := New("node", policy.TelemetrySource{Kind: policy.KindVLLM, URL: "http://node/", TLS: &policy.ClientTLS{}}, nil); err == nil {
		t.Error("tls with an http address is taken")
	}
	if _, err := New("node", policy.TelemetrySource{Kind: policy.KindVLLM, URL: "https://node/", TLS: &policy.ClientTLS{CA: "/no/ca.pem"}}, nil); err == nil || !strings.Contains(err.Error(), "tls.ca") {
		t.Errorf("an authority that is not there: %v", err)
	}
}

// All looks use one connection, whatever they bring.
func TestKeepAlive(t *testing.T) {
	var mu sync.Mutex
	conns := map[string]bool{}
	n := 0
	s := serve(t, policy.KindVLLM, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		conns[r.RemoteAddr] = true
		n++
		bad := n == 2
		mu.Unlock()
		if bad {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		text("vllm:num_requests_waiting 7\n")(w, r)
	})
	for range 20 {
		_, _ = s.Sample(t.Context())
	}
	if len(conns) != 1 || n != 20 {
		t.Errorf("%d looks over %d connections, want one", n, len(conns))
	}
}

// An exporter that restarts is read again at the next look.
func TestRestart(t *testing.T) {
	answer := text("vllm:num_requests_waiting 7\n")
	listen, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := listen.Addr().String()
	srv := &http.Server{Handler: answer, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	go func() { _ = srv.Serve(listen) }()
	s, err := New("node", policy.TelemetrySource{Kind: policy.KindVLLM, URL: "http://" + addr}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if _, err := s.Sample(t.Context()); err != nil {
		t.Fatal(err)
	}
	_ = srv.Close()
	if _, err := s.Sample(t.Context()); gpu.FaultOf(err) != gpu.FaultConnect {
		t.Fatalf("gone: %v, want a miss", err)
	}
	if listen, err = (&net.ListenConfig{}).Listen(context.Background(), "tcp", addr); err != nil {
		t.Skipf("port is taken: %v", err)
	}
	srv = &http.Server{Handler: answer, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	t.Cleanup(func() { _ = srv.Close() })
	go func() { _ = srv.Serve(listen) }()
	if got, err := s.Sample(t.Context()); err != nil || got.Waiting != gpu.Some(7) {
		t.Errorf("back: %+v, %v", got, err)
	}
}
