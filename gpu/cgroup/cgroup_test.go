package cgroup

import (
	"context"
	"errors"
	"maps"
	"math"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/gpu/sourcetest"
)

// tree is a source over files of its own, of a machine with 8 CPUs.
func tree(t *testing.T, files map[string]string) *Source {
	t.Helper()
	s := &Source{name: "own", root: t.TempDir(), cpus: 8}
	s.write(t, files)
	return s
}

func (s *Source) write(t *testing.T, files map[string]string) {
	t.Helper()
	for name, text := range files {
		name = filepath.Join(s.root, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func with(files map[string]string, more ...string) map[string]string {
	files = maps.Clone(files)
	for i := 0; i < len(more); i += 2 {
		files[more[i]] = more[i+1]
	}
	return files
}

// T4: half a second of CPU time in one second, of what may be used.
func TestLoad(t *testing.T) {
	second := func(used string) string { return "usage_usec " + used + "\nuser_usec 1\nsystem_usec 2\n" }
	inner := map[string]string{"proc/self/cgroup": "0::/pod/weir\n"}
	old := map[string]string{"proc/self/cgroup": "3:cpuset:/\n2:cpu,cpuacct:/pod/weir\n1:memory:/x\n0::/\n"}
	apart := map[string]string{"proc/self/cgroup": "2:cpuacct:/weir\n1:cpu:/pod\n"}
	for _, tt := range []struct {
		name        string
		files       map[string]string
		usage       string // the file of the counter
		first, then string
		want        float64
	}{
		{"no quota", inner, "sys/fs/cgroup/pod/weir/cpu.stat", second("1000000"), second("1500000"), 0.5 / 8},
		{"quota", with(inner, "sys/fs/cgroup/pod/weir/cpu.max", "200000 100000\n"),
			"sys/fs/cgroup/pod/weir/cpu.stat", second("1000000"), second("1500000"), 0.25},
		{"quota around it", with(inner, "sys/fs/cgroup/pod/weir/cpu.max", "max 100000\n", "sys/fs/cgroup/pod/cpu.max", "100000 100000\n"),
			"sys/fs/cgroup/pod/weir/cpu.stat", second("1000000"), second("1500000"), 0.5},
		{"quota above the machine's CPUs", with(inner, "sys/fs/cgroup/pod/weir/cpu.max", "1600000 100000\n"),
			"sys/fs/cgroup/pod/weir/cpu.stat", second("1000000"), second("1500000"), 0.5 / 8},
		{"path of another namespace", with(inner, "sys/fs/cgroup/cpu.max", "50000 100000\n"),
			"sys/fs/cgroup/cpu.stat", second("1000000"), second("1250000"), 0.5},
		{"path above the root", map[string]string{"proc/self/cgroup": "0::/../../weir\n"},
			"sys/fs/cgroup/cpu.stat", second("1000000"), second("1500000"), 0.5 / 8},
		{"more than the quota", with(inner, "sys/fs/cgroup/pod/weir/cpu.max", "10000 100000\n"),
			"sys/fs/cgroup/pod/weir/cpu.stat", second("1000000"), second("1500000"), 1},
		{"version 1", with(old, "sys/fs/cgroup/cpu,cpuacct/pod/weir/cpu.cfs_quota_us", "100000\n", "sys/fs/cgroup/cpu,cpuacct/pod/weir/cpu.cfs_period_us", "100000\n"),
			"sys/fs/cgroup/cpu,cpuacct/pod/weir/cpuacct.usage", "1000000000\n", "1500000000\n", 0.5},
		{"version 1 without a quota", with(old, "sys/fs/cgroup/cpu,cpuacct/pod/weir/cpu.cfs_quota_us", "-1\n", "sys/fs/cgroup/cpu,cpuacct/pod/weir/cpu.cfs_period_us", "100000\n"),
			"sys/fs/cgroup/cpu,cpuacct/pod/weir/cpuacct.usage", "1000000000\n", "1500000000\n", 0.5 / 8},
		{"version 1, controllers apart", with(apart, "sys/fs/cgroup/cpu/pod/cpu.cfs_quota_us", "200000\n", "sys/fs/cgroup/cpu/pod/cpu.cfs_period_us", "100000\n"),
			"sys/fs/cgroup/cpuacct/weir/cpuacct.usage", "1000000000\n", "1500000000\n", 0.25},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := tree(t, with(tt.files, tt.usage, tt.first))
			synctest.Test(t, func(t *testing.T) {
				got, err := s.Sample(t.Context())
				if err != nil || got.Load.OK {
					t.Fatalf("first look = %+v, %v; want no load", got, err)
				}
				s.write(t, map[string]string{tt.usage: tt.then})
				time.Sleep(time.Second)
				got, err = s.Sample(t.Context())
				if err != nil || !got.Load.OK || math.Abs(got.Load.V-tt.want) > 1e-9 {
					t.Fatalf("second look = %+v, %v; want %v", got.Load, err, tt.want)
				}
				s.write(t, map[string]string{tt.usage: tt.first})
				time.Sleep(time.Second)
				got, err = s.Sample(t.Context())
				if err != nil || got.Load.OK || got.Faults[gpu.FaultReset] != 1 {
					t.Errorf("after a reset = %+v, %v; want no load and one reset", got, err)
				}
			})
		})
	}
}

func TestNone(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"nothing":        {},
		"no controller":  {"proc/self/cgroup": "3:memory:/\n"},
		"empty":          {"proc/self/cgroup": ""},
		"no accounting":  {"proc/self/cgroup": "0::/\n"},
		"stat not whole": {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.stat": "usage_usec many\n"},
		"no usage":       {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.stat": "user_usec 5\n"},
	} {
		if got, err := tree(t, files).Sample(t.Context()); !errors.Is(err, ErrNone) {
			t.Errorf("%s: Sample = %+v, %v; want ErrNone", name, got, err)
		}
	}
}

// Q3
func TestContract(t *testing.T) {
	stat := "sys/fs/cgroup/cpu.stat"
	group := map[string]string{"proc/self/cgroup": "0::/\n", stat: "usage_usec 1\n"}
	sourcetest.Run(t, sourcetest.Makers{
		Good: func(t *testing.T) gpu.Source { return tree(t, group) },
		Broken: func(t *testing.T) gpu.Source {
			return tree(t, map[string]string{"proc/self/cgroup": "0::/\n"})
		},
		Strange: func(t *testing.T) gpu.Source {
			s := tree(t, with(group, stat, "usage_usec 5\n"))
			if _, err := s.Sample(context.Background()); err != nil {
				t.Fatal(err)
			}
			s.write(t, group)
			return s
		},
	})
}
