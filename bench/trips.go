package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/bench/load"
)

// countTrips counts the round trips to Redis of one admission. With the memory
// store there is no address to go to, so what is counted are the process's
// connections to anywhere: without one there is no trip. The same call against
// the Redis store, through a proxy that counts, shows that counting works.
func (h *harness) countTrips(ctx context.Context, o *options, r *results) error {
	short := &h.shapes[1]
	type found struct {
		dialled int
		err     error
	}
	looked := make(chan found, 1)
	go func() {
		<-time.After(100 * time.Millisecond) // in the middle of the run
		n, err := dialled(short.weir.pid())
		looked <- found{n, err}
	}()
	calls, err := h.clients[short.weir].Run(ctx, short.calls, o.inFlight, 200*time.Millisecond)
	f := <-looked
	switch {
	case err != nil:
		return err
	case f.err != nil:
		return f.err
	case f.dialled > 0:
		return fmt.Errorf("weir holds %d connections of its own with the memory store: its round trips would have to be counted", f.dialled)
	}
	r.RedisTrips = 0
	r.Trips = trips{MemoryCalls: calls, MemoryConnections: f.dialled}
	return h.countRedis(ctx, o, r, short.calls)
}

// dialled is how many TCP connections a process has that it did not accept:
// those whose local port it does not listen on.
func dialled(pid int) (int, error) {
	mine, err := sockets(pid)
	if err != nil {
		return 0, err
	}
	var open []string // local ports
	listening := map[string]bool{}
	for _, table := range []string{"tcp", "tcp6"} {
		f, err := os.Open(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		if err != nil {
			return 0, err
		}
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			c := strings.Fields(lines.Text())
			const local, state, inode = 1, 3, 9
			if len(c) <= inode || !mine[c[inode]] {
				continue
			}
			port := c[local][strings.LastIndexByte(c[local], ':')+1:]
			if c[state] == "0A" { // TCP_LISTEN
				listening[port] = true
			} else {
				open = append(open, port)
			}
		}
		f.Close()
		if err := lines.Err(); err != nil {
			return 0, err
		}
	}
	n := 0
	for _, port := range open {
		if !listening[port] {
			n++
		}
	}
	return n, nil
}

// sockets are the inodes of a process's sockets.
func sockets(pid int) (map[string]bool, error) {
	folder := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	out := map[string]bool{}
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join(folder, e.Name()))
		if inode, ok := strings.CutPrefix(target, "socket:["); err == nil && ok {
			out[strings.TrimSuffix(inode, "]")] = true
		}
	}
	return out, nil
}

// countRedis is the control: the same calls with the Redis store. Without a
// redis-server there is none, which the results say.
func (h *harness) countRedis(ctx context.Context, o *options, r *results, calls []load.Call) error {
	binary := o.redis
	if binary == "" {
		found, err := exec.LookPath("redis-server")
		if err != nil {
			return nil // r says that there was no control
		}
		binary = found
	}
	socket := filepath.Join(h.dir, "redis.sock")
	redis := exec.CommandContext(ctx, binary, "--port", "0", "--unixsocket", socket, "--save", "", "--dir", h.dir)
	if err := redis.Start(); err != nil {
		return err
	}
	defer func() {
		_ = redis.Process.Kill() // it may have ended by itself
		_ = redis.Wait()
	}()
	proxy, err := newProxy(socket)
	if err != nil {
		return err
	}
	defer proxy.close()
	root, err := checkout(ctx)
	if err != nil {
		return err
	}
	weir, err := h.startWeir(ctx, root, "weir-redis", "authz", o.procs, func(tree map[string]any) {
		tree["store"] = map[string]any{"redis": map[string]any{"addresses": []any{proxy.address()}}}
	})
	if err != nil {
		return err
	}
	client, err := load.Dial(ctx, "unix", weir.grpc, 2)
	if err != nil {
		return err
	}
	defer client.Close()
	before := proxy.trips.Load()
	n, err := client.Run(ctx, calls, o.inFlight, 300*time.Millisecond)
	if err != nil {
		return fmt.Errorf("with the Redis store: %w", err)
	}
	r.Trips.RedisControl = round(float64(proxy.trips.Load()-before) / float64(n))
	if proxy.trips.Load() == before {
		return errors.New("no round trip was seen with the Redis store either: counting does not work")
	}
	return nil
}

// proxy counts what goes to a Redis: one trip for each piece that the client
// writes, which is a command or a pipeline of them.
type proxy struct {
	l      net.Listener
	redis  string
	trips  atomic.Int64
	work   sync.WaitGroup
	mu     sync.Mutex
	conns  []net.Conn
	closed bool
}

func newProxy(redis string) (*proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{l: l, redis: redis}
	p.work.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			p.work.Go(func() { p.join(in) })
		}
	})
	return p, nil
}

func (p *proxy) address() string { return p.l.Addr().String() }

func (p *proxy) join(in net.Conn) {
	defer in.Close()
	out, err := net.Dial("unix", p.redis)
	if err != nil {
		return // the client sees the end
	}
	defer out.Close()
	if !p.keep(in, out) {
		return
	}
	p.work.Go(func() {
		_, _ = io.Copy(in, out) // ends with either side
		in.Close()
	})
	buf := make([]byte, 64<<10)
	for {
		n, err := in.Read(buf)
		if err != nil {
			return
		}
		p.trips.Add(1)
		if _, err := out.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (p *proxy) keep(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns = append(p.conns, conns...)
	return !p.closed
}

func (p *proxy) close() {
	p.l.Close()
	p.mu.Lock()
	p.closed = true
	for _, c := range p.conns {
		c.Close()
	}
	p.mu.Unlock()
	p.work.Wait()
}
