// Package cgroup reads the CPU load of weir's own control group (T4): the CPU
// time that it used between two looks, of what it may use. That is the
// smallest quota of the group and those around it, as far as they can be
// seen, else the CPUs that the process may run on.
//
// Version 2 is read where it holds the CPU, else version 1. A container often
// sees its own group as the root of the mount although its path says
// otherwise: a path that is not there means the root.
package cgroup

import (
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/policy"
)

// maxFile bounds a file of the control groups, in bytes.
const maxFile = 64 << 10

// ErrNone says that there is no control group to be read.
var ErrNone = errors.New("no control group with CPU accounting")

// Source reads the group. It is safe for concurrent use.
type Source struct {
	name string
	root string // of the file system
	cpus float64

	mu   sync.Mutex
	used float64 // CPU seconds at the last look
	at   time.Time
}

var _ gpu.Source = (*Source)(nil)

// New makes a source. Nothing is read yet.
func New(name string) *Source {
	return &Source{name: name, root: "/", cpus: float64(runtime.NumCPU())}
}

// Name is the configured name.
func (s *Source) Name() string { return s.name }

// Engine is false.
func (s *Source) Engine() bool { return false }

// Sample is the load since the last look; absent at the first one and where
// the counter fell.
func (s *Source) Sample(ctx context.Context) (gpu.Sample, error) {
	if err := ctx.Err(); err != nil {
		return gpu.Sample{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	used, cores, err := s.read()
	if err != nil {
		return gpu.Sample{}, fmt.Errorf("telemetry source %s: %w", s.name, err)
	}
	now := time.Now()
	sample := gpu.Sample{Source: s.name, At: now}
	since := now.Sub(s.at).Seconds()
	switch {
	case s.at.IsZero() || since <= 0:
	case used < s.used:
		sample.Dropped, sample.Faults[gpu.FaultReset] = 1, 1
	default:
		sample.Load = gpu.Some(min((used-s.used)/since/cores, 1))
	}
	s.used, s.at = used, now
	return sample, nil
}

// read is the CPU time used, in seconds, and the CPUs that may be.
func (s *Source) read() (used, cores float64, err error) {
	text, err := s.file("proc/self/cgroup")
	if err != nil {
		return 0, 0, fmt.Errorf("%w: %w", ErrNone, err)
	}
	for line := range strings.Lines(text) {
		if dir, ok := strings.CutPrefix(line, "0::"); ok {
			used, cores, err = s.second(strings.TrimSpace(dir))
		}
	}
	if used > 0 && err == nil {
		return used, cores, nil
	}
	if controllers, dir, ok := of(text, "cpuacct"); ok {
		used, err = s.usage(controllers, dir)
		return used, s.quota(text), err
	}
	if err == nil {
		err = errors.New("/proc/self/cgroup names none")
	}
	return 0, 0, fmt.Errorf("%w: %w", ErrNone, err)
}

// of finds the group of a controller of version 1, and the controllers that
// are mounted with it.
func of(text, controller string) (controllers, dir string, ok bool) {
	for line := range strings.Lines(text) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) == 3 && strings.Contains(","+parts[1]+",", ","+controller+",") {
			return parts[1], parts[2], true
		}
	}
	return "", "", false
}

const mount = "sys/fs/cgroup"

// second reads version 2.
func (s *Source) second(dir string) (used, cores float64, err error) {
	dir = s.seen(mount, dir, "cpu.stat")
	stat, err := s.file(path.Join(mount, dir, "cpu.stat"))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(stat) {
		if rest, ok := strings.CutPrefix(line, "usage_usec "); ok {
			used, err = number(rest)
		}
	}
	for cores = s.cpus; ; dir = path.Dir(dir) {
		if text, missing := s.file(path.Join(mount, dir, "cpu.max")); missing == nil {
			quota, period, _ := strings.Cut(strings.TrimSpace(text), " ")
			cores = s.least(cores, quota, period)
		}
		if dir == "/" {
			return used / 1e6, cores, err
		}
	}
}

// usage is the CPU time by version 1.
func (s *Source) usage(controllers, dir string) (float64, error) {
	base := path.Join(mount, controllers)
	text, err := s.file(path.Join(base, s.seen(base, dir, "cpuacct.usage"), "cpuacct.usage"))
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrNone, err)
	}
	used, err := number(text)
	return used / 1e9, err
}

// quota is the CPUs that may be used by version 1.
func (s *Source) quota(text string) float64 {
	controllers, dir, ok := of(text, "cpu")
	if !ok {
		return s.cpus
	}
	base, cores := path.Join(mount, controllers), s.cpus
	for dir = s.seen(base, dir, "cpu.cfs_quota_us"); ; dir = path.Dir(dir) {
		quota, _ := s.file(path.Join(base, dir, "cpu.cfs_quota_us")) // none = no quota
		period, _ := s.file(path.Join(base, dir, "cpu.cfs_period_us"))
		cores = s.least(cores, quota, period)
		if dir == "/" {
			return cores
		}
	}
}

// seen is dir where it has the file, else the root of the mount.
func (s *Source) seen(base, dir, file string) string {
	dir = path.Clean("/" + dir)
	if _, err := s.file(path.Join(base, dir, file)); err != nil {
		return "/"
	}
	return dir
}

// least is the smaller of cores and a quota of time in a period. "max", a
// negative and an unreadable quota are none.
func (s *Source) least(cores float64, quota, period string) float64 {
	q, err := number(quota)
	p, also := number(period)
	if err != nil || also != nil || q <= 0 || p <= 0 {
		return cores
	}
	return min(cores, q/p)
}

func (s *Source) file(name string) (string, error) {
	text, err := policy.ReadFile(filepath.Join(s.root, name), maxFile)
	return string(text), err
}

func number(text string) (float64, error) {
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err == nil && n < 0 {
		err = fmt.Errorf("%d is negative", n)
	}
	return float64(n), err
}
