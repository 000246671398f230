package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// server is a child process with gRPC and admin on two sockets.
type server struct {
	name  string
	grpc  string // socket
	log   string // file
	admin *http.Client
	cmd   *exec.Cmd
	ended chan struct{}
}

// start runs a command that listens on grpc and admin, and waits until it is
// ready. The child's Go runtime has its defaults, but for procs.
func start(ctx context.Context, name, grpc, admin string, procs int, command ...string) (*server, error) {
	s := &server{name: name, grpc: grpc, log: grpc + ".log", admin: unixClient(admin), ended: make(chan struct{})}
	log, err := os.Create(s.log)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the child has its own
	s.cmd = exec.Command(command[0], command[1:]...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	s.cmd.Env = slices.DeleteFunc(os.Environ(), func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		return slices.Contains([]string{"GOGC", "GOMEMLIMIT", "GODEBUG", "GOMAXPROCS"}, name)
	})
	if procs > 0 {
		s.cmd.Env = append(s.cmd.Env, "GOMAXPROCS="+strconv.Itoa(procs))
	}
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(s.ended)
		_ = s.cmd.Wait() // how it ended is in its log
	}()
	if err := s.ready(ctx); err != nil {
		s.close()
		tail, _ := os.ReadFile(s.log)
		return nil, fmt.Errorf("%s: %w; its output:\n%s", name, err, tail)
	}
	return s, nil
}

func (s *server) pid() int { return s.cmd.Process.Pid }

// close kills the process and waits for its end.
func (s *server) close() {
	_ = s.cmd.Process.Kill() // it may have ended by itself
	<-s.ended
	s.admin.CloseIdleConnections()
}

func (s *server) ready(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, 20*time.Second)
	defer stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := s.get(ctx, "/readyz"); err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-s.ended:
			return errors.New("ended at its start")
		case <-ctx.Done():
			return errors.New("was not ready in time")
		}
	}
}

// get reads a path of the admin server.
func (s *server) get(ctx context.Context, path string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://admin"+path, nil)
	if err != nil {
		return "", err
	}
	res, err := s.admin.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return "", err
	}
	if res.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: GET %s: %s", s.name, path, res.Status)
	}
	return string(body), nil
}

// counters reads the samples of a metric: the text between the braces, "" for
// none, and the value.
func (s *server) counters(ctx context.Context, metric string) (map[string]float64, error) {
	page, err := s.get(ctx, "/metrics")
	if err != nil {
		return nil, err
	}
	out := map[string]float64{}
	for line := range strings.Lines(page) {
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), metric)
		if !ok || rest == "" || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		at := strings.LastIndexByte(rest, ' ')
		v, err := strconv.ParseFloat(rest[at+1:], 64)
		if err != nil {
			return nil, fmt.Errorf("%s: metric %s: %w", s.name, metric, err)
		}
		out[strings.Trim(rest[:at], "{}")] = v
	}
	return out, nil
}

func unixClient(socket string) *http.Client {
	return &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		},
	}}
}

// cpu is the time that a process has had on a CPU, over all threads.
func cpu(pid int) (time.Duration, error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(files) == 0 {
		return 0, fmt.Errorf("/proc/%d/task: no schedstat (%w)", pid, errors.Join(err, os.ErrNotExist))
	}
	var sum time.Duration
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			continue // the thread has just ended
		}
		first, _, _ := strings.Cut(string(data), " ")
		ns, err := strconv.ParseInt(first, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", f, err)
		}
		sum += time.Duration(ns)
	}
	return sum, nil
}

// busy is the machine's CPU time that was not idle, stolen time included.
func busy() (time.Duration, error) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(data), "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 {
		return 0, fmt.Errorf("/proc/stat begins with %q", line)
	}
	const idle, iowait, tick = 3, 4, 10 * time.Millisecond // USER_HZ is 100 on Linux
	var sum time.Duration
	for i, f := range fields[1:9] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/stat: %w", err)
		}
		if i != idle && i != iowait {
			sum += time.Duration(n) * tick
		}
	}
	return sum, nil
}
