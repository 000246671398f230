package redisstore_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/envoytest"
	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota/redisstore"
)

// nonsense is what a Redis does not answer to what the store asks.
func nonsense() map[string]string {
	return map[string]string{
		"two numbers":     "*2\r\n:1\r\n:1\r\n",
		"60,000,000":      "*60000000\r\n",
		"a long text":     "$2147483647\r\n",
		"deep":            strings.Repeat("*1\r\n", 100_000),
		"an empty array":  "*0\r\n",
		"nothing":         "$-1\r\n",
		"a number":        ":1\r\n",
		"OK":              "+OK\r\n",
		"two":             "+OK\r\n+OK\r\n",
		"a reply's form":  "*3\r\n:1\r\n$1\r\nx\r\n$1\r\n1\r\n",
		"an odd error":    "-\r\n",
		"unknown command": "-ERR unknown command 'EVALSHA', with args beginning with:\r\n",
		"HTTP":            "HTTP/1.1 502 Bad Gateway\r\n\r\n<html>",
		"RESP3":           "%1\r\n+a\r\n+b\r\n",
		"a push":          ">1\r\n:1\r\n",
	}
}

// A Redis that answers nonsense to every command counts as away: decisions are
// local and in their time, little memory is used, and it is asked again once
// it answers well.
func TestNonsenseIsAway(t *testing.T) {
	r := startRedis(t)
	for name, reply := range nonsense() {
		t.Run(name, func(t *testing.T) {
			between := startProxy(t, startStub(t, strings.TrimSuffix(reply, "\r\n")))
			s := open(t, policy.Redis{Addresses: []string{between.addr}, Timeout: 50 * time.Millisecond, RetryAfterOutage: 20 * time.Millisecond, Prefix: t.Name()}, redisstore.Options{})
			defer s.Close()
			before, late := envoytest.Allocated(), 0
			for i := range 50 {
				began := time.Now()
				v := reserve(t, s, fmt.Sprint(i), claim("acme", 1, tokens(100, time.Hour)))
				if !v.Allowed || !v.Local {
					t.Fatalf("%d: %+v, want it decided here", i, v)
				}
				if time.Since(began) > 50*time.Millisecond+busy {
					late++
				}
			}
			if late > 2 { // a busy machine holds up one or the other
				t.Errorf("%d of 50 decisions came late", late)
			}
			if st := s.Stats(); !st.Away || st.Local["timeout"]+st.Local["protocol"]+st.Local["connection"] != 50 {
				t.Errorf("%+v, want it to be away", st)
			}
			if got := int(envoytest.Allocated() - before); got > 32<<20 {
				t.Errorf("%d KiB allocated", got>>10)
			}
			between.point(r.addr)
			between.drop()
			awaitReturn(t, s)
			eventually(t, "all is told", func() bool { return s.Stats().Pending == 0 })
			if n := used(t, s, "acme"); n != 50 {
				t.Errorf("%d used, want 50", n)
			}
		})
	}
}

// busy is what a busy machine may add.
const busy = 200 * time.Millisecond

// FuzzNonsense: as above, with any bytes: whatever comes, a decision and its
// end take their time and no more.
func FuzzNonsense(f *testing.F) {
	for _, reply := range nonsense() {
		if len(reply) < 1000 {
			f.Add([]byte(reply))
		}
	}
	f.Add([]byte("*4\r\n:0\r\n$1\r\n5\r\n$2\r\n10\r\n*2\r\n:1\r\n*2\r\n$1\r\n1\r\n$1\r\n2\r\n"))
	f.Add([]byte("*4\r\n:0\r\n$1\r\n5\r\n$2\r\n10\r\n*2\r\n:9\r\n*1\r\n$20\r\n-9223372036854775808\r\n"))
	f.Fuzz(func(t *testing.T, reply []byte) {
		s := open(t, policy.Redis{Addresses: []string{startStub(t, string(reply))}, Timeout: 20 * time.Millisecond, Pool: 1}, redisstore.Options{})
		defer s.Close()
		c := claim("acme", 1, tokens(100, time.Hour))
		began := time.Now()
		reserve(t, s, "a", c)
		finish(t, s, "a", c, 1)
		if took := time.Since(began); took > 2*20*time.Millisecond+busy {
			t.Errorf("took %v", took)
		}
		_, _ = s.Usage(t.Context(), time.Time{}, "acme")
	})
}
