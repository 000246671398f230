// Package envoytest starts real neighbours for tests on loopback: released
// Envoys with the example configurations, a redis-server, and weir itself as a
// process. Everything started here is ended with the test, by pid.
//
// The Envoy binaries come from WEIR_ENVOYS (paths, separated by spaces) or, in
// a checkout where build/envoy ran, from .tools. A missing neighbour fails the
// test with the command that brings it; only etcd skips, see StartEtcd.
package envoytest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Root is the checkout's folder.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..")
}

// Binary is one Envoy release.
type Binary struct {
	Version string // "1.40.0"; "own" for ENVOY=/path
	Path    string
}

// Minor is the release's minor number (40 for 1.40.0), 99 when unknown.
func (b Binary) Minor() int {
	var major, minor int
	if _, err := fmt.Sscanf(b.Version, "%d.%d", &major, &minor); err != nil {
		return 99
	}
	return minor
}

// Envoys are the releases to test, newest first as given.
func Envoys(t testing.TB) []Binary {
	t.Helper()
	paths := strings.Fields(os.Getenv("WEIR_ENVOYS"))
	if len(paths) == 0 {
		for _, v := range []string{"1.40.0", "1.36.4"} {
			p := filepath.Join(Root(), ".tools", "envoy-"+v)
			if _, err := os.Stat(p); err == nil {
				paths = append(paths, p)
			}
		}
	}
	if len(paths) == 0 {
		t.Fatal("no Envoy to test with: run build/envoy 1.40.0 1.36.4, or set WEIR_ENVOYS to paths")
	}
	version := regexp.MustCompile(`\d+\.\d+\.\d+$`)
	var out []Binary
	for _, p := range paths {
		v := version.FindString(filepath.Base(p))
		if v == "" {
			v = "own"
		}
		out = append(out, Binary{v, p})
	}
	return out
}

// EachEnvoy runs fn as a subtest for every release.
func EachEnvoy(t *testing.T, fn func(t *testing.T, b Binary)) {
	t.Helper()
	for _, b := range Envoys(t) {
		t.Run(b.Version, func(t *testing.T) { fn(t, b) })
	}
}

// Process is a child that the test owns.
type Process struct {
	cmd  *exec.Cmd
	log  *Log
	done chan struct{}
}

// start runs a command and ends it with the test.
func start(t testing.TB, name string, cmd *exec.Cmd) *Process {
	t.Helper()
	p := &Process{cmd: cmd, log: &Log{}, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p.log, p.log
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	go func() {
		defer close(p.done)
		_ = cmd.Wait() // the exit is seen through done; status in ProcessState
	}()
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("--- last output of %s ---\n%s", name, p.log.String())
		}
	})
	return p
}

// Kill ends the process at once (SIGKILL) and waits for it.
func (p *Process) Kill() { p.Signal(syscall.SIGKILL); <-p.done }

// Signal sends a signal; a process that is gone is no error.
func (p *Process) Signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// Stopped reports whether the process stands still after a SIGSTOP.
func (p *Process) Stopped() bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Pid()))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return strings.HasPrefix(rest, "T")
}

// Memory is a figure in KiB of /proc/<pid>/status, see proc(5): VmRSS is what
// the process has now, VmHWM the most that it had.
func (p *Process) Memory(t testing.TB, figure string) (kib int) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Pid()))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "\n"+figure+":")
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		t.Fatalf("%s: %v", figure, err)
	}
	return kib
}

// Exited is closed when the process has ended.
func (p *Process) Exited() <-chan struct{} { return p.done }

// ExitCode is the exit status after Exited.
func (p *Process) ExitCode() int { return p.cmd.ProcessState.ExitCode() }

// Log is the last part of its output.
func (p *Process) Log() string { return p.log.String() }

// Pid is the process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Log keeps the last 64 KiB of output, to be read while it grows. The zero
// value is empty; safe for concurrent use.
type Log struct {
	mu  sync.Mutex
	buf []byte
}

func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf = append(l.buf, p...)
	if over := len(l.buf) - 64<<10; over > 0 {
		l.buf = append(l.buf[:0], l.buf[over:]...)
	}
	return len(p), nil
}

func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(bytes.Clone(l.buf))
}

// Dir is a short folder for sockets (a Unix socket path holds 107 bytes).
func Dir(t testing.TB) string {
	t.Helper()
	d, err := os.MkdirTemp("", "weir")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(d) })
	return d
}

// UnixClient is an HTTP client that dials one Unix socket.
func UnixClient(path string) *http.Client {
	return &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		},
	}}
}

// Eventually polls until ok or the limit; the last message says what missed.
func Eventually(t testing.TB, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), limit)
	defer stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("within %v: %s", limit, what)
		}
	}
}

// Holds checks for a while that something stays so: what real neighbours do to
// it in that time would be seen.
func Holds(t testing.TB, during time.Duration, what string, ok func() bool) {
	t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), during)
	defer stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		if !ok() {
			t.Fatalf("not for %v: %s", during, what)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// getJSON reads a JSON document from a socket's HTTP server.
func getJSON(c *http.Client, url string, into any) error {
	res, err := c.Get(url)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", url, res.Status, body)
	}
	return json.Unmarshal(body, into)
}
