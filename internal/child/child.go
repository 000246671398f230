// Package child keeps weir-gpu-agent running as a child of weir, for
// telemetry of kind dcgm (Q3, literally: DCGM on weir's own machine).
//
// weir and the child share one end each of a socket pair. Over it weir hands
// over connections (one byte with one descriptor), so that nobody else can
// connect and nothing lies in the file system; the child ends when it closes.
//
// Invariants: at most one child of an Agent runs; it ends with Close, and with
// weir, however weir ends (the kernel kills it where it can, its socket closes
// anyway); it is started again with a pause that doubles while it dies young;
// no signal goes to anything but the process that was started. A child that is
// missing or dies costs telemetry alone: Dial says why.
package child

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// The pause before a child is started again. It is the least again once a
// child has lived for maxPause.
const (
	minPause = 500 * time.Millisecond
	maxPause = 30 * time.Second
)

// grace is what a child has to end by itself before it is killed.
const grace = 3 * time.Second

// Agent is a supervised weir-gpu-agent. It is safe for concurrent use.
type Agent struct {
	path string
	args []string
	log  *slog.Logger
	end  context.CancelFunc
	work sync.WaitGroup

	mu     sync.Mutex
	socket *net.UnixConn // to the child that runs; nil = none does
	reason error         // why none does
	pid    int
}

// Start starts a child, and again whenever it ends, until Close. args go
// before the flags that are the supervisor's. A path without a slash would be
// looked for on the PATH.
func Start(path string, args []string, log *slog.Logger) *Agent {
	ctx, end := context.WithCancel(context.Background())
	a := &Agent{path: path, args: args, log: log.With("agent", path), end: end, reason: errors.New("is starting")}
	tried := make(chan struct{})
	a.work.Go(func() { a.keep(ctx, sync.OnceFunc(func() { close(tried) })) })
	<-tried
	return a
}

// Close ends the child and waits for it.
func (a *Agent) Close() {
	a.end()
	a.work.Wait()
}

// Dial makes a connection to the child that runs now.
func (a *Agent) Dial(context.Context) (net.Conn, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.socket == nil {
		return nil, fmt.Errorf("%s %w", a.path, a.reason)
	}
	ours, theirs, err := pair()
	if err != nil {
		return nil, err
	}
	defer func() { _ = theirs.Close() }()                      // the child has its own
	_ = a.socket.SetWriteDeadline(time.Now().Add(time.Second)) // of one that is stopped
	if _, _, err = a.socket.WriteMsgUnix([]byte{0}, syscall.UnixRights(int(theirs.Fd())), nil); err != nil {
		_ = ours.Close()
		return nil, fmt.Errorf("%s: %w", a.path, err)
	}
	return ours, nil
}

// Process is the process id of the child that runs, 0 for none.
func (a *Agent) Process() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.pid
}

// keep runs one child after the other; tried is called once the first one runs
// or the log says why not. The thread stays this goroutine's:
// the kernel ends a child when the thread that started it ends.
func (a *Agent) keep(ctx context.Context, tried func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer tried()
	var pause time.Duration
	said := "" // of the last failure: the log has it once
	for {
		began := time.Now()
		err := a.once(ctx, tried)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) >= maxPause {
			pause, said = 0, ""
		}
		pause = next(pause)
		level := slog.LevelWarn
		if err.Error() == said {
			level = slog.LevelDebug
		}
		said = err.Error()
		a.log.Log(ctx, level, "GPU agent does not run", "error", err, "next_try", pause.String())
		tried()
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// next is the pause after one.
func next(pause time.Duration) time.Duration { return min(max(2*pause, minPause), maxPause) }

// once runs one child to its end; running is called while it runs.
func (a *Agent) once(ctx context.Context, running func()) (err error) {
	defer func() { a.set(nil, 0, err) }()
	ours, theirs, err := pair()
	if err != nil {
		return err
	}
	defer func() { _ = ours.Close() }() // ends a child that does not hear TERM
	lines := &lines{log: a.log}
	cmd := exec.CommandContext(ctx, a.path, append(a.args[:len(a.args):len(a.args)], "--listen=fd:3", "--metrics=")...)
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.Stderr = lines
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = grace
	err = cmd.Start()
	_ = theirs.Close() // the child has its own
	if err != nil {
		return fmt.Errorf("cannot be started: %w", err)
	}
	a.set(ours, cmd.Process.Pid, nil)
	a.log.Info("GPU agent runs", "pid", cmd.Process.Pid)
	running()
	err = cmd.Wait()
	lines.flush()
	if err == nil {
		err = errors.New("exit status 0")
	}
	return fmt.Errorf("ended: %w", err)
}

func (a *Agent) set(socket *net.UnixConn, pid int, reason error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.socket, a.pid, a.reason = socket, pid, reason
}

// pair is a connected pair of stream sockets, one of them to be given away.
func pair() (ours *net.UnixConn, theirs *os.File, err error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	file := os.NewFile(uintptr(fds[0]), "weir")
	theirs = os.NewFile(uintptr(fds[1]), "agent")
	c, err := net.FileConn(file)
	_ = file.Close() // c has its own
	if err != nil {
		_ = theirs.Close()
		return nil, nil, err
	}
	ours, ok := c.(*net.UnixConn)
	if !ok {
		_, _ = c.Close(), theirs.Close()
		return nil, nil, errors.New("a socket pair of another family")
	}
	return ours, theirs, nil
}
