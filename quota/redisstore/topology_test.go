package redisstore_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
	"github.com/weirproxy/weir/quota/redisstore"
	"github.com/weirproxy/weir/quota/storetest"
)

func port(addr string) string {
	_, p, _ := net.SplitHostPort(addr)
	return p
}

// startCluster makes a cluster of three masters.
func startCluster(t *testing.T, args ...string) (servers []*server, addrs []string) {
	t.Helper()
	for range 3 {
		r := startRedis(t, append([]string{"--cluster-enabled", "yes", "--cluster-port", port(freePort(t)), "--cluster-node-timeout", "2000"}, args...)...)
		servers, addrs = append(servers, r), append(addrs, r.addr)
	}
	const slots = 16384
	for i, r := range servers {
		c := r.client(t)
		must(t, c.ClusterAddSlotsRange(ctx, i*slots/3, (i+1)*slots/3-1).Err())
		if i > 0 {
			bus := servers[0].args[3]
			must(t, c.Do(ctx, "CLUSTER", "MEET", "127.0.0.1", port(servers[0].addr), bus).Err())
		}
	}
	eventually(t, "the cluster is whole", func() bool {
		for _, r := range servers {
			info := r.client(t).ClusterInfo(ctx).Val()
			if !strings.Contains(info, "cluster_state:ok") || !strings.Contains(info, "cluster_known_nodes:3") {
				return false
			}
		}
		return true
	})
	return servers, addrs
}

// J: on a cluster the same holds; no script touches keys of two slots or keys
// that it did not declare.
func TestOnCluster(t *testing.T) {
	servers, addrs := startCluster(t, append([]string{"--user"}, documentedUser(t, "+evalsha", "t*")...)...)
	n := 0
	storetest.Run(t, func(t *testing.T) quota.Store {
		n++
		return patient(t, asUser(policy.Redis{Addresses: addrs, Prefix: fmt.Sprint("t", n)}))
	})
	denied(t, servers...)
	for _, r := range servers {
		if keys := checkLifetimes(t, r.client(t)); keys == 0 {
			t.Error("a master without keys: tenants are not spread")
		}
	}
	t.Run("one master dies", func(t *testing.T) {
		s := open(t, policy.Redis{Addresses: addrs, Prefix: "dies", Timeout: 500 * time.Millisecond}, redisstore.Options{})
		reserve(t, s, "warm", claim("acme", 1, tokens(1000, time.Hour)))
		servers[0].kill()
		for i := range 40 {
			if v := reserve(t, s, fmt.Sprint(i), claim(fmt.Sprint("tenant", i), 1, tokens(1000, time.Hour))); !v.Allowed {
				t.Errorf("tenant %d: %+v, want it allowed", i, v)
			}
		}
		if !s.Stats().Away {
			t.Errorf("%+v, want it away", s.Stats())
		}
	})
}

// J: sentinels promote a replica; the store follows by itself.
func TestOnSentinel(t *testing.T) {
	master := startRedis(t)
	replica := startRedis(t, "--replicaof", "127.0.0.1 "+port(master.addr))
	eventually(t, "the replica follows", func() bool {
		return strings.Contains(replica.client(t).Info(ctx, "replication").Val(), "master_link_status:up")
	})
	conf := filepath.Join(t.TempDir(), "sentinel.conf")
	must(t, os.WriteFile(conf, []byte("sentinel monitor weirs 127.0.0.1 "+port(master.addr)+" 1\n"+
		"sentinel down-after-milliseconds weirs 500\nsentinel failover-timeout weirs 2000\n"), 0o600))
	sentinel := startSentinel(t, conf)
	eventually(t, "the sentinel knows the replica", func() bool {
		return strings.Contains(sentinel.client(t).Info(ctx, "sentinel").Val(), "slaves=1")
	})

	s := open(t, policy.Redis{Addresses: []string{sentinel.addr}, Master: "weirs", Timeout: time.Second}, redisstore.Options{})
	l := startLoad(t, s, "acme", tokens(1e9, time.Hour))
	l.after(t, 100)
	if s.Stats().Remote == 0 {
		t.Errorf("%+v, want decisions by Redis", s.Stats())
	}
	master.kill()
	eventually(t, "the store notices", func() bool { return s.Stats().Away })
	eventually(t, "the store follows the new master", func() bool { return !s.Stats().Away })
	l.after(t, 50)
	l.end()
	eventually(t, "the new master counts all", func() bool {
		return s.Stats().Pending == 0 && used(t, s, "acme") == l.charged.Load()
	})
	checkLifetimes(t, replica.client(t))
}

func startSentinel(t *testing.T, conf string) *server {
	t.Helper()
	s := &server{addr: freePort(t), conf: conf, args: []string{"--sentinel"}}
	s.start(t)
	t.Cleanup(func() { s.kill() })
	return s
}

// A server that wants TLS of both sides and a user of its own.
func TestTLSAndUser(t *testing.T) {
	ca, cert, key := certificate(t)
	tlsAddr := freePort(t)
	startRedis(t, "--tls-port", port(tlsAddr), "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", ca,
		"--user", "weir", "on", ">s3cret", "~weir:*", "+@all")
	config := policy.Redis{Addresses: []string{tlsAddr}, TLS: true, CA: ca, Cert: cert, Key: key,
		Username: "weir", Password: policy.NewSecret("", "s3cret")}
	c := claim("acme", 10, tokens(100, time.Hour))
	if v := reserve(t, patient(t, config), "a", c); v.Local || !v.Allowed {
		t.Errorf("%+v, want Redis' decision", v)
	}
	wrong := config
	wrong.Password = policy.NewSecret("", "guess")
	s := patient(t, wrong)
	if v := reserve(t, s, "b", c); !v.Local || s.Stats().Local["auth"] != 1 {
		t.Errorf("wrong password: %+v, %+v; want a local decision", v, s.Stats())
	}
	unknown := config
	unknown.CA = ""
	if v := reserve(t, patient(t, unknown), "c", c); !v.Local {
		t.Errorf("unknown authority: %+v, want a local decision", v)
	}
}

// certificate makes a self-signed certificate for 127.0.0.1.
func certificate(t *testing.T) (ca, cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "weir test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	must(t, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	must(t, err)
	dir := t.TempDir()
	write := func(name, kind string, data []byte) string {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data}), 0o600))
		return path
	}
	cert = write("cert.pem", "CERTIFICATE", der)
	return cert, cert, write("key.pem", "PRIVATE KEY", pkcs8)
}
