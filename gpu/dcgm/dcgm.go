// Package dcgm reads the GPUs of this machine through NVIDIA's Data Center GPU
// Manager (Q3), for cmd/weir-gpu-agent alone.
//
// It stands on github.com/NVIDIA/go-dcgm, needs cgo and Linux, and loads
// libdcgm.so.4 when it is opened; without cgo, Open says so (library.ErrNoCgo).
//
// Why it may live in no process that decides: libdcgm is foreign code of a
// driver. It can crash, and a symbol that it lacks makes the dynamic linker
// end the whole process with status 127 at the first call. Open looks up every
// symbol that this package calls beforehand and fails with library.ErrSymbol instead;
// with LD_BIND_NOW set, the linker does not wait for that.
//
// Fields are known by number, in a table (table.go), for DCGM renames them.
// Each GPU and each MIG instance is watched by itself as far as it must: one
// field that a board refuses, or one board that differs, costs only itself
// (kempnerpulse#13, dcgm-exporter#657).
//
// Invariants: a blank, a sentinel (also an int32's in an int64, or an
// integer's in a float), a value out of its field's bounds and a value whose
// time stamp stands still are missing, never numbers; a GPU's own utilisation
// is missing while it has MIG instances (dcgm-exporter#216: it stays 0); what
// is blank for Renew is watched anew (DCGM#202), again and again with a pause
// that doubles up to maxRenew. Calls may hang: gpu/library keeps them away
// from the caller, closes what failed and opens it again. DCGM has one
// connection for each process, so there must be one Reader at a time.
//
// Never run on a real GPU: libdcgm, a real nv-hostengine, MIG and XID errors.
// The tests run go-dcgm against a libdcgm.so.4 of their own making, compiled
// with go-dcgm's headers. Unproved are so: what a real DCGM answers to a watch
// that a board refuses, that time stamps of unchanged values move on and that of an XID error
// does not, the unit
// of fields 200 and 201 (taken as 1000 bytes a second), and the flags of
// nv-hostengine.
package dcgm

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/weirproxy/weir/gpu/library"
)

// ErrLibrary is an error of Open beside those of gpu/library, wrapped with what
// was missing.
var ErrLibrary = errors.New("libdcgm.so.4 cannot be loaded")

// Mode is where the host engine of DCGM runs.
type Mode uint8

// The modes: inside this process; on its own, at Config.Address; as a child
// process that is started, and ended, here.
const (
	Embedded Mode = iota
	Standalone
	Started
)

func (m Mode) String() string {
	return [...]string{"embedded", "standalone", "started"}[min(m, Started)]
}

// The defaults of a Config.
const (
	DefaultEvery = time.Second
	DefaultRenew = time.Minute
	maxRenew     = 15 * time.Minute
)

// Config of a Reader. The zero value is embedded, each second.
type Config struct {
	library.Config

	Mode    Mode
	Address string // Standalone: host:port, a Unix socket's path, unix:, tcp:// or vsock:// (DCGM 4.5)
	Engine  string // Started: the program; "" = nv-hostengine from PATH

	Every time.Duration // how often DCGM samples; >= 100ms; 0: DefaultEvery
	Renew time.Duration // blank for so long: watch anew; 0: DefaultRenew
}

// filled is c with its defaults, or what is wrong with it.
func (c Config) filled() (Config, error) {
	var err error
	if c.Config, err = c.Config.Filled(); err != nil {
		return c, fmt.Errorf("dcgm: %w", err)
	}
	if c.Every == 0 {
		c.Every = DefaultEvery
	}
	if c.Renew == 0 {
		c.Renew = DefaultRenew
	}
	switch {
	case c.Mode > Started:
		return c, fmt.Errorf("dcgm: mode %d is none of Embedded, Standalone, Started", c.Mode)
	case c.Mode == Standalone && c.Address == "":
		return c, errors.New("dcgm: address: a stand-alone host engine needs one")
	case c.Every < 100*time.Millisecond:
		return c, fmt.Errorf("dcgm: every: %s is below 100ms", c.Every)
	case c.Renew < 0:
		return c, fmt.Errorf("dcgm: renew: %s is below 0", c.Renew)
	}
	return c, nil
}

// connection is what go-dcgm wants to hear for an address. All forms but
// vsock are told in the way that every DCGM 4 understands.
func connection(address string) []string {
	scheme, rest, ok := strings.Cut(address, ":")
	switch {
	case ok && scheme == "vsock":
		return []string{address}
	case ok && scheme == "unix":
		return []string{"/" + strings.TrimLeft(rest, "/"), "1"}
	case ok && scheme == "tcp":
		return []string{strings.TrimLeft(rest, "/"), "0"}
	case strings.HasPrefix(address, "/"):
		return []string{address, "1"}
	}
	return []string{address, "0"}
}
