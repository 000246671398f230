//go:build cgo && linux

package dcgm

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

const (
	engineProgram = "nv-hostengine"
	engineStart   = 10 * time.Second       // until it listens
	enginePoll    = 20 * time.Millisecond  // between looks whether it does
	engineGrace   = 500 * time.Millisecond // between TERM and KILL
)

// engine is a host engine that runs as our child: on a socket and with a
// process file of its own, beside any other on this machine, and only ever
// ended by its process id.
type engine struct {
	cmd    *exec.Cmd
	folder string
	socket string
	ended  chan struct{}
	err    error // of its end; read after ended
}

// startEngine starts program ("" = nv-hostengine) and waits until it listens.
func startEngine(program string) (*engine, error) {
	if program == "" {
		program = engineProgram
	}
	folder, err := os.MkdirTemp("", "weir-dcgm-") // 0700
	if err != nil {
		return nil, err
	}
	e := &engine{folder: folder, socket: filepath.Join(folder, "socket"), ended: make(chan struct{})}
	e.cmd = exec.Command(program, "-n", "--domain-socket", e.socket, "--pid", filepath.Join(folder, "pid"))
	e.cmd.Stdout, e.cmd.Stderr = os.Stderr, os.Stderr
	// It must not outlive us. The signal comes when the thread ends that
	// started it: the library's own, which ends after stop.
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := e.cmd.Start(); err != nil {
		os.RemoveAll(folder)
		return nil, fmt.Errorf("starting the host engine: %w", err)
	}
	go func() { e.err = e.cmd.Wait(); close(e.ended) }()
	if err := e.listens(); err != nil {
		return nil, errors.Join(err, e.stop())
	}
	return e, nil
}

// listens waits until the engine takes connections.
func (e *engine) listens() error {
	late := time.After(engineStart)
	for {
		if c, err := net.Dial("unix", e.socket); err == nil {
			return c.Close()
		}
		select {
		case <-e.ended:
			return fmt.Errorf("the host engine ended: %w", errors.Join(errors.New(e.cmd.String()), e.err))
		case <-late:
			return fmt.Errorf("the host engine does not listen after %s", engineStart)
		case <-time.After(enginePoll):
		}
	}
}

// stop ends the engine within engineGrace.
func (e *engine) stop() error {
	defer os.RemoveAll(e.folder)
	_ = e.cmd.Process.Signal(syscall.SIGTERM) // of one that ended: nothing to signal
	select {
	case <-e.ended:
		return nil
	case <-time.After(engineGrace):
	}
	if err := e.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("ending the host engine: %w", err)
	}
	<-e.ended
	return nil
}
