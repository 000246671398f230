package xds

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"net/url"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/weirproxy/weir/internal/envoytest"
	"github.com/weirproxy/weir/policy"
)

// issue signs a certificate with names; a nil parent signs itself.
func issue(t *testing.T, parent *tls.Certificate, dns []string, uri string) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "edge-*"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		DNSNames: dns, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: parent == nil, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	if uri != "" {
		u, err := url.Parse(uri)
		if err != nil {
			t.Fatal(err)
		}
		c.URIs = []*url.URL{u}
	}
	signer, by := c, any(key)
	if parent != nil {
		signer, by = parent.Leaf, parent.PrivateKey
	}
	raw, err := x509.CreateCertificate(rand.Reader, c, signer, &key.PublicKey, by)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key, Leaf: leaf}
}

// Over mutual TLS a node is who its certificate says, not who it says it is;
// the subject's common name is no name.
func TestGroupsByCertificate(t *testing.T) {
	ca := issue(t, nil, nil, "")
	pool := x509.NewCertPool()
	pool.AddCert(ca.Leaf)
	s := New(t0, Options{Groups: []policy.XDSGroup{
		{Name: "dns", ID: "edge-*", SANs: []string{"edge.example"}, Clusters: []string{"m"}},
		{Name: "spiffe", ID: "spiffe-*", SANs: []string{"spiffe://example/edge/*"}},
	}})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{*issue(t, ca, nil, "")}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert})))
	s.Register(g)
	done := make(chan struct{})
	go func() { defer close(done); _ = g.Serve(l) }()
	t.Cleanup(func() { s.Close(); g.Stop(); <-done })
	put(t, s, one(6, "10.0.0.1:80"))

	for _, c := range []struct {
		id, uri string
		dns     []string
		group   string // "" = refused
	}{
		{"edge-1", "", []string{"other.example", "edge.example"}, "dns"},
		{"spiffe-1", "spiffe://example/edge/eu", nil, "spiffe"},
		{"edge-1", "spiffe://example/edge/eu", nil, ""},
		{"spiffe-1", "spiffe://evil/edge/eu", nil, ""},
		{"edge-1", "", nil, ""},
	} {
		conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: pool, Certificates: []tls.Certificate{*issue(t, ca, c.dns, c.uri)}})))
		if err != nil {
			t.Fatal(err)
		}
		e := deltaADS(t, conn, edge(c.id, 40))
		e.ask(rtds, "weir")
		select {
		case <-e.in:
			if nodes := s.Nodes(); c.group == "" || len(nodes) != 1 || nodes[0].Group != c.group {
				t.Errorf("%+v is served: %+v", c, nodes)
			}
		case err := <-e.fail:
			if c.group != "" || grpcstatus.Code(err) != codes.PermissionDenied {
				t.Errorf("%+v: %v", c, err)
			}
		case <-time.After(5 * time.Second):
			t.Errorf("%+v is left waiting", c)
		}
		e.cancel()
		_ = conn.Close()
		envoytest.Eventually(t, 5*time.Second, "it left", func() bool { return len(s.Nodes()) == 0 })
	}
}
