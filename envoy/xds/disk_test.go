package xds

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weirproxy/weir/envoy/discovery"
)

// sized is a state of so many hosts, whose override says how many.
func sized(t testing.TB, hosts int) *state {
	t.Helper()
	b := newBook("old", nil)
	snap := one(int64(hosts))
	v := discovery.View{Version: 1}
	for i := range hosts {
		v.Endpoints = append(v.Endpoints, view(1, fmt.Sprintf("10.0.%d.%d:80", i/250, i%250)).Endpoints[0])
	}
	snap.Endpoints["m"] = v
	if _, err := b.set(t0, snap); err != nil {
		t.Fatal(err)
	}
	return b.save(t0)
}

// isWhole reports whether a state is one that sized made.
func isWhole(s *state) bool {
	return s != nil && len(s.Clusters) == 1 && s.Clusters[0].Runtime[requests] == int64(len(s.Clusters[0].Endpoints))
}

// What lies where the state should: refused with a reason and at once, and
// replaced by the next state where it can be.
func TestWhatIsNoState(t *testing.T) {
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	for _, c := range []struct {
		name     string
		put      func(name string) error
		refused  string // "" = taken for none
		replaced bool
	}{
		{"a directory", func(n string) error { return os.MkdirAll(filepath.Join(n, "x"), 0o700) }, "must be a file (is d", false},
		{"a pipe", func(n string) error { return syscall.Mkfifo(n, 0o600) }, "must be a file (is p", true},
		{"a device", func(n string) error { return os.Symlink("/dev/zero", n) }, "must be a file", true},
		{"a link to nothing", func(n string) error { return os.Symlink(elsewhere, n) }, "", true},
		{"a link in a circle", func(n string) error { return os.Symlink(n, n) }, "too many levels", true},
		{"an empty file", func(n string) error { return os.WriteFile(n, nil, 0o600) }, "is no state of this release", true},
		{"another release's", func(n string) error { return os.WriteFile(n, []byte("weir-xds-state 2 sha256 00\n{}"), 0o600) }, "is no state of this release", true},
		{"no object", func(n string) error { return os.WriteFile(n, sealed([]byte("[]")), 0o600) }, "cannot unmarshal", true},
		{"nested without end", func(n string) error {
			return os.WriteFile(n, sealed([]byte(strings.Repeat(`{"clusters":[`, 100_000))), 0o600)
		}, "exceeded max depth", true},
		{"1 GB", func(n string) error { return errors.Join(os.WriteFile(n, nil, 0o600), os.Truncate(n, 1<<30)) }, "must be at most", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			name := filepath.Join(dir, stateFile)
			if err := c.put(name); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			s := New(t0, Options{Dir: dir})
			defer s.Close()
			if d := s.Stats().Disk; !strings.Contains(d.Refused, c.refused) || (d.Refused == "") != (c.refused == "") || !d.Restored.IsZero() {
				t.Errorf("%+v, want refused: %s", d, c.refused)
			}
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("it took %v", took)
			}
			if err := s.Set(t0, one(6, "10.0.0.1:80")); err != nil {
				t.Fatal(err)
			}
			s.save(t0)
			st, err := readState(dir)
			if replaced := err == nil && st != nil && len(st.Clusters) == 1; replaced != c.replaced || (s.Stats().Disk.Error == "") != c.replaced {
				t.Errorf("replaced: %t, want %t: %v, %+v", replaced, c.replaced, err, s.Stats().Disk)
			}
			if _, err := os.Lstat(name + ".tmp"); !os.IsNotExist(err) {
				t.Errorf("a temporary file stays: %v", err)
			}
		})
	}
	if _, err := os.Stat(elsewhere); !os.IsNotExist(err) {
		t.Errorf("a link was followed to write: %v", err)
	}
}

// A link in the temporary file's place leads nowhere.
func TestTemporaryStateIsNoLink(t *testing.T) {
	dir, victim := t.TempDir(), filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(victim, filepath.Join(dir, stateFile+".tmp")); err != nil {
		t.Fatal(err)
	}
	if err := sized(t, 3).write(dir); err != nil {
		t.Fatal(err)
	}
	if text, _ := os.ReadFile(victim); string(text) != "precious" {
		t.Errorf("it was written through: %q", text)
	}
	if st, err := readState(dir); err != nil || !isWhole(st) {
		t.Errorf("%+v %v", st, err)
	}
}

