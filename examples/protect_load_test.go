package examples_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weirproxy/weir/internal/modelsim"
)

// result is how one call ended.
type result struct {
	at     time.Time // it began
	took   time.Duration
	code   codes.Code
	reason string // weir's
	host   string // that answered
	text   string
}

// flow is a stream of calls that come at their times whatever becomes of the ones
// before.
type flow struct {
	mu   sync.Mutex
	all  []result
	stop context.CancelFunc
	wg   sync.WaitGroup
}

// dial is a grpc-go client of the street's Envoy.
func (s *street) dial(options ...grpc.DialOption) *grpc.ClientConn {
	s.t.Helper()
	conn, err := grpc.NewClient(s.envoy.Addr, append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// call makes one call.
func (s *street) call(ctx context.Context, conn *grpc.ClientConn, token string) result {
	ctx, stop := context.WithTimeout(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token), longest)
	defer stop()
	var header, trailer metadata.MD
	var out structpb.Struct
	r := result{at: time.Now()}
	err := conn.Invoke(ctx, modelsim.InferMethod, question(3), &out, grpc.Header(&header), grpc.Trailer(&trailer))
	r.took = time.Since(r.at)
	r.code, r.host = status.Code(err), out.GetFields()["host"].GetStringValue()
	if err != nil {
		r.text = err.Error()
	}
	r.reason = firstOf(metadata.Join(header, trailer), "x-weir-reason")
	return r
}

// rate starts so many calls a second until end.
func (s *street) rate(t *testing.T, perSecond int, call func(ctx context.Context, i int) result) *flow {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	c := &flow{stop: stop}
	c.wg.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		began, sent := time.Now(), 0
		for {
			select {
			case <-ctx.Done():
				return
			case now := <-tick.C:
				due := int(now.Sub(began).Seconds() * float64(perSecond))
				for ; sent < due; sent++ {
					i := sent
					c.wg.Go(func() {
						r := call(t.Context(), i)
						c.mu.Lock()
						defer c.mu.Unlock()
						c.all = append(c.all, r)
					})
				}
			}
		}
	})
	t.Cleanup(func() { stop(); c.wg.Wait() })
	return c
}

// infers starts calls to the gRPC cluster on a few connections.
func (s *street) infers(t *testing.T, perSecond int) *flow {
	t.Helper()
	token := s.token(nil)
	var conns [4]*grpc.ClientConn
	for i := range conns {
		conns[i] = s.dial()
	}
	return s.rate(t, perSecond, func(ctx context.Context, i int) result { return s.call(ctx, conns[i%len(conns)], token) })
}

// end stops the calls, waits for those under way and gives all.
func (c *flow) end() []result {
	c.stop()
	c.wg.Wait()
	return c.all
}

// since are those that ended so far and began later.
func (c *flow) since(at time.Time) (out []result) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.all {
		if r.at.After(at) {
			out = append(out, r)
		}
	}
	return out
}

// tally counts results by code, or by weir's reason where it refused.
func tally(all []result) map[string]int {
	out := map[string]int{}
	for _, r := range all {
		what := r.code.String()
		if r.code != codes.OK {
			what += " " + r.reason
		}
		out[what]++
	}
	return out
}

// failures are those that are not OK.
func failures(all []result) (out []result) {
	for _, r := range all {
		if r.code != codes.OK {
			out = append(out, r)
		}
	}
	return out
}

// hostsOf counts who answered.
func hostsOf(all []result) map[string]int {
	out := map[string]int{}
	for _, r := range all {
		if r.host != "" {
			out[r.host]++
		}
	}
	return out
}

// wait lets time pass that a scenario is made of.
func (s *street) wait(d time.Duration) {
	s.t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.t.Context().Done():
	}
}

// streams begins a streamed call of n messages, one each 50 ms, and reads the
// first.
func (s *street) streams(conn *grpc.ClientConn, token string, n int) grpc.ClientStream {
	s.t.Helper()
	w := &caller{s.world, conn}
	return w.stream(metadata.AppendToOutgoingContext(s.t.Context(), "authorization", "Bearer "+token), n)
}
