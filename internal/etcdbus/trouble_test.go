package etcdbus_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/internal/envoytest"
	"github.com/weirproxy/weir/policy"
)

// etcd dies and comes back, with what it had or empty, so with a revision that
// is far behind: listeners are told once each time, renewals bring back what
// stands, and who joins hears it.
func TestEtcdKilledAndBack(t *testing.T) {
	t.Parallel()
	server := envoytest.StartEtcd(t)
	a, b := open(t, at(server.Addr)), open(t, at(server.Addr))
	ears := []*envoytest.Ear{envoytest.Listen(t, a, nil), envoytest.Listen(t, b, nil)}
	words := []breaker.Opinion{envoytest.Word("a", "p", 1), envoytest.Word("a", "q", 1), envoytest.Word("b", "p", 1)}
	say := func(seq uint64) {
		t.Helper()
		for i := range words {
			words[i].Seq = seq
			publish(t, a, words[i])
		}
		for _, e := range ears {
			e.Hears(t, words...)
		}
	}
	for seq := uint64(1); seq < 20; seq++ { // the revision goes up
		say(seq)
	}
	for i, empty := range []bool{false, true} {
		server.Kill()
		for _, e := range ears {
			envoytest.Eventually(t, 5*time.Second, "it is told of the loss", func() bool { return e.WasDown(false) })
		}
		asked := time.Now()
		if err := a.Publish(ctx, envoytest.Word("a", "p", 99)); err == nil || time.Since(asked) > time.Second {
			t.Errorf("%v after %v, want an error at once", err, time.Since(asked))
		}
		if st := a.Stats(); !st.Away || st.Losses != uint64(i+1) {
			t.Errorf("%+v, want it away, for the %d. time", st, i+1)
		}
		if empty {
			server.Empty(t)
		}
		server.Restart(t)
		for _, e := range ears {
			envoytest.Eventually(t, 10*time.Second, "it is told of the return", func() bool { return e.WasDown(true) })
		}
		if !empty {
			envoytest.Listen(t, open(t, at(server.Addr)), nil).Hears(t, words...) // it has kept them
		}
		say(uint64(100 + i))
		envoytest.Listen(t, open(t, at(server.Addr)), nil).Hears(t, words...)
	}
	if a.Stats().Away {
		t.Error("still away")
	}
}

// A wire that is a black hole: Publish ends with its context, or after two
// seconds; the listener is told after some, and all heals.
func TestBlackHole(t *testing.T) {
	t.Parallel()
	server := envoytest.StartEtcd(t)
	wire := envoytest.StartWire(t, server.Addr)
	a, b := open(t, at(server.Addr)), open(t, at(wire.Addr))
	e := envoytest.Listen(t, b, nil)
	publish(t, b, envoytest.Word("b", "p", 1))
	e.Hears(t, envoytest.Word("b", "p", 1))
	wire.Hang()
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	for what, c := range map[string]context.Context{"100ms": short, "2s": ctx} {
		asked := time.Now()
		if err := b.Publish(c, envoytest.Word("b", "p", 2)); err == nil || time.Since(asked) > 3*time.Second {
			t.Errorf("%v after %v, want an error after %s", err, time.Since(asked), what)
		}
	}
	envoytest.Eventually(t, 8*time.Second, "it is told", func() bool { return e.WasDown(false) })
	publish(t, a, envoytest.Word("a", "p", 1))
	wire.Mend()
	e.Hears(t, envoytest.Word("a", "p", 1))
	envoytest.Eventually(t, 5*time.Second, "it is back", func() bool { return e.WasDown(true) })
}

