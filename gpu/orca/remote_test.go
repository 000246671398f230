package orca

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
	"math"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	orcav3 "github.com/cncf/xds/go/xds/data/orca/v3"
	servicev3 "github.com/cncf/xds/go/xds/service/orca/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/gpu/link"
	"github.com/weirproxy/weir/gpu/sourcetest"
	"github.com/weirproxy/weir/policy"
)

// backend reports what is sent on its channel.
type backend struct {
	servicev3.UnimplementedOpenRcaServiceServer
	reports chan *orcav3.OrcaLoadReport
	token   string // that is needed; "" = none
	err     error  // instead of reports

	mu       sync.Mutex
	streams  int
	interval time.Duration // last asked for
}

func (b *backend) StreamCoreMetrics(r *servicev3.OrcaLoadReportRequest, out grpc.ServerStreamingServer[orcav3.OrcaLoadReport]) error {
	b.mu.Lock()
	b.streams++
	b.interval = r.GetReportInterval().AsDuration()
	b.mu.Unlock()
	if md, _ := metadata.FromIncomingContext(out.Context()); b.token != "" && strings.Join(md.Get("authorization"), ",") != "Bearer "+b.token {
		return status.Error(codes.Unauthenticated, "who are you")
	}
	if b.err != nil {
		return b.err
	}
	for {
		select {
		case m := <-b.reports:
			if m == nil {
				return nil // the end of this stream
			}
			if err := out.Send(m); err != nil {
				return err
			}
		case <-out.Context().Done():
			return out.Context().Err()
		}
	}
}

func (b *backend) asked() (streams int, interval time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.streams, b.interval
}

func newBackend() *backend { return &backend{reports: make(chan *orcav3.OrcaLoadReport)} }

// serve puts a backend on l.
func serve(t *testing.T, b *backend, l net.Listener, o ...grpc.ServerOption) *grpc.Server {
	t.Helper()
	s := grpc.NewServer(o...)
	servicev3.RegisterOpenRcaServiceServer(s, b)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }() // ends with Stop
	t.Cleanup(func() { s.Stop(); <-done })
	return s
}

// dialed is a source that talks to a backend without a network.
func dialed(t *testing.T, b *backend) *Remote {
	t.Helper()
	l := bufconn.Listen(1 << 16)
	serve(t, b, l)
	return remote(t, link.Config{Dial: l.DialContext})
}

func remote(t *testing.T, c link.Config) *Remote {
	t.Helper()
	return sourcetest.Open(t, func(c link.Config) (*Remote, error) { return NewRemote("pool/0-orca-grpc", time.Second, c) }, c)
}

// reporting is a source whose backend reports once for each look.
type reporting struct {
	*Remote
	backend *backend
	report  *orcav3.OrcaLoadReport
	mu      sync.Mutex
}

func (r *reporting) Sample(ctx context.Context) (gpu.Sample, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ctx.Err() == nil {
		go func() { r.backend.reports <- r.report }()
	}
	return r.Remote.Sample(ctx)
}

func TestRemote(t *testing.T) {
	report := func(m *orcav3.OrcaLoadReport) func(*testing.T) gpu.Source {
		return func(t *testing.T) gpu.Source {
			b := newBackend()
			return &reporting{Remote: dialed(t, b), backend: b, report: m}
		}
	}
	sourcetest.Run(t, sourcetest.Makers{
		Good: report(namedMetrics("kv_cache_usage_perc", 0.5, "num_requests_waiting", 2.0)),
		Broken: func(t *testing.T) gpu.Source {
			b := newBackend()
			b.err = status.Error(codes.Unimplemented, "no reports here")
			return dialed(t, b)
		},
		Hanging: func(t *testing.T) gpu.Source { return dialed(t, newBackend()) },
		Strange: report(namedMetrics("kv_cache_usage_perc", math.NaN(), "num_requests_waiting", -1.0)),
	})
}

