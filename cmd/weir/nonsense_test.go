package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/weirproxy/weir/internal/envoytest"
)

// parrot answers everything by the same bytes, until it leads to a server.
type parrot struct {
	addr  string
	mu    sync.Mutex
	reply string
	to    string // "" = nowhere
	conns map[net.Conn]bool
	work  sync.WaitGroup
}

func startParrot(t *testing.T, reply string) *parrot {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &parrot{addr: l.Addr().String(), reply: reply, conns: map[net.Conn]bool{}}
	p.work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.work.Go(func() { p.serve(c) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); p.lead(""); p.work.Wait() })
	return p
}

// lead drops all connections; later ones go to a server.
func (p *parrot) lead(to string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.to = to
	for c := range p.conns {
		_ = c.Close()
	}
}

func (p *parrot) keep(c net.Conn) (to, reply string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns[c] = true
	return p.to, p.reply
}

func (p *parrot) serve(c net.Conn) {
	defer func() { _ = c.Close() }()
	to, reply := p.keep(c)
	if to == "" {
		for buf := make([]byte, 1<<16); ; {
			if _, err := c.Read(buf); err != nil {
				return
			}
			if _, err := io.WriteString(c, reply); err != nil {
				return
			}
		}
	}
	server, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	p.keep(server)
	p.work.Go(func() { _, _ = io.Copy(c, server); _ = c.Close() })
	_, _ = io.Copy(server, c)
}

// TestRedisThatAnswersNonsense: as quota store and as bus, single, Cluster and
// Sentinel, it ends no process, takes little memory, counts as away, and
// requests are decided here. It is used once it answers well.
func TestRedisThatAnswersNonsense(t *testing.T) {
	for name, reply := range map[string]string{
		"numbers":    "*2\r\n:1\r\n:1\r\n",
		"60,000,000": "*60000000\r\n",
		"2 GiB":      "$2147483647\r\n" + strings.Repeat("x", 1<<20),
		"deep":       strings.Repeat("*1\r\n", 1<<18),
		"messages":   "*3\r\n$7\r\nmessage\r\n$14\r\n+switch-master\r\n$1\r\nm\r\n",
	} {
		for mode, settings := range map[string]string{"single": `addresses: [%q]`, "cluster": `addresses: [%q, "other"]`, "sentinel": `addresses: [%q], master: m`} {
			t.Run(name+" "+mode, func(t *testing.T) {
				t.Parallel()
				dir, bad := envoytest.Dir(t), startParrot(t, reply)
				at := strings.Replace(fmt.Sprintf(settings, bad.addr), "other", strings.Replace(bad.addr, "127.0.0.1", "localhost", 1), 1)
				w := envoytest.Serve(t, dir, "version: 1\n"+envoytest.Server(dir)+`identity: {from: metadata, metadata: {namespace: door}}
models: [{name: m, pools: [chat]}]
pools: [{name: chat, variant: fp16, seats: {requests: 64}}]
store: {redis: {`+at+`}}
quotas: [{name: all, by: [tenant], limits: [{requests: 1000, per: 10m}]}]
breaker: {cascade: {bus: redis}}
`)
				conn, err := grpc.NewClient("unix:"+w.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				shows := func(lines ...string) {
					t.Helper()
					for _, line := range lines {
						envoytest.Eventually(t, 20*time.Second, line, func() bool {
							body, err := adminGet(t.Context(), "unix:"+filepath.Join(dir, "admin.sock"), "", "/metrics")
							return err == nil && strings.Contains(string(body), "\n"+line+"\n")
						})
					}
				}
				for range 20 {
					if status := askWeir(t, conn); status != 200 {
						t.Fatalf("a request: %d", status)
					}
				}
				shows("weir_store_away 1", "weir_bus_up 0")
				if w.Stopped() {
					t.Fatalf("it ended:\n%s", w.Log())
				}
				if most := peak(t, w.Pid()); most > 160 {
					t.Errorf("it took %d MiB", most)
				}
				if mode != "single" {
					return
				}
				bad.lead(envoytest.StartRedis(t).Addr)
				shows("weir_store_away 0", "weir_bus_up 1", "weir_store_pending 0")
				if status := askWeir(t, conn); status != 200 {
					t.Errorf("a request: %d", status)
				}
			})
		}
	}
}

// peak is the most memory that a process had, in MiB.
func peak(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "VmHWM:")
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return kib >> 10
}
