package envoy_test

import (
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/weirproxy/weir/envoy"
	"github.com/weirproxy/weir/internal/envoytest"
	"github.com/weirproxy/weir/policy"
)

// wave is a gRPC host that holds streams until so many are open, and then
// resets them and whatever comes later.
type wave struct {
	size int

	mu   sync.Mutex
	seen int
	held []func()
}

func (w *wave) listen(t *testing.T) string { return accepting(t, w.serve) }

func (w *wave) serve(c net.Conn) {
	defer c.Close()
	if _, err := io.ReadFull(c, make([]byte, len(http2.ClientPreface))); err != nil {
		return
	}
	f := http2.NewFramer(c, c)
	_ = f.WriteSettings() // before anything is held
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return
		}
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				w.locked(func() { _ = f.WriteSettingsAck() })
			}
		case *http2.HeadersFrame:
			id := frame.StreamID
			w.locked(func() { w.came(func() { _ = f.WriteRSTStream(id, http2.ErrCodeRefusedStream) }) })
		}
	}
}

func (w *wave) locked(do func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	do()
}

func (w *wave) came(reset func()) {
	w.seen++
	if w.held = append(w.held, reset); w.seen < w.size {
		return
	}
	for _, reset := range w.held {
		reset()
	}
	w.held = nil
}

func (w *wave) count() (n int) { w.locked(func() { n = w.seen }); return n }

// TestRetryBudgetHolds (envoyproxy/envoy#30205): 1,000 calls that fail at once
// and may each be tried twice more bring a second and a third wave within the
// generated budget of a fifth, although those that wait for their delay are
// counted as requests too.
func TestRetryBudgetHolds(t *testing.T) {
	const size = 1000
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		w := &wave{size: size}
		e := through(t, b, envoy.Cluster(
			policy.Cluster{Name: "infer", Protocol: policy.GRPCProtocol, MaxConnections: 100, MaxPending: size, MaxRequests: 2 * size, Budget: 0.2, MinRetries: 3},
			envoy.ClusterOptions{Hosts: []string{w.listen(t)}, Health: "-"}),
			envoytest.Tree{"retry_policy": envoytest.Tree{"retry_on": "refused-stream", "num_retries": 2}})
		protocols := new(http.Protocols)
		protocols.SetUnencryptedHTTP2(true)
		client := &http.Client{Transport: &http.Transport{Protocols: protocols}, Timeout: 30 * time.Second}
		t.Cleanup(client.CloseIdleConnections)
		var calls sync.WaitGroup
		for range size {
			calls.Go(func() {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+e.Addr+"/", nil)
				if err != nil {
					t.Error(err)
					return
				}
				res, err := client.Do(req)
				if err != nil {
					t.Error(err)
					return
				}
				res.Body.Close()
			})
		}
		calls.Wait()
		retried := w.count() - size
		t.Logf("%d calls were tried again; %v", retried, e.Stats(t, `cluster\.infer\.upstream_rq_retry(_overflow)?$`))
		if retried < 1 || retried > size*2/5 { // a fifth in each of two waves
			t.Errorf("%d of %d calls were tried again, want some, and two fifths at most", retried, size)
		}
	})
}
