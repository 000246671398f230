package redisbus_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/internal/envoytest"
	"github.com/weirproxy/weir/policy"
)

// A Redis that answers nonsense is a bus that is away: nothing panics, a word
// that cannot be told says so, and the listener is lost.
func TestNonsenseIsAway(t *testing.T) {
	for name, reply := range map[string]string{
		"two numbers":  "*2\r\n:1\r\n:1\r\n",
		"60,000,000":   "*60000000\r\n",
		"a long text":  "$2147483647\r\n",
		"deep":         strings.Repeat("*1\r\n", 100_000),
		"an empty one": "*0\r\n",
		"OK":           "+OK\r\n",
		"nulls":        "*3\r\n_\r\n_\r\n_\r\n",
		"a message":    "*3\r\n$7\r\nmessage\r\n:1\r\n*1\r\n:1\r\n",
		"scripts'":     "*4\r\n$1\r\n1\r\n$0\r\n\r\n$1\r\n0\r\n*1\r\n:1\r\n",
		"HTTP":         "HTTP/1.1 502 Bad Gateway\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nonsense(t, reply, 20)
		})
	}
}

// nonsense opens a bus whose server always answers the same, and looks at it
// until a listener was lost, or for some tenths of a second at most.
func nonsense(t *testing.T, reply string, tenths int) {
	b := open(t, policy.Redis{Addresses: []string{envoytest.StartParrot(t, []byte(reply)).Addr}})
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(tenths)*100*time.Millisecond)
	defer cancel()
	lost, heard := make(chan error, 100), 0
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.Listen(ctx, func(breaker.Opinion) { heard++ }, func(err error) { lost <- err })
	}()
	if err := b.Publish(ctx, breaker.Opinion{Replica: "a", Breaker: "chat", State: breaker.Hard, Level: breaker.Hard, Seq: 1, TTL: time.Second}); err == nil {
		t.Error("a word was told")
	}
	select {
	case err := <-lost:
		if err == nil {
			t.Error("the listener came back")
		}
	case <-ctx.Done():
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) || tenths > 10 {
			t.Error("the listener was not lost")
		}
	}
	cancel()
	<-done
	if heard > 0 {
		t.Errorf("%d words heard", heard)
	}
}

// FuzzNonsense: any bytes, also as an answer of a script.
func FuzzNonsense(f *testing.F) {
	f.Add([]byte("*2\r\n:1\r\n:1\r\n"))
	f.Add([]byte("*60000000\r\n"))
	f.Add([]byte("*4\r\n$1\r\n1\r\n$0\r\n\r\n$1\r\n0\r\n*0\r\n"))
	f.Fuzz(func(t *testing.T, reply []byte) {
		b := open(t, policy.Redis{Addresses: []string{envoytest.StartParrot(t, reply).Addr}})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		b.Listen(ctx, func(breaker.Opinion) {}, func(error) {})
		_ = b.Close()
	})
}
