package redisclient_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/envoytest"
	"github.com/weirproxy/weir/internal/redisclient"
)

// nonsense are replies that no Redis sends to what is asked here. Each is
// the answer to every command.
func nonsense() map[string]string {
	return map[string]string{
		"two numbers":        "*2\r\n:1\r\n:1\r\n",
		"60,000,000":         "*60000000\r\n",
		"2^31":               "*2147483647\r\n",
		"a set":              "~60000000\r\n",
		"a map":              "%60000000\r\n",
		"a map of 2^62":      "%4611686018427387904\r\n",
		"a push":             ">60000000\r\n",
		"an empty push":      ">0\r\n",
		"a push of numbers":  ">1\r\n:1\r\n",
		"a small push":       ">2\r\n$1\r\na\r\n$1\r\nb\r\n",
		"a long text":        "$2147483647\r\n",
		"a text of 500 MiB":  "$524288000\r\nabc",
		"a long error":       "!2147483647\r\nabc",
		"a verbatim":         "=2147483647\r\ntxt:abc",
		"a short verbatim":   "=1\r\na\r\n",
		"deep":               strings.Repeat("*1\r\n", 1_000_000),
		"deep and wide":      strings.Repeat("*100000\r\n", 7),
		"wide twice":         "*2\r\n*100000\r\n*100000\r\n",
		"attributes":         strings.Repeat("|1\r\n+a\r\n+b\r\n", 1000) + "+OK\r\n",
		"an empty array":     "*0\r\n",
		"nothing":            "*-1\r\n",
		"no text":            "$-1\r\n",
		"null":               "_\r\n",
		"less than nothing":  "*-2\r\n",
		"a text of -2":       "$-2\r\n",
		"an array of NaN":    "*NaN\r\n",
		"streamed":           "$?\r\n;4\r\nabcd\r\n;0\r\n",
		"a streamed array":   "*?\r\n:1\r\n.\r\n",
		"a bool":             "#x\r\n",
		"a float":            ",1e999999\r\n",
		"a big number":       "(" + strings.Repeat("9", 4000) + "\r\n",
		"a number":           ":9223372036854775807\r\n",
		"more than a number": ":9223372036854775808\r\n",
		"HTTP":               "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
		"TLS":                "\x15\x03\x01\x00\x02\x02\x46",
		"zeros":              strings.Repeat("\x00", 1<<16),
		"an endless line":    "+" + strings.Repeat("a", 1<<20),
		"line ends":          strings.Repeat("\r\n", 1000),
		"\\n alone":          "+OK\n",
		"two replies":        "+OK\r\n+OK\r\n",
		"a thousand":         strings.Repeat("+OK\r\n", 1000),
		"a message":          "*3\r\n$7\r\nmessage\r\n:1\r\n$1\r\na\r\n",
		"a message of lists": "*3\r\n$7\r\nmessage\r\n$1\r\na\r\n*1\r\n:1\r\n",
		"a short message":    "*1\r\n$7\r\nmessage\r\n",
		"a pattern":          "*2\r\n$8\r\npmessage\r\n$1\r\na\r\n",
		"a pong":             "*1\r\n$4\r\npong\r\n",
		"a subscription":     "*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n$1\r\nb\r\n",
		"a short one":        "*1\r\n$9\r\nsubscribe\r\n",
		"nulls":              "*3\r\n_\r\n_\r\n_\r\n",
		"errors":             "*3\r\n-a\r\n-b\r\n-c\r\n",
		"a fail-over":        "*3\r\n$7\r\nmessage\r\n$14\r\n+switch-master\r\n$4\r\nmine\r\n",
		"slots":              "*1\r\n*3\r\n:-5\r\n:99999999999\r\n*2\r\n$0\r\n\r\n:0\r\n",
		"no nodes":           "*1\r\n*2\r\n:0\r\n:16383\r\n",
		"moved":              "-MOVED 1 \r\n",
		"moved to nowhere":   "-MOVED\r\n",
		"ask":                "-ASK 1 :::::\r\n",
		"an empty error":     "-\r\n",
		"noscript":           "-NOSCRIPT\r\n",
		"silence":            "",
	}
}

// Whatever a Redis answers, to everything or to one kind of command: every
// call ends in its time with little memory, no goroutine of the library
// panics (that would end this test's process), and nothing hangs.
func TestNonsense(t *testing.T) {
	before, uses, bytes := envoytest.Allocated(), 0, 0
	var running sync.WaitGroup
	slots := make(chan struct{}, 32)
	for _, mode := range modes {
		for name, reply := range nonsense() {
			for _, only := range []string{"", "evalsha", "subscribe", "sentinel", "cluster", "hello"} {
				uses, bytes = uses+1, bytes+len(reply)
				slots <- struct{}{}
				running.Go(func() {
					exchange(t, most, mode, only, name, reply)
					<-slots
				})
			}
		}
	}
	running.Wait()
	// A connection of the library takes 64 KiB at first.
	if got := int(envoytest.Allocated() - before); got > uses<<20+40*bytes {
		t.Errorf("%d MiB allocated for %d uses and %d KiB of replies", got>>20, uses, bytes>>10)
	}
}

