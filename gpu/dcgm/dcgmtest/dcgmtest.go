// Package dcgmtest makes a libdcgm.so.4 for tests that have no GPU: gpu/dcgm's
// testdata/shim.c, compiled with the headers of go-dcgm. It says what a few
// imagined GPUs read, and does wrong what a file tells it to (the source's
// first lines name the faults).
//
// The dynamic linker reads LD_LIBRARY_PATH when a process starts, so whoever
// reads the library is a child of the test, started with Environ.
package dcgmtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Env names the file of faults to the library. Beside it, with ".log" at its
// end, the library writes each call.
const Env = "WEIR_SHIM"

// Library is a folder with a libdcgm.so.4.
type Library struct{ Dir string }

// Compile makes dir/libdcgm.so.4, which has no fault yet. flags are the
// compiler's. It fails where cgo is off or there is no C compiler.
func Compile(dir string, flags ...string) (Library, error) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		return Library{}, err
	}
	if cgo, err := ask("go", "env", "CGO_ENABLED"); err != nil || cgo != "1" {
		return Library{}, errors.Join(errors.New("cgo is off"), err)
	}
	folders, err := ask("go", "list", "-f", "{{.Dir}}", "github.com/NVIDIA/go-dcgm/pkg/dcgm", "github.com/weirproxy/weir/gpu/dcgm")
	if err != nil {
		return Library{}, err
	}
	include, source, _ := strings.Cut(folders, "\n")
	args := append([]string{"-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-Wl,-soname,libdcgm.so.4", "-I" + include,
		"-o", filepath.Join(dir, "libdcgm.so.4"), filepath.Join(source, "testdata", "shim.c")}, flags...)
	if _, err := ask(cc, args...); err != nil {
		return Library{}, err
	}
	l := Library{dir}
	return l, l.Fault()
}

// ask is what a command says.
func ask(name string, args ...string) (string, error) {
	out, err := exec.Command(name, args...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%w\n%s", err, exit.Stderr)
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// Environ are the variables of a process that finds this library.
func (l Library) Environ() []string {
	return []string{"LD_LIBRARY_PATH=" + l.Dir, Env + "=" + l.Faults()}
}

// Faults is the path of the file of faults.
func (l Library) Faults() string { return filepath.Join(l.Dir, "faults") }

// Fault sets the faults of the library, and ends those before.
func (l Library) Fault(lines ...string) error {
	next := l.Faults() + ".next"
	if err := os.WriteFile(next, []byte(strings.Join(append(lines, ""), "\n")), 0o600); err != nil {
		return err
	}
	return os.Rename(next, l.Faults())
}
