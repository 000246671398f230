package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/gpu/agent"
	"github.com/weirproxy/weir/gpu/scrape"
	"github.com/weirproxy/weir/gpu/sourcetest"
	"github.com/weirproxy/weir/internal/envoytest"
	"github.com/weirproxy/weir/policy"
	gpuv1 "github.com/weirproxy/weir/proto/gpu/v1"
)

// shortDir is a folder whose name is short enough for a socket.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "gpu")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// served runs an agent in this process until the test ends.
func served(t *testing.T, o options, r reader) *house {
	t.Helper()
	if o.every == 0 {
		o.every = minEvery
	}
	if o.host == "" {
		o.host = "node"
	}
	h, err := open(&o, []choice{{"script", func() (reader, error) { return r, nil }}}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return h
}

// cards8 are eight GPUs with every figure, one of them with MIG instances.
func cards8() []gpu.Card {
	var cards []gpu.Card
	add := func(i int, instance string) {
		c := gpu.Card{ID: fmt.Sprintf("GPU-%d", i), Index: fmt.Sprint(i), Instance: instance}
		for k, f := range agent.Fields() {
			*f.Of(&c) = gpu.Some(f.Top / float64(int(2)<<(i+k%3))) // exact in the text's unit too
		}
		if instance != "" {
			c.Util = gpu.Value{}
		} else {
			c.XIDAt = time.UnixMilli(1_700_000_000_250)
		}
		cards = append(cards, c)
	}
	for i := range 7 {
		add(i, "")
	}
	add(7, "1")
	add(7, "2")
	return cards
}

func fixed(cards []gpu.Card) *player {
	return &player{look: func(context.Context) ([]gpu.Card, error) { return append([]gpu.Card(nil), cards...), nil }}
}

// Fifty watchers see each look, in order, while one that does not read at all
// holds nobody up; when it reads again it gets the newest.
func TestWatchers(t *testing.T) {
	socket := filepath.Join(shortDir(t), "s")
	cards := make([]gpu.Card, 8)
	for i := range cards {
		cards[i] = gpu.Card{ID: fmt.Sprintf("GPU-%d", i), Host: strings.Repeat("n", 5000), Util: gpu.Some(0.5)} // fills a stream's window soon
	}
	h := served(t, options{listen: "unix:" + socket, every: maxEvery}, fixed(cards))
	client := func() gpuv1.AgentClient {
		conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return gpuv1.NewAgentClient(conn)
	}
	slow, err := client().Watch(t.Context(), &gpuv1.WatchRequest{})
	if err != nil {
		t.Fatal(err)
	}
	const watchers, looks = 50, 30
	heard := make(chan uint64, watchers)
	var work sync.WaitGroup
	for range watchers {
		stream, err := client().Watch(t.Context(), &gpuv1.WatchRequest{})
		if err != nil {
			t.Fatal(err)
		}
		work.Go(func() {
			last := uint64(0)
			for last < looks {
				w, err := stream.Recv()
				if err != nil || w.GetSequence() <= last || len(w.GetCards()) != len(cards) {
					t.Errorf("after %d: %d with %d cards, %v", last, w.GetSequence(), len(w.GetCards()), err)
					return
				}
				last = w.GetSequence()
				heard <- last
			}
		})
	}
	envoytest.Eventually(t, time.Minute, "all watch", func() bool { return h.watch.watchers.Load() == watchers+1 })
	for n := uint64(1); ; n++ { // n is on the board; the next when all have seen it
		for range watchers {
			if got := <-heard; got != n {
				t.Fatalf("a watcher saw %d after %d", got, n)
			}
		}
		if n == looks {
			break
		}
		h.watch.board.put(seen{source: "script", cards: cards}, time.Now())
	}
	work.Wait()
	for i := 0; ; i++ {
		w, err := slow.Recv()
		if err != nil || i > 10 { // what was on its way, then the newest
			t.Fatalf("the slow watcher is at %d of %d after %d: %v", w.GetSequence(), looks, i, err)
		}
		if w.GetSequence() == looks {
			break
		}
	}
}

// A watcher may ask for less than there is.
func TestPeriod(t *testing.T) {
	socket := filepath.Join(shortDir(t), "s")
	h := served(t, options{listen: "unix:" + socket, every: maxEvery}, fixed(nil))
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	envoytest.Eventually(t, time.Minute, "a first look", func() bool { s, _, _ := h.watch.board.newest(); return s != nil })
	stream, err := gpuv1.NewAgentClient(conn).Watch(t.Context(), &gpuv1.WatchRequest{Period: durationpb.New(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	if w, err := stream.Recv(); err != nil || w.GetSequence() != 1 {
		t.Fatalf("%v, %v", w, err)
	}
	now := time.Now()
	for _, after := range []time.Duration{time.Minute, 30 * time.Minute, 59 * time.Minute, 61 * time.Minute} {
		h.watch.board.put(seen{}, now.Add(after))
	}
	if w, err := stream.Recv(); err != nil || w.GetSequence() < 4 {
		t.Errorf("%v, %v: sooner than after an hour", w, err)
	}
}

// The text has dcgm-exporter's names, so that weir's reader of dcgm-exporter
// sees the same cards as a watcher.
func TestTextIsReadAsDCGMExporters(t *testing.T) {
	socket := filepath.Join(shortDir(t), "s")
	h := served(t, options{listen: "unix:" + socket, metrics: "127.0.0.1:0"}, fixed(cards8()))
	url := "http://" + h.pages.Addr().String()
	envoytest.Eventually(t, time.Minute, "ready", func() bool { return send(t, &http.Transport{}, mustRequest(t, url+"/readyz"), "") == http.StatusOK })
	text, err := scrape.New("text", policy.TelemetrySource{Kind: policy.KindDCGMExporter, URL: url + "/metrics"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = text.Close() })
	byText, err := text.Sample(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	byStream, err := sourcetest.Open(t, agent.New, agent.Config{Name: "node", Address: "unix:" + socket}).Sample(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range byText.Cards { // instants apart, for one source tells them by Unix time, the other as an age
		a, b := &byText.Cards[i].XIDAt, &byStream.Cards[i].XIDAt
		if want := cards8()[i].XIDAt; a.Sub(want).Abs() > time.Millisecond || b.Sub(want).Abs() > time.Second {
			t.Errorf("card %d: XID at %v by text, %v by stream, want %v", i, a, b, want)
		}
		*a, *b = time.Time{}, time.Time{}
	}
	if len(byText.Cards) != 9 || !reflect.DeepEqual(byText.Cards, byStream.Cards) {
		t.Errorf("by text\n%+v\nby stream\n%+v", byText.Cards, byStream.Cards)
	}
	if byText.Dropped != 0 || byText.GPUs != 8 || byStream.GPUs != 8 {
		t.Errorf("dropped %d, GPUs %d and %d", byText.Dropped, byText.GPUs, byStream.GPUs)
	}
}

// While nothing is read, or what was read is old, there are no cards in the
// text: an agent never freezes a reading.
func TestTextForgets(t *testing.T) {
	for name, tt := range map[string]struct {
		look seen
		age  time.Duration
		want string
	}{
		"fresh":  {seen{source: "script", cards: cards8(), dropped: gpu.Faults{gpu.FaultRange: 2}}, 0, `DCGM_FI_DEV_XID_ERRORS{GPU_I_ID="2"`},
		"old":    {seen{source: "script", cards: cards8()}, 10 * time.Second, "weir_gpu_agent_up 0"},
		"failed": {seen{err: fmt.Errorf("libdcgm.so.4 cannot be loaded")}, 0, "weir_gpu_agent_looks_failed_total 1"},
	} {
		b := newBoard(func([]gpu.Card) []*gpuv1.Card { return nil })
		p := &pages{board: b, every: time.Second, watchers: func() int64 { return 3 }, version: "1"}
		ask := func(path string) (int, string) {
			w := httptest.NewRecorder()
			p.handler().ServeHTTP(w, mustRequest(t, path))
			return w.Code, w.Body.String()
		}
		if code, _ := ask("/readyz"); code != http.StatusServiceUnavailable {
			t.Errorf("%s: ready before the first look: %d", name, code)
		}
		b.put(tt.look, time.Now().Add(-tt.age))
		code, text := ask("/metrics")
		if code != http.StatusOK || !strings.Contains(text, tt.want) || strings.Contains(text, "DCGM_") != (name == "fresh") {
			t.Errorf("%s: %d %s", name, code, text)
		}
		if code, text := ask("/readyz"); code == http.StatusOK != (name == "fresh") {
			t.Errorf("%s: /readyz %d %s", name, code, text)
		}
		if code, _ := ask("/healthz"); code != http.StatusOK {
			t.Errorf("%s: /healthz %d", name, code)
		}
	}
}

func mustRequest(t *testing.T, url string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func send(t *testing.T, transport *http.Transport, r *http.Request, token string) int {
	t.Helper()
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(r)
	if err != nil {
		return 0
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	return resp.StatusCode
}

// pki makes certificates in a folder: ca, server and client, and stranger, a
// client of another authority.
func pki(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	write := func(name, kind string, der []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	type signer struct {
		cert *x509.Certificate
		key  *ecdsa.PrivateKey
	}
	issue := func(name string, by *signer) *signer {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		c := &x509.Certificate{
			SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
			IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, BasicConstraintsValid: true, IsCA: by == nil,
		}
		s := &signer{c, key}
		if by == nil {
			by = s
		}
		der, err := x509.CreateCertificate(rand.Reader, c, by.cert, &key.PublicKey, by.key)
		if err != nil {
			t.Fatal(err)
		}
		private, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		write(name+".pem", "CERTIFICATE", der)
		write(name+".key", "PRIVATE KEY", private)
		return s
	}
	ca := issue("ca", nil)
	issue("server", ca)
	issue("client", ca)
	issue("stranger", issue("other", nil))
	return dir
}

// TLS, a client's certificate and a token: each that is asked for is needed,
// for the stream and for the text; health needs none.
func TestProofs(t *testing.T) {
	dir := pki(t)
	in := func(name string) string { return filepath.Join(dir, name) }
	if err := os.WriteFile(in("token"), []byte("right\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	h := served(t, options{
		listen: "127.0.0.1:0", metrics: "127.0.0.1:0",
		cert: in("server.pem"), key: in("server.key"), clientCA: in("ca.pem"), tokenFile: in("token"),
	}, fixed(cards8()))
	url := "https://" + h.pages.Addr().String()
	for name, tt := range map[string]struct {
		tls     *policy.ClientTLS
		token   string
		fine    bool
		metrics int // status
	}{
		"all":                   {&policy.ClientTLS{CA: in("ca.pem"), Cert: in("client.pem"), Key: in("client.key")}, "right", true, 200},
		"wrong token":           {&policy.ClientTLS{CA: in("ca.pem"), Cert: in("client.pem"), Key: in("client.key")}, "wrong", false, 401},
		"no token":              {&policy.ClientTLS{CA: in("ca.pem"), Cert: in("client.pem"), Key: in("client.key")}, "", false, 401},
		"no certificate":        {&policy.ClientTLS{CA: in("ca.pem")}, "right", false, 401},
		"a stranger's":          {&policy.ClientTLS{CA: in("ca.pem"), Cert: in("stranger.pem"), Key: in("stranger.key")}, "right", false, 401},
		"another server":        {&policy.ClientTLS{CA: in("other.pem"), Cert: in("client.pem"), Key: in("client.key")}, "right", false, 0},
		"plain text":            {nil, "right", false, 400},
		"another server's name": {&policy.ClientTLS{CA: in("ca.pem"), Cert: in("client.pem"), Key: in("client.key"), ServerName: "else.example"}, "right", false, 0},
	} {
		cfg := agent.Config{Name: "node", Address: h.streams.Addr().String(), TLS: tt.tls}
		if tt.token != "" {
			cfg.Token = policy.NewSecret("", tt.token)
		}
		got, err := sourcetest.Open(t, agent.New, cfg).Sample(t.Context())
		if (err == nil) != tt.fine || len(got.Cards) > 0 != tt.fine {
			t.Errorf("%s: stream: %d cards, %v", name, len(got.Cards), err)
		}
		transport := &http.Transport{}
		address := strings.Replace(url, "https:", "http:", 1)
		if tt.tls != nil {
			if transport.TLSClientConfig, err = tt.tls.Config(); err != nil {
				t.Fatal(err)
			}
			address = url
		}
		if code := send(t, transport, mustRequest(t, address+"/metrics"), tt.token); code != tt.metrics {
			t.Errorf("%s: /metrics %d, want %d", name, code, tt.metrics)
		}
	}
	kubelet := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} // as a kubelet's probe does
	if code := send(t, kubelet, mustRequest(t, url+"/healthz"), ""); code != http.StatusOK {
		t.Errorf("/healthz without any proof: %d", code)
	}
	if err := os.WriteFile(in("token"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	all := &policy.ClientTLS{CA: in("ca.pem"), Cert: in("client.pem"), Key: in("client.key")}
	for _, token := range []string{"", "right"} {
		cfg := agent.Config{Name: "node", Address: h.streams.Addr().String(), TLS: all, Token: policy.NewSecret("", token)}
		if _, err := sourcetest.Open(t, agent.New, cfg).Sample(t.Context()); err == nil {
			t.Errorf("token %q is right while the file is empty", token)
		}
	}
}
