package child

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weirproxy/weir/internal/envoytest"
)

// The roles that the test binary plays beside the test.
const (
	role      = "WEIR_CHILD_TEST_ROLE"
	roleAgent = "agent" // greets on each connection that is handed over
	roleDeaf  = "deaf"  // does not hear TERM
	roleDies  = "dies"  // at once, with a dynamic linker's last words
	roleWeir  = "weir"  // starts an agent, says its pid, and waits
)

func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case roleAgent, roleDeaf:
		play(os.Getenv(role) == roleDeaf)
	case roleDies:
		fmt.Fprint(os.Stderr, "symbol lookup error: undefined symbol: dcgmNew")
		os.Exit(127)
	case roleWeir:
		_ = os.Setenv(role, roleAgent)
		a := Start(os.Args[0], nil, slog.New(slog.DiscardHandler))
		fmt.Println(a.Process())
		select {}
	}
	goleak.VerifyTestMain(m)
}

// play is an agent: what it says on a connection is its pid and arguments.
func play(deaf bool) {
	if deaf {
		signal.Ignore(syscall.SIGTERM)
	}
	c, err := net.FileConn(os.NewFile(3, "socket"))
	if err != nil {
		os.Exit(1)
	}
	fmt.Fprintln(os.Stderr, `{"time":"x","level":"ERROR","msg":"hello","cards":8}`)
	for {
		message, rights := make([]byte, 1), make([]byte, syscall.CmsgSpace(4))
		_, n, _, _, err := c.(*net.UnixConn).ReadMsgUnix(message, rights)
		if err != nil || n == 0 {
			os.Exit(0)
		}
		m, _ := syscall.ParseSocketControlMessage(rights[:n])
		fds, _ := syscall.ParseUnixRights(&m[0])
		f := os.NewFile(uintptr(fds[0]), "connection")
		fmt.Fprintln(f, os.Getpid(), strings.Join(os.Args[1:], " "))
		_ = f.Close()
	}
}

// record is a log that a test reads.
type record struct {
	mu   sync.Mutex
	text strings.Builder
}

func (r *record) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(p)
}

func (r *record) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.String()
}

