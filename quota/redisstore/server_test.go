package redisstore_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// server is a real redis-server on loopback.
type server struct {
	addr string
	conf string // file; "" = none
	args []string
	cmd  *exec.Cmd
	dead chan struct{}
}

// redisServer finds the program: REDIS_SERVER, or PATH.
func redisServer(t testing.TB) string {
	t.Helper()
	name := os.Getenv("REDIS_SERVER")
	if name == "" {
		name = "redis-server"
	}
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("these tests need a redis-server 6.2 or later, in PATH or named by REDIS_SERVER: %v", err)
	}
	return path
}

// startRedis starts a server and waits until it answers; the test ends it.
func startRedis(t testing.TB, args ...string) *server {
	t.Helper()
	s := &server{addr: freePort(t), args: args}
	s.start(t)
	t.Cleanup(func() { s.kill() })
	return s
}

func freePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func (s *server) start(t testing.TB) {
	t.Helper()
	_, port, _ := net.SplitHostPort(s.addr)
	args := []string{"--port", port, "--bind", "127.0.0.1", "--dir", t.TempDir()}
	if s.conf != "" {
		args = append([]string{s.conf}, args...)
	} else {
		args = append(args, "--save", "", "--appendonly", "no")
	}
	args = append(args, s.args...)
	s.cmd = exec.Command(redisServer(t), args...)
	if err := s.cmd.Start(); err != nil {
		t.Fatalf("redis-server: %v", err)
	}
	s.dead = make(chan struct{})
	go func() { s.cmd.Wait(); close(s.dead) }()
	c := s.client(t)
	eventually(t, "redis-server answers", func() bool {
		err := c.Ping(context.Background()).Err()
		return err == nil || strings.HasPrefix(err.Error(), "NOAUTH")
	})
}

// kill ends the server without a word (kill -9) and waits for it.
func (s *server) kill() {
	s.cmd.Process.Kill()
	<-s.dead
}

// client is for looking at the server from outside the store.
func (s *server) client(t testing.TB) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: s.addr, Protocol: 2, DisableIdentity: true})
	t.Cleanup(func() { c.Close() })
	return c
}

// eventually waits for something that another goroutine or process does.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(20 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("after 20 s still not so: %s", what)
		}
	}
}

// checkLifetimes fails for any key without a time to live, or of a foreign
// form. It returns how many keys there are.
func checkLifetimes(t testing.TB, c *redis.Client) int {
	t.Helper()
	ctx := context.Background()
	keys, err := c.Keys(ctx, "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range keys {
		if ttl := c.PTTL(ctx, k).Val(); ttl <= 0 && ttl != -2 {
			t.Fatalf("key %q has no lifetime (%s)", k, fmt.Sprint(ttl))
		}
	}
	return len(keys)
}