// A slow listener whose watch falls behind a compaction reads anew what stands
// and hears the last word of each; nobody is told of a loss.
func TestCompactedPastTheWatch(t *testing.T) {
	t.Parallel()
	server := envoytest.StartEtcd(t)
	look := client(t, server.Addr)
	a, b := open(t, at(server.Addr)), open(t, at(server.Addr))
	gate := make(chan struct{})
	e := envoytest.Listen(t, b, gate)
	publish(t, a, envoytest.Word("a", "first", 1))
	envoytest.Eventually(t, 5*time.Second, "the listener is at its first word", func() bool { return b.Stats().Heard == 1 })
	// More than the connection and the server hold for a watch.
	long := strings.Repeat("x", breaker.MaxName-1)
	const most = 2500
	for n := uint64(1); n <= most; n++ {
		publish(t, a, envoytest.Word("a", fmt.Sprint(n%7, long[1:]), n))
	}
	now := must[*clientv3.GetResponse](t)(look.Get(ctx, "x")).Header.Revision
	must[*clientv3.CompactResponse](t)(look.Compact(ctx, now, clientv3.WithCompactPhysical()))
	close(gate)
	for n := uint64(most - 6); n <= most; n++ {
		e.Hears(t, envoytest.Word("a", fmt.Sprint(n%7, long[1:]), n))
	}
	if st := b.Stats(); st.Rereads == 0 || st.Losses != 0 {
		t.Errorf("%+v, want a re-read and no loss", st)
	}
	publish(t, a, envoytest.Word("a", "first", most))
	e.Hears(t, envoytest.Word("a", "first", most))
}

// Leases are revoked, by an operator or a backup that did not have them: the
// next word gets another one, and what stood on the old one is put back, but
// nothing that is over or that others have put meanwhile.
func TestLostLease(t *testing.T) {
	t.Parallel()
	server := envoytest.StartEtcd(t)
	look := client(t, server.Addr)
	a := open(t, at(server.Addr))
	var words []breaker.Opinion
	for n := range 100 { // more than go into one transaction
		words = append(words, envoytest.Word("a", fmt.Sprint("p", n), 1))
	}
	publish(t, a, words...)
	for _, l := range must[*clientv3.LeaseLeasesResponse](t)(look.Leases(ctx)).Leases {
		must[*clientv3.LeaseRevokeResponse](t)(look.Revoke(ctx, l.ID))
	}
	other := open(t, at(server.Addr)) // of the same name, as after a restart
	words[1].Seq = 7
	publish(t, other, words[1])
	words[0].Seq = 2
	publish(t, a, words[0])
	e := envoytest.Listen(t, other, nil)
	e.Hears(t, words...)
	if last, _ := e.Last(words[1].Key()); e.Words() != len(words) || last.Seq != 7 {
		t.Errorf("%d words, that of the other %+v; want %d, seq 7", e.Words(), last, len(words))
	}
	if st := a.Stats(); st.Leases != 1 || st.Failed != 0 {
		t.Errorf("%+v, want one lost lease and nothing failed", st)
	}
	if n := len(must[*clientv3.LeaseLeasesResponse](t)(look.Leases(ctx)).Leases); n > 3 {
		t.Errorf("%d leases for 100 words", n)
	}
}

