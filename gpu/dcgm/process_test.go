//go:build cgo && linux

package dcgm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/gpu/dcgm/dcgmtest"
	"github.com/weirproxy/weir/gpu/library"
)

// TestModes: what the library is told in each mode.
func TestModes(t *testing.T) {
	s := newShim(t)
	for _, c := range []struct {
		cfg  Config
		want []string
	}{
		{Config{}, []string{"embedded 1", "stop", "shutdown"}},
		{Config{Mode: Standalone, Address: "gpu:5555"}, []string{"connect gpu:5555 0", "disconnect", "shutdown"}},
		{Config{Mode: Standalone, Address: "unix:/run/dcgm"}, []string{"connect /run/dcgm 1", "disconnect", "shutdown"}},
	} {
		os.Truncate(s.path+".log", 0)
		r, err := Open(c.cfg)
		if err != nil {
			t.Errorf("%+v: %v", c.cfg, err)
			continue
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		calls := slices.DeleteFunc(s.calls(""), func(l string) bool { return strings.HasPrefix(l, "watch") })
		if !slices.Equal(calls, c.want) {
			t.Errorf("%+v: calls %q, want %q", c.cfg, calls, c.want)
		}
	}
	s.fault("refuse -21")
	if _, err := Open(Config{Mode: Standalone, Address: "gpu:5555"}); err == nil || !strings.Contains(err.Error(), "shim error -21") {
		t.Errorf("refused: %v", err)
	}
	if _, err := Open(Config{Mode: Standalone, Address: "vsock://2:5555"}); err == nil || !strings.Contains(err.Error(), "require DCGM 4.5") {
		t.Errorf("vsock with an older library: %v", err)
	}
}

// TestHang: a call that hangs blocks no caller, says so, costs one thread, and
// is read again when it comes back; closing meanwhile takes less than 2 s.
func TestHang(t *testing.T) {
	s := newShim(t)
	r, err := Open(Config{Config: library.Config{Timeout: 100 * time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	s.fault("hang dcgmEntityGetLatestValues")
	threads := pprof.Lookup("threadcreate").Count
	r.Cards(t.Context()) // the one that hangs
	before := threads()
	for range 50 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if _, err := r.Cards(ctx); !errors.Is(err, library.ErrHung) {
			t.Fatalf("hung: %v, want ErrHung", err)
		}
		cancel()
	}
	if n := threads() - before; n > 2 {
		t.Errorf("%d threads more after 50 looks", n)
	}
	start := time.Now()
	if err := r.Close(); !errors.Is(err, library.ErrHung) {
		t.Errorf("Close: %v, want ErrHung", err)
	}
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("Close took %s", took)
	}
	s.fault()
	for err = r.Close(); errors.Is(err, library.ErrHung); err = r.Close() {
	}
	if err != nil || len(s.calls("stop")) != 1 {
		t.Errorf("after the hang: %v, %d times stopped", err, len(s.calls("stop")))
	}
}

// TestStarted: the engine runs as a child with a socket and a process file of
// its own, is started anew when it dies, and is gone after Close.
func TestStarted(t *testing.T) {
	s := newShim(t)
	program := filepath.Join(t.TempDir(), "engine")
	script := "#!/bin/sh\nprintf '%s\\n' \"$*\" >" + program + ".args\nexec " + os.Args[0] + " -test.run '^TestAnEngine$' \"$3\"\n"
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	d := s.driver(Config{Mode: Started, Engine: program})
	same(t, "started", s.cards(d, 0), []gpu.Card{whole(0), whole(1)})
	first := d.engine
	args, _ := os.ReadFile(program + ".args")
	if want := fmt.Sprintf("-n --domain-socket %s --pid %s/pid\n", first.socket, first.folder); string(args) != want {
		t.Errorf("started with %q, want %q", args, want)
	}
	if got := s.calls("connect"); !slices.Equal(got, []string{"connect " + first.socket + " 1"}) {
		t.Errorf("calls %q", got)
	}
	first.cmd.Process.Kill()
	<-first.ended
	s.fault("error -21")
	if _, err := d.Cards(time.Unix(1001, 0)); err == nil {
		t.Error("no error without an engine")
	}
	d.Close()
	s.fault()
	if err := d.Open(time.Unix(1002, 0)); err != nil {
		t.Fatal(err)
	}
	same(t, "again", s.cards(d, 3), []gpu.Card{whole(0), whole(1)})
	second := d.engine
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	<-second.ended
	if end := second.cmd.ProcessState.Sys().(syscall.WaitStatus); end.Signal() != syscall.SIGTERM {
		t.Errorf("ended by %s, want SIGTERM", end.Signal())
	}
	if _, err := os.Stat(second.folder); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its folder is left: %v", err)
	}
	if _, err := startEngine(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no program: %v", err)
	}
	if _, err := startEngine("false"); err == nil || !strings.Contains(err.Error(), "ended") {
		t.Errorf("a program that ends: %v", err)
	}
}

// TestSymbols: the library that every test here uses exports what the guard
// looks up and nothing else, so a call that the guard forgot would end the
// tests with 127.
func TestSymbols(t *testing.T) {
	s := newShim(t)
	nm, err := exec.LookPath("nm")
	if err != nil {
		t.Skip("no nm: ", err)
	}
	out, err := exec.Command(nm, "-D", "--defined-only", filepath.Join(filepath.Dir(s.path), "libdcgm.so.4")).Output()
	if err != nil {
		t.Fatal(err)
	}
	var have []string
	for line := range strings.Lines(string(out)) {
		have = append(have, strings.Fields(line)[2])
	}
	want := called()
	slices.Sort(have)
	slices.Sort(want)
	if !slices.Equal(have, want) {
		t.Errorf("exported %q, looked up %q", have, want)
	}
}

// unguarded is the child that TestMissingSymbol starts: it reads a field
// through go-dcgm without looking for the symbol.
func unguarded() int {
	if _, err := dcgm.Init(dcgm.Embedded); err != nil {
		fmt.Println(err)
		return 3
	}
	_, err := dcgm.EntityGetLatestValues(dcgm.FE_GPU, 0, []dcgm.Short{203})
	fmt.Println("alive:", err)
	return 0
}

// TestMissingSymbol: without the guard a library that lacks a symbol ends the
// process with 127; with it, that is an error, as is a library that is not
// there.
func TestMissingSymbol(t *testing.T) {
	s := newShim(t)
	dir := t.TempDir()
	if _, err := dcgmtest.Compile(dir, "-DWITHOUT_READ"); err != nil {
		t.Fatal(err)
	}
	child := func(dir string, env ...string) (string, int) {
		cmd := exec.Command(os.Args[0], "-test.run=^TestOpenError$", "-test.v")
		cmd.Env = append(os.Environ(), append(env, "LD_LIBRARY_PATH="+dir, envShim+"="+s.path)...)
		out, _ := cmd.CombinedOutput()
		return string(out), cmd.ProcessState.ExitCode()
	}
	if out, code := child(dir, envKill+"=1"); code != 127 || !strings.Contains(out, "undefined symbol: dcgmEntityGetLatestValues") {
		t.Errorf("without the guard: exit %d, want 127\n%s", code, out)
	}
	if out, code := child(dir); code != 0 || !strings.Contains(out, library.ErrSymbol.Error()) {
		t.Errorf("symbol missing: exit %d\n%s", code, out)
	}
	if out, code := child(t.TempDir()); code != 0 || !strings.Contains(out, ErrLibrary.Error()) {
		t.Errorf("library missing: exit %d\n%s", code, out)
	}
}

// TestOpenError prints what Open says to the library of the process.
func TestOpenError(t *testing.T) {
	newShim(t)
	for _, mode := range []Mode{Embedded, Standalone, Started} {
		r, err := Open(Config{Mode: mode, Address: "localhost", Engine: "false"})
		t.Log(mode, err)
		if err == nil {
			r.Close()
		}
	}
}