func (r *record) log() *slog.Logger {
	return slog.New(slog.NewTextHandler(r, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// started is a supervised child of a role.
func started(t *testing.T, as string, r *record) *Agent {
	t.Helper()
	t.Setenv(role, as)
	a := Start(os.Args[0], []string{"--every=1s"}, r.log())
	t.Cleanup(a.Close)
	return a
}

// greeting is what the child that runs now says; "" = none could be reached.
func greeting(t *testing.T, a *Agent) string {
	t.Helper()
	c, err := a.Dial(t.Context())
	if err != nil {
		return ""
	}
	defer func() { _ = c.Close() }()
	said, _ := io.ReadAll(c)
	return strings.TrimSpace(string(said))
}

// gone: the process has ended and was waited for.
func gone(pid int) bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

func TestConnectionsAreHandedOver(t *testing.T) {
	var r record
	a := started(t, roleAgent, &r)
	want := fmt.Sprintf("%d --every=1s --listen=fd:3 --metrics=", a.Process())
	for range 20 {
		if got := greeting(t, a); got != want {
			t.Fatalf("%q, want %q", got, want)
		}
	}
	envoytest.Eventually(t, 30*time.Second, "the child's log", func() bool {
		return strings.Contains(r.String(), `level=ERROR msg="GPU agent: hello"`) && strings.Contains(r.String(), "cards=8")
	})
	pid := a.Process()
	a.Close()
	if !gone(pid) {
		t.Errorf("process %d is left after Close", pid)
	}
	if _, err := a.Dial(t.Context()); err == nil {
		t.Error("a connection after Close")
	}
}

// A child that is killed is another process soon.
func TestKilledChildIsStartedAgain(t *testing.T) {
	var r record
	a := started(t, roleAgent, &r)
	first := a.Process()
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	envoytest.Eventually(t, 30*time.Second, "another child", func() bool {
		said := greeting(t, a)
		return said != "" && !strings.HasPrefix(said, strconv.Itoa(first)+" ")
	})
	if !strings.Contains(r.String(), "signal: killed") {
		t.Error(r.String())
	}
}

// A child that dies at once is started ever more rarely, and its last words
// are in the log; one that is missing is said so at once.
func TestChildThatCannotRun(t *testing.T) {
	var r record
	a := started(t, roleDies, &r)
	envoytest.Eventually(t, 30*time.Second, "three tries", func() bool { return strings.Count(r.String(), "GPU agent does not run") >= 3 })
	for _, want := range []string{"symbol lookup error", "exit status 127", "next_try=500ms", "next_try=1s", "next_try=2s"} {
		if !strings.Contains(r.String(), want) {
			t.Errorf("the log misses %q: %s", want, r.String())
		}
	}
	if n := strings.Count(r.String(), `level=WARN msg="GPU agent does not run"`); n != 1 {
		t.Errorf("%d warnings of the same: %s", n, r.String())
	}
	if _, err := a.Dial(t.Context()); err == nil || !strings.Contains(err.Error(), "127") {
		t.Errorf("a connection to a child that has died: %v", err)
	}

	var missing record
	path := filepath.Join(t.TempDir(), "weir-gpu-agent")
	b := Start(path, nil, missing.log())
	t.Cleanup(b.Close)
	if _, err := b.Dial(t.Context()); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), path) {
		t.Errorf("a connection to a child that is missing: %v", err)
	}
	if !strings.Contains(missing.String(), "no such file") {
		t.Errorf("the log at the start: %s", missing.String())
	}
}

// A child that does not hear TERM is killed.
func TestDeafChildIsKilled(t *testing.T) {
	var r record
	a := started(t, roleDeaf, &r)
	greeting(t, a) // it is deaf by now
	pid := a.Process()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil { // nor does it see its socket close
		t.Fatal(err)
	}
	began := time.Now()
	a.Close()
	if took := time.Since(began); !gone(pid) || took > 2*grace {
		t.Errorf("after %v, gone: %v", took, gone(pid))
	}
}

// A child ends with weir, also where weir is killed and cannot say so.
func TestChildEndsWithWeir(t *testing.T) {
	weir := exec.Command(os.Args[0])
	weir.Env = append(os.Environ(), role+"="+roleWeir)
	out, err := weir.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := weir.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Fscan(out, &pid); err != nil || pid <= 0 {
		t.Fatalf("pid %d, %v", pid, err)
	}
	if gone(pid) {
		t.Fatal("there was no child")
	}
	if err := weir.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = weir.Wait()
	envoytest.Eventually(t, 30*time.Second, "the child ends", func() bool { return gone(pid) || zombie(pid) })
}

// zombie: ended, and not yet waited for by whoever inherits it.
func zombie(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return strings.HasPrefix(rest, "Z")
}

func TestPause(t *testing.T) {
	want := []time.Duration{minPause, 2 * minPause, 4 * minPause}
	pause := time.Duration(0)
	for i, w := range want {
		if pause = next(pause); pause != w {
			t.Errorf("pause %d is %v, want %v", i, pause, w)
		}
	}
	for range 20 {
		pause = next(pause)
	}
	if pause != maxPause {
		t.Errorf("the longest pause is %v, want %v", pause, maxPause)
	}
}

// Lines come in any pieces; what is no line of an agent is said as it is, and
// a line without end is cut.
func TestLines(t *testing.T) {
	var r record
	l := lines{log: slog.New(slog.NewTextHandler(&r, nil))}
	for _, piece := range []string{"{\"level\":\"DEB", "UG\",\"msg\":\"quiet\"}\n{\"msg\":\"no level\"}\nplain", " words\n\n", strings.Repeat("x", 3*maxLine), "\n", "last"} {
		if n, err := l.Write([]byte(piece)); n != len(piece) || err != nil {
			t.Fatal(n, err)
		}
	}
	l.flush()
	said := r.String()
	for want, times := range map[string]int{"quiet": 0, `level=WARN msg="GPU agent: no level"`: 1, `line="plain words"`: 1, "line=last": 1, strings.Repeat("x", maxLine): 1, strings.Repeat("x", maxLine+1): 0} {
		if got := strings.Count(said, want); got != times {
			t.Errorf("%.60q is there %d times, want %d", want, got, times)
		}
	}
}