// A server that wants TLS of both sides and a user who may touch /weir/ alone;
// its tokens end after a second, and nobody notices.
func TestTLSAndUser(t *testing.T) {
	t.Parallel()
	ca, cert, key := certificate(t)
	server := envoytest.StartEtcd(t, "--cert-file", cert, "--key-file", key, "--trusted-ca-file", ca, "--client-cert-auth", "--auth-token-ttl", "1")
	look := secureClient(t, server.Addr, ca, cert, key)
	for _, user := range []string{"root", "weir"} {
		must[*clientv3.AuthUserAddResponse](t)(look.UserAdd(ctx, user, "s3cret"))
		must[*clientv3.AuthRoleAddResponse](t)(look.RoleAdd(ctx, user))
		must[*clientv3.AuthUserGrantRoleResponse](t)(look.UserGrantRole(ctx, user, user))
	}
	must[*clientv3.AuthRoleGrantPermissionResponse](t)(look.RoleGrantPermission(ctx, "weir", "/weir/", clientv3.GetPrefixRangeEnd("/weir/"), clientv3.PermissionType(clientv3.PermReadWrite)))
	must[*clientv3.AuthEnableResponse](t)(look.AuthEnable(ctx))

	config := policy.Etcd{Endpoints: []string{server.Addr}, Prefix: "/weir/", TLS: true, CA: ca, Cert: cert, Key: key,
		Username: "weir", Password: policy.NewSecret("", "s3cret")}
	a, b := open(t, config), open(t, config)
	e := envoytest.Listen(t, b, nil)
	publish(t, a, envoytest.Word("a", "p", 1))
	e.Hears(t, envoytest.Word("a", "p", 1))
	<-time.After(2500 * time.Millisecond) // a token that is not used ends
	publish(t, a, envoytest.Word("a", "p", 2))
	e.Hears(t, envoytest.Word("a", "p", 2))
	if e.WasDown(false) || e.WasDown(true) {
		t.Errorf("told of a loss: %v", e.Downs())
	}
	spoil := map[string]func(*policy.Etcd){
		"password":  func(c *policy.Etcd) { c.Password = policy.NewSecret("", "guess") },
		"authority": func(c *policy.Etcd) { c.CA = "" },
		"prefix":    func(c *policy.Etcd) { c.Prefix = "/other/" },
	}
	for name, change := range spoil {
		wrong := config
		change(&wrong)
		b := open(t, wrong)
		if err := b.Publish(ctx, envoytest.Word("a", "p", 1)); err == nil {
			t.Errorf("wrong %s: published", name)
		}
		e := envoytest.Listen(t, b, nil)
		envoytest.Eventually(t, 5*time.Second, "the listener is told", func() bool { return e.WasDown(false) })
	}
}

// Closing in the middle of things ends everything; nothing is told.
func TestCloseWhileAway(t *testing.T) {
	t.Parallel()
	for _, user := range []string{"", "weir"} { // with a user the first connection waits for a token
		b := open(t, policy.Etcd{Endpoints: []string{"127.0.0.1:1"}, Prefix: "/weir/", Username: user, Password: policy.NewSecret("", user)})
		e := envoytest.Listen(t, b, nil)
		envoytest.Eventually(t, 5*time.Second, "it is told", func() bool { return e.WasDown(false) })
		asked := time.Now()
		if err := b.Publish(ctx, envoytest.Word("a", "p", 1)); err == nil || !strings.Contains(err.Error(), "connection refused") || time.Since(asked) > time.Second {
			t.Errorf("%v after %v, want at once that the connection is refused", err, time.Since(asked))
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if err := b.Publish(ctx, envoytest.Word("a", "p", 1)); !errors.Is(err, breaker.ErrClosed) {
			t.Errorf("%v, want %v", err, breaker.ErrClosed)
		}
		envoytest.Eventually(t, 5*time.Second, "the listener has left", func() bool { return !b.Stats().Away })
		if e.WasDown(true) {
			t.Error("told of a return")
		}
	}
}

// certificate makes a self-signed certificate for 127.0.0.1.
func certificate(t *testing.T) (ca, cert, key string) {
	t.Helper()
	private := must[*ecdsa.PrivateKey](t)(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "weir test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der := must[[]byte](t)(x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private))
	pkcs8 := must[[]byte](t)(x509.MarshalPKCS8PrivateKey(private))
	dir := t.TempDir()
	write := func(name, kind string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	cert = write("cert.pem", "CERTIFICATE", der)
	return cert, cert, write("key.pem", "PRIVATE KEY", pkcs8)
}

// secureClient is for looking at a server that wants TLS.
func secureClient(t *testing.T, addr, ca, cert, key string) *clientv3.Client {
	t.Helper()
	roots := must[*x509.CertPool](t)(policy.ReadCAs(ca))
	pair := must[tls.Certificate](t)(policy.ReadPair(cert, key))
	c := must[*clientv3.Client](t)(clientv3.New(clientv3.Config{
		Endpoints: []string{"https://" + addr}, Logger: zap.NewNop(), TLS: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}},
	}))
	t.Cleanup(func() { c.Close() })
	return c
}