// The newest report counts, once, at the instant at which it came.
func TestRemoteNewestCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		r := dialed(t, b)
		go func() { b.reports <- namedMetrics("kv_cache_usage_perc", 0.9) }()
		if got, err := r.Sample(t.Context()); err != nil || got.KV != gpu.Some(0.9) {
			t.Fatalf("first = %+v, %v", got, err)
		}
		if _, every := b.asked(); every != time.Second {
			t.Errorf("asked for a report each %v, want 1s", every)
		}
		b.reports <- namedMetrics("kv_cache_usage_perc", 0.8, "num_requests_waiting", -1.0)
		b.reports <- namedMetrics("kv_cache_usage_perc", 0.1, "num_requests_waiting", 1.0)
		synctest.Wait()
		came := time.Now()
		time.Sleep(500 * time.Millisecond)
		got, err := r.Sample(t.Context())
		if err != nil || got.KV != gpu.Some(0.1) || got.Waiting != gpu.Some(1) || !got.At.Equal(came) || got.Dropped != 1 {
			t.Errorf("second = %+v, %v; want the newest of %v and one dropped", got, err, came)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if got, err := r.Sample(ctx); gpu.FaultOf(err) != gpu.FaultTimeout {
			t.Errorf("third = %+v, %v; want a timeout", got, err)
		}
		_ = r.Close()
		if _, err := r.Sample(t.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("closed: %v", err)
		}
	})
}

// A stream that ends, and one that falls silent, are followed by another; in
// between looks fail and say why.
func TestRemoteComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		r := dialed(t, b)
		hear := func(kv float64) {
			t.Helper()
			go func() { b.reports <- namedMetrics("kv_cache_usage_perc", kv) }()
			if got, err := r.Sample(t.Context()); err != nil || got.KV != gpu.Some(kv) {
				t.Fatalf("Sample = %+v, %v; want %v", got, err, kv)
			}
		}
		hear(0.5)
		b.reports <- nil
		synctest.Wait()
		if got, err := r.Sample(t.Context()); err == nil || gpu.FaultOf(err) != gpu.FaultConnect {
			t.Errorf("between streams: %+v, %v", got, err)
		}
		time.Sleep(time.Second)
		if n, _ := b.asked(); n != 2 {
			t.Errorf("%d streams after an end, want 2", n)
		}
		// The source learns that the new stream stands by its first report.
		b.reports <- namedMetrics("kv_cache_usage_perc", 0.6)
		synctest.Wait()
		hear(0.6)
		time.Sleep(minSilence + 10*time.Second)
		if n, _ := b.asked(); n != 3 {
			t.Errorf("%d streams after %v of silence, want 3", n, minSilence)
		}
	})
}

// A server that is not there, and comes later.
func TestRemoteServerComesLate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "orca.sock")
	r := remote(t, link.Config{Address: "unix:" + path})
	deadline, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if got, err := r.Sample(deadline); err == nil || gpu.FaultOf(err) != gpu.FaultConnect {
		t.Fatalf("no server: %+v, %v", got, err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	b := newBackend()
	serve(t, b, l)
	select {
	case b.reports <- namedMetrics("num_requests_waiting", 4.0):
	case <-deadline.Done():
		t.Fatal("the source does not come to a server that came late")
	}
	for {
		if got, err := r.Sample(deadline); err == nil && got.Waiting == gpu.Some(4) {
			return
		}
		if deadline.Err() != nil {
			t.Fatal("no sample of a server that came late")
		}
	}
}

// TLS by the policy's files, and a token that is read anew.
func TestRemoteOverTLS(t *testing.T) {
	dir := t.TempDir()
	cert := selfSigned(t, dir)
	b := newBackend()
	b.token = "second"
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serve(t, b, l, grpc.Creds(credentials.NewServerTLSFromCert(&cert)))
	token := filepath.Join(dir, "token")
	write := func(s string) {
		t.Helper()
		if err := os.WriteFile(token, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first\n")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	config := link.Config{Address: l.Addr().String(), TLS: &policy.ClientTLS{CA: filepath.Join(dir, "ca.pem")}, Token: policy.NewSecret(token, "first")}
	r := remote(t, config)
	if _, err := r.Sample(ctx); gpu.FaultOf(err) != gpu.FaultStatus || strings.Contains(err.Error(), "first") {
		t.Fatalf("with the wrong token: %v", err)
	}
	write("second\n")
	select {
	case b.reports <- namedMetrics("kv_cache_usage_perc", 0.3):
	case <-ctx.Done():
		t.Fatal("the new token was not taken")
	}
	got, err := r.Sample(ctx)
	for err != nil && ctx.Err() == nil {
		got, err = r.Sample(ctx)
	}
	if got.KV != gpu.Some(0.3) {
		t.Errorf("Sample = %+v, %v", got, err)
	}
	stranger := remote(t, link.Config{Address: l.Addr().String(), TLS: &policy.ClientTLS{}, Token: config.Token})
	if _, err := stranger.Sample(ctx); gpu.FaultOf(err) != gpu.FaultConnect {
		t.Errorf("a server with an unknown authority: %v", err)
	}
}

// selfSigned makes a certificate for 127.0.0.1, its own authority in ca.pem.
func selfSigned(t *testing.T, dir string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "backend"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "ca.pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}
