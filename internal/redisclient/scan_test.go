package redisclient

import (
	"bytes"
	"io"
	"net"
	"strings"
	"testing"
)

// chunks is a connection that gives bytes in pieces of a size.
type chunks struct {
	net.Conn
	rest []byte
	size int
}

func (c *chunks) Read(p []byte) (int, error) {
	if len(c.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.rest[:min(c.size, len(c.rest))])
	c.rest = c.rest[n:]
	return n, nil
}

func (c *chunks) Write(p []byte) (int, error) { return len(p), nil }
func (c *chunks) Close() error                { return nil }

// read gives what passes of some bytes after commands were asked.
func read(commands, replies string, size int) (string, error) {
	k := newKeeper()
	g := k.guard(&chunks{rest: []byte(replies), size: size}, "a")
	for rest := commands; rest != ""; { // written in pieces, too
		n := min(size, len(rest))
		_, _ = g.Write([]byte(rest[:n]))
		rest = rest[n:]
	}
	var out bytes.Buffer
	_, err := io.Copy(&out, g)
	_ = g.Close()
	if held := k.held.Load(); held != 0 {
		panic("held after its end")
	}
	return out.String(), err
}

func command(args ...string) string {
	var b strings.Builder
	b.WriteString("*" + itoa(len(args)) + "\r\n")
	for _, a := range args {
		b.WriteString("$" + itoa(len(a)) + "\r\n" + a + "\r\n")
	}
	return b.String()
}

func itoa(n int) string {
	if n < 10 {
		return string(rune('0' + n))
	}
	return itoa(n/10) + itoa(n%10)
}

// Each reply is held against its own command, in any pieces.
func TestRepliesFitTheirCommands(t *testing.T) {
	long := strings.Repeat("x", 300)
	ping, master := command("PING"), command("sentinel", "get-master-addr-by-name", "mine")
	all := ping + master + command("evalsha", long, "", long) + command("HELLO", "3") + command("subscribe", "a")
	good := "+PONG\r\n*2\r\n$1\r\na\r\n$1\r\n1\r\n*1\r\n$300\r\n" + long + "\r\n%1\r\n+a\r\n#t\r\n>3\r\n+subscribe\r\n+a\r\n:1\r\n>3\r\n+message\r\n+a\r\n+b\r\n"
	for _, size := range []int{1, 2, 3, 7, 100, 1 << 20} {
		if out, err := read(all, good, size); out != good || err != nil {
			t.Errorf("in pieces of %d: %q, %v", size, out, err)
		}
		for name, c := range map[string]struct{ commands, replies, passes string }{
			"one more":             {ping, "+PONG\r\n+PONG\r\n", "+PONG\r\n"},
			"unasked":              {"", "+", ""},
			"no address":           {ping + master, "+PONG\r\n*0\r\n", "+PONG\r\n"},
			"an address of 3":      {master, "*3\r\n+a\r\n+b\r\n+c\r\n", ""},
			"half an address":      {master, "*2\r\n+a\r\n_\r\n", ""},
			"no such master":       {master, "*-1\r\n:1\r\n", "*-1\r\n"},
			"RESP3 on RESP2":       {ping, "_\r\n", ""},
			"a push after HELLO 3": {command("hello", "3") + ping, "+OK\r\n>1\r\n+message\r\n", "+OK\r\n"},
			"a push in an array":   {command("hello", "3") + ping, "+OK\r\n*1\r\n>1\r\n+a\r\n", "+OK\r\n"},
			"an unknown kind":      {command("subscribe", "a"), "*1\r\n+invalidate\r\n", ""},
			"a fail-over":          {command("subscribe", "a"), "*3\r\n+message\r\n+a\r\n+b\r\n*3\r\n+message\r\n++switch-master\r\n+a b c d\r\n", "*3\r\n+message\r\n+a\r\n+b\r\n"},
			"slots":                {command("cluster", "slots"), "$1200000\r\n" + strings.Repeat("x", 1200000) + "\r\n", ""},
		} {
			if size < 100 && len(c.replies) > 1<<20 {
				continue
			}
			if out, err := read(c.commands, c.replies, size); out != c.passes || err == nil || !strings.HasPrefix(err.Error(), "redis: protocol error: from a: ") {
				t.Errorf("%s in pieces of %d: %.40q, %v", name, size, out, err)
			}
		}
	}
}

// Connections of one client share what they may hold back.
func TestHeldBackIsShared(t *testing.T) {
	k := newKeeper()
	part := "$" + itoa(maxReply-100) + "\r\n" + strings.Repeat("x", maxReply-200) // never ends
	var refused error
	var all []net.Conn
	for range maxHeld/maxReply + 2 {
		g := k.guard(&chunks{rest: []byte(part), size: 1 << 20}, "a")
		all = append(all, g)
		_, _ = g.Write([]byte(command("PING")))
		if _, err := g.Read(make([]byte, 10)); err != io.EOF {
			refused = err
		}
	}
	if held := k.held.Load(); held > maxHeld || refused == nil || !strings.Contains(refused.Error(), "still coming") {
		t.Errorf("%d bytes held, %v", held, refused)
	}
	for _, g := range all {
		_ = g.Close()
	}
	if held := k.held.Load(); held != 0 {
		t.Errorf("%d bytes held at the end", held)
	}
}

// FuzzGuard: what passes does not depend on the pieces in which it comes.
func FuzzGuard(f *testing.F) {
	for _, reply := range []string{"*2\r\n:1\r\n:1\r\n", "*60000000\r\n", "%1\r\n+a\r\n*1\r\n:1\r\n", ">2\r\n+pong\r\n+a\r\n", "$3\r\nabc\r\n$-1\r\n", "=5\r\ntxt:a\r\n", "|1\r\n+a\r\n+b\r\n"} {
		f.Add(command("PING")+command("HELLO", "3"), reply+reply, 3)
		f.Add(command("subscribe", "a"), reply, 1)
		f.Add(command("sentinel", "sentinels", "a"), reply, 2)
	}
	f.Fuzz(func(t *testing.T, commands, replies string, size int) {
		if size < 1 || size > 1<<16 || len(replies) > 1<<14 || len(commands) > 1<<12 {
			return
		}
		out, err := read(commands, replies, size)
		whole, err2 := read(commands, replies, 1<<20)
		if out != whole || (err == nil) != (err2 == nil) || !strings.HasPrefix(replies, out) {
			t.Errorf("%q, %v in pieces of %d; %q, %v whole", out, err, size, whole, err2)
		}
	})
}

func BenchmarkGuard(b *testing.B) {
	k := newKeeper()
	c := &chunks{size: 1 << 20}
	g := k.guard(c, "a")
	ask := []byte(command("evalsha", strings.Repeat("0", 40), "3", "weir:{acme}:r:1", "weir:{acme}:i", "weir:{acme}:c:1", "take", "0", "1", "id", "600000", "60000", "60000", "100", "1", "m"))
	reply := []byte("*3\r\n:1\r\n$13\r\n1790000000000\r\n$2\r\n10\r\n")
	p := make([]byte, 4096)
	b.ReportAllocs()
	for b.Loop() {
		_, _ = g.Write(ask)
		c.rest = reply
		if n, err := g.Read(p); n != len(reply) || err != nil {
			b.Fatal(n, err)
		}
	}
}
