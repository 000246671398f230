package redisclient_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/redisclient"
	"github.com/weirproxy/weir/policy"
)

// server answers commands as it is told to.
type server struct {
	addr   string
	answer func(command []string) string
	split  atomic.Bool // answers byte by byte
	l      net.Listener
	mu     sync.Mutex
	conns  map[net.Conn]bool
	done   sync.WaitGroup
}

func startServer(t testing.TB, answer func(addr string, command []string) string) *server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{addr: l.Addr().String(), l: l, conns: map[net.Conn]bool{}}
	s.answer = func(command []string) string { return answer(s.addr, command) }
	s.done.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns[c] = true
			s.mu.Unlock()
			s.done.Go(func() { s.serve(c) })
		}
	})
	return s
}

func (s *server) close() {
	_ = s.l.Close()
	s.mu.Lock()
	for c := range s.conns {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.done.Wait()
}

func (s *server) serve(c net.Conn) {
	defer func() { _ = c.Close() }()
	r := bufio.NewReader(c)
	for {
		command, err := readCommand(r)
		if err != nil {
			return
		}
		answer := s.answer(command)
		for s.split.Load() && len(answer) > 1 {
			if _, err := io.WriteString(c, answer[:1]); err != nil {
				return
			}
			answer = answer[1:]
		}
		if _, err := io.WriteString(c, answer); err != nil {
			return
		}
	}
}

func readCommand(r *bufio.Reader) ([]string, error) {
	n, err := readNumber(r, '*')
	if err != nil {
		return nil, err
	}
	command := make([]string, n)
	for i := range command {
		size, err := readNumber(r, '$')
		if err != nil {
			return nil, err
		}
		text := make([]byte, size+2)
		if _, err := io.ReadFull(r, text); err != nil {
			return nil, err
		}
		command[i] = string(text[:size])
	}
	return command, nil
}

func readNumber(r *bufio.Reader, kind byte) (int, error) {
	line, err := r.ReadString('\n')
	if err != nil || line[0] != kind {
		return 0, errors.Join(err, io.ErrUnexpectedEOF)
	}
	return strconv.Atoi(strings.TrimSpace(line[1:]))
}

// text is a RESP text.
func text(s string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(s), s) }

// good is what a Redis, a node of a Cluster and a Sentinel that is its own
// master answers.
func good(addr string, command []string) string {
	host, port, _ := net.SplitHostPort(addr)
	switch strings.ToLower(strings.Join(command[:min(len(command), 2)], " ")) {
	case "hello 2", "hello 3":
		return "*2\r\n" + text("server") + text("redis")
	case "sentinel get-master-addr-by-name":
		return "*2\r\n" + text(host) + text(port)
	case "sentinel sentinels":
		return "*1\r\n*4\r\n" + text("ip") + text(host) + text("port") + text(port)
	case "cluster slots":
		return "*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n" + text(host) + ":" + port + "\r\n" + text("id")
	}
	switch strings.ToLower(command[0]) {
	case "subscribe":
		var out string
		for i, name := range command[1:] {
			out += "*3\r\n" + text("subscribe") + text(name) + ":" + strconv.Itoa(i+1) + "\r\n"
		}
		return out
	case "evalsha":
		return "*2\r\n:1\r\n" + text("1 2") // as the scripts answer
	case "exists":
		return ":0\r\n"
	}
	return "+OK\r\n"
}

// modes are the ways to a Redis.
var modes = []string{"single", "cluster", "sentinel"}

func dial(t testing.TB, mode, addr string) *redisclient.Client {
	t.Helper()
	c := policy.Redis{Addresses: []string{addr}, Timeout: 50 * time.Millisecond, Pool: 4}
	switch mode {
	case "cluster":
		c.Addresses = append(c.Addresses, addr)
	case "sentinel":
		c.Master = "mine"
	}
	c, err := redisclient.Defaults(c)
	if err != nil {
		t.Fatal(err)
	}
	client, err := redisclient.Dial(c)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// use asks for what the store and the bus ask for, and returns the first error.
func use(c *redisclient.Client, most time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	_, err1 := c.EvalSha(ctx, "00", []string{"{a}"}, 1, 2).Slice()
	err2 := c.Exists(ctx, "{a}").Err()
	err3 := c.Set(ctx, "{a}", "1", time.Minute).Err()
	sub := c.Subscribe(ctx, "bell")
	_, err4 := sub.ReceiveTimeout(ctx, most/4)
	var more error
	if err4 == nil {
		_, more = sub.ReceiveTimeout(ctx, most/10)
	}
	var late net.Error
	if errors.As(more, &late) && late.Timeout() {
		more = nil
	}
	_ = sub.Close()
	return errors.Join(err1, err2, err3, err4, more)
}
