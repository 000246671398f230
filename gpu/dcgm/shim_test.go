//go:build cgo && linux

package dcgm

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/gpu/dcgm/dcgmtest"
)

// The tests against a libdcgm.so.4 (dcgmtest) run in a child of the test
// process, which has the file of faults in envShim.
const (
	envShim = dcgmtest.Env
	envKill = "WEIR_KILL" // a child that calls go-dcgm without looking first
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(envKill) != "":
		os.Exit(unguarded())
	case os.Getenv(envShim) != "":
		goleak.VerifyTestMain(m)
		return
	}
	dir, err := os.MkdirTemp("", "weir-shim-")
	var library dcgmtest.Library
	if err == nil {
		library, err = dcgmtest.Compile(dir)
	}
	if err != nil {
		fmt.Println("no test runs against a libdcgm.so.4, which could not be compiled:", err)
		os.Exit(m.Run())
	}
	cmd := exec.Command(os.Args[0], os.Args[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), library.Environ()...)
	err = cmd.Run()
	os.RemoveAll(dir)
	if cmd.ProcessState == nil {
		fmt.Println(err)
		os.Exit(2)
	}
	os.Exit(cmd.ProcessState.ExitCode())
}

// shim is the library of this process.
type shim struct {
	t    testing.TB
	path string
	log  bytes.Buffer // of the driver, where it runs in this goroutine
}

func newShim(t testing.TB) *shim {
	t.Helper()
	s := &shim{t: t, path: os.Getenv(envShim)}
	if s.path == "" {
		t.Skip("no libdcgm.so.4 could be compiled for this test")
	}
	s.fault()
	if err := os.WriteFile(s.path+".log", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

// fault sets the faults of the library, and ends those before.
func (s *shim) fault(lines ...string) {
	s.t.Helper()
	if err := (dcgmtest.Library{Dir: filepath.Dir(s.path)}).Fault(lines...); err != nil {
		s.t.Fatal(err)
	}
}

// calls are those that the library logged.
func (s *shim) calls(prefix string) (list []string) {
	s.t.Helper()
	text, err := os.ReadFile(s.path + ".log")
	if err != nil {
		s.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, prefix) {
			list = append(list, strings.TrimSpace(line))
		}
	}
	return list
}

// driver opens the library as gpu/library does, in this goroutine, so that a
// test gives the instants.
func (s *shim) driver(cfg Config) *driver {
	s.t.Helper()
	cfg.Host = "node"
	cfg.Log = slog.New(slog.NewTextHandler(&s.log, nil))
	cfg, err := cfg.filled()
	if err != nil {
		s.t.Fatal(err)
	}
	d := newDriver(cfg)
	s.t.Cleanup(func() { s.fault(); d.Close() })
	if err := d.Open(time.Unix(0, 0)); err != nil {
		s.t.Fatal(err)
	}
	return d
}

// cards looks after some seconds.
func (s *shim) cards(d *driver, second float64) []gpu.Card {
	s.t.Helper()
	cards, err := d.Cards(time.Unix(1000, 0).Add(time.Duration(second * float64(time.Second))))
	if err != nil {
		s.t.Fatal(err)
	}
	return cards
}
