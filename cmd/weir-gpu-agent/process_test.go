package main

import (
	"bytes"
	"context"
	"log/slog"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/gpu/agent"
	"github.com/weirproxy/weir/gpu/sourcetest"
	"github.com/weirproxy/weir/internal/envoytest"
	"github.com/weirproxy/weir/policy"
)

// busy is a node whose eight GPUs are 90 % busy.
const busy = "gpus: 8\npoints: [{at: 0s, util: 90%}]\n"

// process starts an agent as a process of its own, on a node that is busy.
func process(t testing.TB, socket string, files []*os.File, args ...string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	script := filepath.Join(t.TempDir(), "curve.yaml")
	if err := os.WriteFile(script, []byte(busy), 0o600); err != nil {
		t.Fatal(err)
	}
	return started(t, nil, files, append([]string{"--source=script", "--script=" + script, "--every=100ms", "--listen=" + socket, "--metrics="}, args...)...)
}

// started is an agent with these flags; what it says is whole once it ended.
func started(t testing.TB, env []string, files []*os.File, args ...string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	said := new(bytes.Buffer)
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(append(os.Environ(), asAgent+"=1"), env...)
	cmd.Stderr, cmd.ExtraFiles = said, files
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd, said
}

// gauge is a pool's gauge that an agent feeds.
func gauge(t *testing.T, s gpu.Source) func() (pressure float64, stale bool) {
	t.Helper()
	c := policy.Default().Gauge
	target := gpu.Target{Source: s, Every: 100 * time.Millisecond}
	g := gpu.NewGauge(c, []gpu.SourceInfo{target.Info()}, time.Now())
	p := gpu.StartPoller(g, []gpu.Target{target}, 1, slog.New(slog.DiscardHandler))
	t.Cleanup(p.Close)
	return func() (float64, bool) {
		now := time.Now()
		_, stale := g.Reading().Age(now)
		return g.Reading().Pressure(now), stale
	}
}

// An agent that is killed or stopped under a weir that watches: pressure
// decays to neutral by the stale rule, whatever was said last, and follows the
// agent again once it is back.
func TestAgentKilledAndPaused(t *testing.T) {
	socket := "unix:" + filepath.Join(shortDir(t), "s")
	cmd, _ := process(t, socket, nil)
	s, err := agent.New(agent.Config{Name: "node", Address: socket, Every: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	reading := gauge(t, s)
	follows := func() bool { p, stale := reading(); return !stale && p > 0.85 }
	neutral := func() bool { p, stale := reading(); return stale && math.Abs(p-0.5) < 0.01 }
	envoytest.Eventually(t, time.Minute, "pressure follows the agent", follows)
	for range 2 {
		if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		envoytest.Eventually(t, time.Minute, "pressure is neutral while the agent is stopped", neutral)
		if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		envoytest.Eventually(t, time.Minute, "pressure follows the agent that goes on", follows)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	envoytest.Eventually(t, time.Minute, "pressure is neutral while there is no agent", neutral)
	process(t, socket, nil)
	envoytest.Eventually(t, time.Minute, "pressure follows the new agent", follows)
}

// TERM ends an agent within two seconds, with exit code 0.
func TestTerm(t *testing.T) {
	socket := "unix:" + filepath.Join(shortDir(t), "s")
	cmd, said := process(t, socket, nil)
	s := sourcetest.Open(t, agent.New, agent.Config{Name: "node", Address: socket})
	envoytest.Eventually(t, time.Minute, "a look", func() bool { _, err := s.Sample(t.Context()); return err == nil })
	began := time.Now()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil || time.Since(began) > 2*time.Second || !strings.Contains(said.String(), `"msg":"ended"`) {
		t.Errorf("%v after %v: %s", err, time.Since(began), said)
	}
}

// Connections that come over the socket an agent was started with are served,
// anything else that comes is let be, and the agent ends with the socket.
func TestHandedOver(t *testing.T) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
	c, err := net.FileConn(ours)
	if err != nil {
		t.Fatal(err)
	}
	_ = ours.Close()
	socket := c.(*net.UnixConn)
	t.Cleanup(func() { _ = socket.Close() })
	cmd, said := process(t, "fd:3", []*os.File{theirs})
	_ = theirs.Close()
	if _, err := socket.Write([]byte("x")); err != nil { // no descriptor with it
		t.Fatal(err)
	}
	if _, _, err := socket.WriteMsgUnix([]byte{0}, syscall.UnixRights(0, 1), nil); err != nil { // too many
		t.Fatal(err)
	}
	for range 3 {
		s := sourcetest.Open(t, agent.New, agent.Config{Name: "node", Dial: handOver(socket)})
		if got, err := s.Sample(t.Context()); err != nil || len(got.Cards) != 8 {
			t.Fatalf("%d cards, %v", len(got.Cards), err)
		}
	}
	_ = socket.Close()
	if err := cmd.Wait(); err != nil || !strings.Contains(said.String(), errParentGone.Error()) {
		t.Errorf("%v: %s", err, said)
	}
}

// handOver dials by handing over one end of a pair.
func handOver(socket *net.UnixConn) func(context.Context) (net.Conn, error) {
	return func(context.Context) (net.Conn, error) {
		fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		ours, theirs := os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
		defer func() { _, _ = ours.Close(), theirs.Close() }()
		if _, _, err := socket.WriteMsgUnix([]byte{0}, syscall.UnixRights(int(theirs.Fd())), nil); err != nil {
			return nil, err
		}
		return net.FileConn(ours)
	}
}
