package extproc

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/weirproxy/weir/admission"
)

// mute is a connection whose client can fall silent: what it writes is lost,
// as when its host is gone without a word.
type mute struct {
	net.Conn
	silent *atomic.Bool
}

func (m mute) Write(p []byte) (int, error) {
	if m.silent.Load() {
		return len(p), nil
	}
	return m.Conn.Write(p)
}

// TestSilentPeer: an Envoy that is gone without a word loses the seats and the
// places of its requests soon, not only after maxHold; one that is merely idle
// keeps them.
func TestSilentPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newTestDesk(verdict{reason: admission.Admitted}, verdict{wait: true})
		h := open(t, d)
		lis := bufconn.Listen(1 << 20)
		served := make(chan struct{})
		go func() { defer close(served); _ = h.grpc.Serve(lis) }()
		silent := new(atomic.Bool)
		conn, err := grpc.NewClient("passthrough:bufconn", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
				c, err := lis.Dial()
				return mute{c, silent}, err
			}))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close(); lis.Close(); h.grpc.Stop(); <-served })
		h.client = extprocv3.NewExternalProcessorClient(conn)
		runs, waits := h.call(), h.call()
		for _, e := range []*envoy{runs, waits} {
			e.send(chatHead())
			e.want("request_headers")
		}
		runs.send(reqBody(chatBody, true))
		runs.want("request_body")
		waits.send(reqBody(chatBody, true))
		waits.want("override")
		time.Sleep(10 * time.Minute) // idle, and answering pings
		synctest.Wait()
		if n := h.server.Streams(); n != 2 {
			t.Fatalf("%d streams of an idle peer, want 2", n)
		}
		silent.Store(true)
		start := time.Now()
		h.ended()
		h.ended()
		if took := time.Since(start); took > 2*silence+patience {
			t.Errorf("a silent peer was given up after %v", took)
		}
		d.even(t)
	})
}