// Two processes with one directory: each state on disk is whole, at any time,
// and it is said once.
func TestTwoServersOfOneState(t *testing.T) {
	dir := t.TempDir()
	if err := sized(t, 1).write(dir); err != nil {
		t.Fatal(err)
	}
	states := [][]*state{{sized(t, 10), sized(t, 3000)}, {sized(t, 20), sized(t, 2000)}}
	var work sync.WaitGroup
	for _, own := range states {
		work.Go(func() {
			for i := range 60 {
				if err := own[i%2].write(dir); err != nil && !strings.Contains(err.Error(), "another process writes") {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { defer close(done); work.Wait() }()
	for reading := true; reading; {
		if st, err := readState(dir); err != nil || !isWhole(st) {
			t.Errorf("half a state: %v", err)
		}
		select {
		case <-done:
			reading = false
		default:
		}
	}

	var words bytes.Buffer
	a := New(t0, Options{Dir: dir, Log: slog.New(slog.NewTextHandler(&words, nil))})
	b := New(t0, Options{Dir: dir})
	defer a.Close()
	defer b.Close()
	for range 3 {
		a.save(t0)
		b.save(t0)
	}
	if got := strings.Count(words.String(), "another process keeps its state"); got != 1 {
		t.Errorf("said %d times:\n%s", got, words.String())
	}
	if d := a.Stats().Disk; d.Error != "" {
		t.Errorf("%+v", d)
	}
}

// childDir names the directory to the processes that the tests below start.
const childDir = "WEIR_XDS_STATE_CHILD"

// child is this test again, as a process of its own.
func child(t *testing.T, dir string) *exec.Cmd {
	t.Helper()
	c := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	c.Env = append(os.Environ(), childDir+"="+dir)
	return c
}

// kill -9 at any moment of writing: what is on disk then is a whole state, and
// the next process writes on.
func TestKilledWhileWriting(t *testing.T) {
	if dir := os.Getenv(childDir); dir != "" {
		small, large := sized(t, 10), sized(t, 5000)
		for {
			_ = small.write(dir)
			_ = large.write(dir)
			_, _ = os.Stdout.WriteString(".")
		}
	}
	dir := t.TempDir()
	r := rand.New(rand.NewPCG(1, 2))
	torn := 0
	for range 50 {
		c := child(t, dir)
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Duration(r.IntN(15_000)) * time.Microsecond) // into the middle of a write, at random
		_ = c.Process.Kill()
		_ = c.Wait()
		if _, err := os.Stat(filepath.Join(dir, stateFile+".tmp")); err == nil {
			torn++
		}
		if st, err := readState(dir); err != nil || !isWhole(st) {
			t.Fatalf("half a state: %v", err)
		}
	}
	t.Logf("%d of 50 were killed while they wrote", torn)
	if torn == 0 {
		t.Error("none was killed while it wrote: this proves nothing")
	}
	if err := sized(t, 7).write(dir); err != nil {
		t.Error(err)
	}
	if st, err := readState(dir); err != nil || !isWhole(st) || len(st.Clusters[0].Endpoints) != 7 {
		t.Errorf("%v", err)
	}
}

// A disk without room: the last state stays, the error is kept, and writing
// goes on when there is room again.
func TestNoRoomForTheState(t *testing.T) {
	if dir := os.Getenv(childDir); dir != "" {
		signal.Ignore(syscall.SIGXFSZ)
		old := syscall.Rlimit{}
		if err := errors.Join(syscall.Getrlimit(syscall.RLIMIT_FSIZE, &old), syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 10_000, Max: old.Max})); err != nil {
			t.Fatal(err)
		}
		if err := sized(t, 3000).write(dir); !errors.Is(err, syscall.EFBIG) {
			t.Errorf("%v, want %v", err, syscall.EFBIG)
		}
		if st, err := readState(dir); err != nil || len(st.Clusters[0].Endpoints) != 3 {
			t.Errorf("the last state is lost: %v", err)
		}
		if _, err := os.Stat(filepath.Join(dir, stateFile+".tmp")); !os.IsNotExist(err) {
			t.Errorf("what did not fit stays: %v", err)
		}
		if err := errors.Join(syscall.Setrlimit(syscall.RLIMIT_FSIZE, &old), sized(t, 3000).write(dir)); err != nil {
			t.Error(err)
		}
		return
	}
	dir := t.TempDir()
	if err := sized(t, 3).write(dir); err != nil {
		t.Fatal(err)
	}
	if out, err := child(t, dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if st, err := readState(dir); err != nil || len(st.Clusters[0].Endpoints) != 3000 {
		t.Errorf("%v", err)
	}
}
