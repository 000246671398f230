package examples_test

import (
	"context"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/weirproxy/weir/internal/envoytest"
	"github.com/weirproxy/weir/internal/modelsim"
)

// web is net/http's HTTP/2 server, which ends a connection politely after an
// answer that says so, behind the methods of grpc-go's.
type web struct{ *http.Server }

func (w web) Stop()         { _ = w.Close() }
func (w web) GracefulStop() { _ = w.Shutdown(context.Background()) }

type callCount struct{}

// polite serves connections whose host ends them after so many calls, as load
// balancers and nginx's keepalive_requests do.
func (h *host) polite(l net.Listener) *hall {
	grpc := h.plain.server.(http.Handler)
	s := &http.Server{
		Protocols: new(http.Protocols),
		ConnContext: func(ctx context.Context, _ net.Conn) context.Context {
			return context.WithValue(ctx, callCount{}, new(atomic.Int64))
		},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, "/grpc.health.") {
				grpc.ServeHTTP(w, r)
				return
			}
			n := r.Context().Value(callCount{}).(*atomic.Int64).Add(1)
			manners := h.manners.Load()
			switch {
			case manners == breaks:
				w.Header().Set("Connection", "close")
				w.Header().Set("Content-Type", "application/grpc")
				_ = http.NewResponseController(w).Flush()
				panic(http.ErrAbortHandler)
			case n%20 == 0 && manners != serves:
				w.Header().Set("Connection", "close")
			case n%2 == 1 && manners == halves:
				panic(http.ErrAbortHandler)
			}
			grpc.ServeHTTP(w, r)
		}),
	}
	s.Protocols.SetUnencryptedHTTP2(true)
	out := &hall{server: web{s}, conns: make(chan net.Conn), closed: make(chan struct{}), addr: l.Addr()}
	h.running.Go(func() { _ = s.Serve(out) }) // ends with Stop
	return out
}

// become gives hosts their manners, on new connections.
func (s *street) become(manners int32) {
	for _, h := range append(s.near, s.far...) {
		h.manners.Store(manners)
		h.graceful() // connections of the old manners end
		h.start()
	}
}

// TestProtectPolite (B7): hosts end each connection by a GOAWAY after twenty
// calls, at 200 calls a second: no call fails, so there is no storm, however many
// GOAWAYs. With half of the calls reset the breaker opens.
func TestProtectPolite(t *testing.T) {
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		s := newStreet(t, b, streetSetup{work: 20 * time.Millisecond})
		s.become(polite)
		s.wait(time.Second)
		before, notified := s.last(), s.stat("cluster.infer.upstream_cx_close_notify")
		load := s.infers(t, 200)
		s.wait(15 * time.Second)
		told := s.stat("cluster.infer.upstream_cx_close_notify") - notified
		all := load.end()
		t.Logf("%d GOAWAYs, %v", told, tally(all))
		if told < 75 {
			t.Errorf("%d GOAWAYs in 15 s: that is no more than five a second", told)
		}
		if bad := failures(all); 1000*len(bad) > len(all) {
			t.Errorf("%d of %d calls failed, the first: %v %s %s", len(bad), len(all), bad[0].code, bad[0].reason, bad[0].text)
		}
		if e, tripped := s.entry(before, func(e *happened) bool { return e.What == "transition" }); tripped {
			t.Errorf("the breaker went from %s to %s: %s", e.From, e.To, e.Because)
		}
		if t.Failed() {
			s.told(before)
		}
		s.become(halves)
		before = s.last()
		load = s.infers(t, 200)
		envoytest.Eventually(t, 15*time.Second, "with half of the calls reset the breaker opens", func() bool {
			_, ok := s.entry(before, transition("infer", "hard"))
			return ok
		})
		e, _ := s.entry(before, transition("infer", "hard"))
		t.Logf("%s: %s; %v", e.Key, e.Because, tally(load.end()))
	})
}

// TestProtectRollingRestart (B7): all hosts are restarted politely, one after the
// other, under 300 calls a second: every connection is told within the window, no
// call fails, and that is no storm.
func TestProtectRollingRestart(t *testing.T) {
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		s := newStreet(t, b, streetSetup{work: 20 * time.Millisecond})
		before := s.last()
		load := s.infers(t, 300)
		s.wait(1500 * time.Millisecond)
		for _, h := range s.near {
			h.graceful()
			h.start()
			s.wait(1500 * time.Millisecond)
		}
		all := load.end()
		t.Logf("%d calls, %v, by host %v", len(all), tally(all), hostsOf(all))
		if bad := failures(all); len(bad) > 0 {
			t.Errorf("%d of %d calls failed, the first: %v %s %s", len(bad), len(all), bad[0].code, bad[0].reason, bad[0].text)
		}
		if e, found := s.entry(before, func(e *happened) bool { return e.What == "transition" || e.What == "watch" }); found {
			t.Errorf("%s: %s", e.What, e.Because)
		}
	})
}

// TestProtectBrokenAnswers (B6): callers that leave in the middle of their
// answers open no breaker. An engine that resets half of its answers in the
// middle does: weir sees an end and not whose doing it was, and Envoy counts it.
func TestProtectBrokenAnswers(t *testing.T) {
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		sim, addr := engine(t)
		s := newStreet(t, b, streetSetup{chat: map[string][]string{"a": {addr}, "b": {"127.0.0.1:2"}}})
		token, before := s.token(nil), s.last()
		chat := func(ctx context.Context, patience time.Duration, n int) result {
			ctx, leave := context.WithTimeout(ctx, patience)
			defer leave()
			a := s.do(s.request(ctx, http.MethodPost, "/v1/chat/completions", chatBody(n, true), "Authorization", "Bearer "+token))
			r := result{at: time.Now()}
			if !a.done() {
				r.code = codes.Unknown
			}
			return r
		}
		load := s.rate(t, 40, func(ctx context.Context, i int) result {
			return chat(ctx, []time.Duration{longest, 60 * time.Millisecond}[i%2], 1000)
		})
		s.wait(4 * time.Second)
		left := load.end()
		if n := len(failures(left)); n < 50 {
			t.Fatalf("%d of %d callers left in the middle", n, len(left))
		}
		if e, tripped := s.entry(before, func(e *happened) bool { return e.What == "transition" }); tripped {
			t.Errorf("%d of %d callers left, and that opened the breaker: %s", len(failures(left)), len(left), e.Because)
		}
		if err := sim.SetFault(modelsim.FaultRule{Fault: "reset-mid", Rate: 0.6}); err != nil {
			t.Fatal(err)
		}
		load = s.rate(t, 40, func(ctx context.Context, _ int) result { return chat(ctx, longest, 20) })
		at := time.Now()
		envoytest.Eventually(t, 20*time.Second, "answers that break off open the breaker", func() bool {
			_, ok := s.entry(before, transition("chat", "hard"))
			return ok
		})
		e, _ := s.entry(before, transition("chat", "hard"))
		t.Logf("%v after the first: %s: %s; %v", e.At.Sub(at).Round(time.Millisecond), e.Key, e.Because, tally(load.end()))
	})
}

// engine is a model server on a port of its own.
func engine(t *testing.T) (*modelsim.Sim, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	sim := modelsim.New(modelsim.Config{})
	done := make(chan struct{})
	go func() { defer close(done); _ = sim.Serve(l) }() // ends with Close
	t.Cleanup(func() { _ = sim.Close(); <-done })
	return sim, l.Addr().String()
}
