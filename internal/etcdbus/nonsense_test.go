package etcdbus_test

import (
	"context"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/internal/envoytest"
)

func wire(t testing.TB, m proto.Message) []byte {
	t.Helper()
	out, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// nonsense are answers of no etcd, by method: Range, Txn, LeaseGrant, Watch.
func nonsense(t testing.TB) map[string]func(method string) []byte {
	head := &pb.ResponseHeader{Revision: 7}
	always := func(b []byte) func(string) []byte { return func(string) []byte { return b } }
	watched := func(w *pb.WatchResponse) func(string) []byte {
		return func(method string) []byte {
			if strings.HasSuffix(method, "/Watch") {
				return wire(t, w)
			}
			return wire(t, &pb.RangeResponse{Header: head})
		}
	}
	many := &pb.RangeResponse{Header: head, More: true}
	for range 101 {
		many.Kvs = append(many.Kvs, &mvccpb.KeyValue{Key: []byte("/weir/breakers/a/p/b")})
	}
	return map[string]func(string) []byte{
		"nothing":        always(nil),
		"no message":     always([]byte("\xff\xff\xff\xff")),
		"cut":            always([]byte{0x0a, 0x7f}),
		"5 MiB":          always(wire(t, &pb.RangeResponse{Header: head, Kvs: []*mvccpb.KeyValue{{Value: make([]byte, 5<<20)}}})),
		"a short list":   always(wire(t, &pb.RangeResponse{Header: head, More: true, Kvs: []*mvccpb.KeyValue{{}}})),
		"too many":       always(wire(t, many)),
		"no key":         watched(&pb.WatchResponse{Header: head, Created: true, Events: []*mvccpb.Event{{}, {Type: mvccpb.Event_DELETE}}}),
		"never created":  watched(&pb.WatchResponse{Header: head}),
		"canceled":       watched(&pb.WatchResponse{Header: head, Created: true, Canceled: true}),
		"a failed swap":  always(wire(t, &pb.TxnResponse{Header: head, Responses: []*pb.ResponseOp{{}, {}}})),
		"an odd swap":    always(wire(t, &pb.TxnResponse{Header: head, Responses: []*pb.ResponseOp{{}}})),
		"a swap of none": always(wire(t, &pb.TxnResponse{Succeeded: true})),
	}
}

// use publishes and listens once, for a moment; lost says whether the listener
// was told that the bus is away.
func use(t testing.TB, addr string, most time.Duration) (lost bool, err error) {
	b := open(t, at(addr))
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	down := make(chan error, 100)
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.Listen(ctx, func(breaker.Opinion) {}, func(err error) {
			if err != nil {
				cancel()
			}
			down <- err
		})
	}()
	err = b.Publish(ctx, envoytest.Word("a", "p", 1))
	<-done
	_ = b.Close()
	return len(down) > 0, err
}

// An etcd that answers nonsense is a bus that is away: nothing panics, little
// memory is used, and what cannot be told says so.
func TestNonsenseIsAway(t *testing.T) {
	fine := map[string]bool{"no key": true, "a failed swap": true, "an odd swap": true, "a swap of none": true} // listeners only skip it, or hear nothing of it
	for name, answer := range nonsense(t) {
		t.Run(name, func(t *testing.T) {
			addr := envoytest.StartOdd(t, answer)
			before := envoytest.Allocated()
			lost, err := use(t, addr, 500*time.Millisecond)
			if err == nil && name != "a swap of none" {
				t.Error("a word was told")
			}
			if !lost && !fine[name] {
				t.Error("the listener was not lost")
			}
			if got := int(envoytest.Allocated() - before); got > 256<<20 { // of both sides
				t.Errorf("%d MiB allocated", got>>20)
			}
		})
	}
}

// Neither does one that speaks no HTTP/2.
func TestNoEtcdIsAway(t *testing.T) {
	for name, reply := range map[string][]byte{
		"HTTP/1":      []byte("HTTP/1.1 400 Bad Request\r\n\r\n"),
		"Redis":       []byte("-ERR unknown command\r\n"),
		"zeros":       make([]byte, 1<<16),
		"16 MiB":      append([]byte{0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1}, make([]byte, 1<<16)...),
		"no settings": {0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8},
		"odd ones":    {0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0xff, 0xff, 0xff, 0xff},
	} {
		t.Run(name, func(t *testing.T) {
			if lost, err := use(t, envoytest.StartParrot(t, reply).Addr, 3*time.Second); !lost || err == nil {
				t.Errorf("lost %v, %v", lost, err)
			}
		})
	}
}

// FuzzNonsense: any bytes, as an answer over gRPC or instead of it.
func FuzzNonsense(f *testing.F) {
	var answers [][]byte
	for _, answer := range nonsense(f) {
		for _, method := range []string{"/Watch", "/Range"} {
			if b := answer(method); len(b) < 1<<12 {
				answers = append(answers, b)
			}
		}
	}
	envoytest.FuzzAnswers(f, 3*time.Second, func(t *testing.T, addr string) {
		_, _ = use(t, addr, 20*time.Millisecond)
	}, answers...)
}