// What is announced is not allocated, nor what is held back without an end.
func TestAnnouncedIsNotAllocated(t *testing.T) {
	for _, name := range []string{
		"60,000,000", "2^31", "a set", "a map", "a push", "a long text", "a text of 500 MiB", "a long error",
		"a verbatim", "deep", "deep and wide", "wide twice", "an endless line", "zeros",
	} {
		reply, before := nonsense()[name], envoytest.Allocated()
		exchange(t, most, "single", "", name, reply)
		if got := int(envoytest.Allocated() - before); got > 2<<20+20*len(reply) {
			t.Errorf("%s: %d KiB allocated", name, got>>10)
		}
	}
}

const most = 100 * time.Millisecond // of one use

// exchange uses a client whose server answers nonsense to all commands, or
// to those of one name. The error of the use is returned.
func exchange(t testing.TB, most time.Duration, mode, only, name, reply string) error {
	t.Helper()
	s := startServer(t, func(addr string, command []string) string {
		switch {
		case only == "subscribe" && strings.EqualFold(command[0], only): // also beside what is right
			return good(addr, command) + reply
		case only == "" || strings.EqualFold(command[0], only):
			return reply
		}
		return good(addr, command)
	})
	c := dial(t, mode, s.addr)
	began := time.Now()
	err := use(c, most)
	if took := time.Since(began); took > 2*redisclient.DialTimeout+time.Second { // a listener waits for the dial before its own, and for its own
		t.Errorf("%s, %s, %s: took %v", mode, only, name, took)
	}
	_ = c.Close()
	s.close()
	return err
}

// What breaks the bounds is named in the error.
func TestErrorsName(t *testing.T) {
	for reply, want := range map[string]string{
		"*60000000\r\n":               "60000000 elements announced, at most 131072 are read",
		"$60000000\r\n":               "60000000 bytes announced, at most 4194304 are read",
		strings.Repeat("*1\r\n", 100): "deeper than 8",
		"%1\r\n+a\r\n+b\r\n":          "not agreed on",
		"|1\r\n+a\r\n+b\r\n":          "unknown type",
	} {
		err := exchange(t, most, "single", "", "", reply)
		if err == nil || !errors.Is(err, redisclient.ErrProtocol) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "from 127.0.0.1:") {
			t.Errorf("%.20q: %v, want %s", reply, err, want)
		}
	}
}

// What a good Redis answers passes, in one piece or byte by byte.
func TestGoodRepliesPass(t *testing.T) {
	for _, mode := range modes {
		for _, split := range []bool{false, true} {
			s := startServer(t, good)
			s.split.Store(split)
			c := dial(t, mode, s.addr)
			if err := use(c, 20*most); err != nil {
				t.Errorf("%s, split %v: %v", mode, split, err)
			}
			_ = c.Close()
			s.close()
		}
	}
}

// Sentinels may name some addresses, not ever more.
func TestManySentinels(t *testing.T) {
	var many strings.Builder
	fmt.Fprintf(&many, "*%d\r\n", 1000)
	for i := range 1000 {
		many.WriteString("*4\r\n" + text("ip") + text(fmt.Sprintf("10.0.%d.%d", i/256, i%256)) + text("port") + text("1"))
	}
	s := startServer(t, func(addr string, command []string) string {
		if len(command) > 1 && command[1] == "sentinels" {
			return many.String()
		}
		return good(addr, command)
	})
	defer s.close()
	c := dial(t, "sentinel", s.addr)
	defer func() { _ = c.Close() }()
	if err := use(c, time.Second); err != nil {
		t.Errorf("%v: want what Sentinels name to be left alone, and the master to be used", err)
	}
}

// FuzzReplies: as TestNonsense, with any bytes.
func FuzzReplies(f *testing.F) {
	n := byte(0)
	for _, reply := range nonsense() {
		if len(reply) < 1<<12 {
			f.Add(n, n/3, []byte(reply))
			n++
		}
	}
	only := []string{"", "evalsha", "subscribe", "sentinel", "cluster", "hello", "exists"}
	f.Fuzz(func(t *testing.T, mode, which byte, reply []byte) {
		if len(reply) > 1<<16 {
			return
		}
		_ = exchange(t, 10*time.Millisecond, modes[int(mode)%len(modes)], only[int(which)%len(only)], "fuzzed", string(reply))
	})
}
