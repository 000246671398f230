package scrape

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/policy"
)

// look is one text of a load's source and what it should say.
type look struct {
	at    time.Duration
	text  string
	want  gpu.Value
	fault gpu.Fault // counted once; FaultOther = none
}

func watch(t *testing.T, kind string, match map[string]string, looks []look) {
	t.Helper()
	s, err := New("s", policy.TelemetrySource{Kind: kind, URL: "http://127.0.0.1:1/", Match: match}, nil)
	if err != nil || s.Engine() {
		t.Fatalf("New = %v, engine %v", err, s.Engine())
	}
	for i, l := range looks {
		got, err := s.parse([]byte(l.text), instant.Add(l.at))
		if err != nil {
			t.Fatalf("look %d: %v", i, err)
		}
		if got.Load.OK != l.want.OK || math.Abs(got.Load.V-l.want.V) > 1e-9 {
			t.Errorf("look %d: load = %+v, want %+v", i, got.Load, l.want)
		}
		var faults gpu.Faults
		if l.fault != gpu.FaultOther {
			faults[l.fault] = 1
		}
		if got.Faults != faults {
			t.Errorf("look %d: faults = %v, want one %v", i, got.Faults, l.fault)
		}
	}
}

// nodeText is a page of node-exporter; idle, waiting for a disk, user and
// system time of each CPU.
func nodeText(cpus ...[4]float64) string {
	var b strings.Builder
	b.WriteString("# TYPE node_cpu_seconds_total counter\n")
	for i, c := range cpus {
		for m, mode := range []string{"idle", "iowait", "user", "system"} {
			fmt.Fprintf(&b, "node_cpu_seconds_total{cpu=\"%d\",mode=%q} %g\n", i, mode, c[m])
		}
	}
	b.WriteString("# TYPE node_cpu_guest_seconds_total counter\nnode_cpu_guest_seconds_total{cpu=\"0\",mode=\"user\"} 7\nnode_load1 3\n")
	return b.String()
}

// T4: the share of CPU time that was not idle between two looks.
func TestNodeExporter(t *testing.T) {
	some, none := gpu.Some, gpu.Value{}
	start := [4]float64{1000, 50, 300, 100}
	watch(t, policy.KindNodeExporter, nil, []look{
		{0, nodeText(start, start), none, 0},
		{5 * time.Second, nodeText([4]float64{1001, 50, 303, 101}, [4]float64{1005, 50, 300, 100}), some(0.4), 0},       // 4 of 10 s
		{10 * time.Second, nodeText([4]float64{1001, 50, 303, 101}, [4]float64{1005, 50, 300, 100}), none, 0},           // nothing moved
		{15 * time.Second, nodeText([4]float64{1002, 52, 304, 102}, [4]float64{1010, 50, 300, 100}), some(0.2), 0},      // the disk's time is idle
		{20 * time.Second, nodeText([4]float64{5, 0, 5, 0}, [4]float64{1014, 50, 301, 100}), some(0.2), gpu.FaultReset}, // CPU 0 began anew
		{25 * time.Second, nodeText([4]float64{5, 0, 10, 0}, [4]float64{1014, 50, 306, 100}), some(1), 0},
		{30 * time.Second, nodeText([4]float64{10, 0, 10, 0}), some(0), 0},                                                // CPU 1 went
		{35 * time.Second, nodeText([4]float64{10, 0, 15, 0}, [4]float64{1, 1, 1, 1}), some(1), 0},                        // and came back: not yet counted
		{36 * time.Second, nodeText([4]float64{10, 0, 20, math.NaN()}, [4]float64{6, 1, 1, 1}), some(0), gpu.FaultNumber}, // CPU 0 in part
		{37 * time.Second, nodeText([4]float64{10, 0, 25, 5}, [4]float64{6, 1, 6, 1}), some(1), 0},
	})
	clock := []look{{0, nodeText(start), none, 0}, {-time.Hour, nodeText([4]float64{1001, 50, 301, 100}), some(0.5), 0}}
	watch(t, policy.KindNodeExporter, nil, clock)
	other := "node_cpu_seconds_total{cpu=\"0\",mode=\"idle\",instance=\"b\"} 0\n"
	watch(t, policy.KindNodeExporter, map[string]string{"instance": ""}, []look{
		{0, other + nodeText(start), none, 0},
		{time.Second, other + nodeText([4]float64{1001, 50, 301, 100}), some(0.5), 0},
	})
}

// T4: the CPU time of control groups, of what they may use.
func TestCAdvisor(t *testing.T) {
	some, none := gpu.Some, gpu.Value{}
	machine := "# TYPE machine_cpu_cores gauge\nmachine_cpu_cores{boot_id=\"b\",machine_id=\"m\"} 4\n"
	used := func(id string, v float64, labels string, stamp string) string {
		return fmt.Sprintf("container_cpu_usage_seconds_total{cpu=\"total\",id=%q%s} %g%s\n", id, labels, v, stamp)
	}
	chat := `,pod="chat-0"`
	pod, inner, beside := "/kube/pod1", "/kube/pod1/abc", "/kube/pod1-b"
	quota := func(id string, q int) string {
		return fmt.Sprintf("container_spec_cpu_quota{id=%q%s} %d\ncontainer_spec_cpu_period{id=%q%s} 100000\n", id, chat, q, id, chat)
	}
	match := map[string]string{"pod": "chat-0"}
	tests := map[string]struct {
		match map[string]string
		looks []look
	}{
		"the machine": {nil, []look{
			{0, machine + used("/", 100, "", "") + used(pod, 50, chat, ""), none, 0},
			{2 * time.Second, machine + used("/", 104, "", "") + used(pod, 50, chat, ""), some(0.5), 0},
			{4 * time.Second, machine + used("/", 3, "", ""), none, gpu.FaultReset},
			{5 * time.Second, machine + used("/", 4, "", ""), some(0.25), 0},
			{6 * time.Second, used("/", 5, "", ""), none, 0}, // of how much?
		}},
		"of all CPUs once": {nil, []look{
			{0, machine + `container_cpu_usage_seconds_total{cpu="cpu00",id="/"} 1` + "\n" + used("/", 1, "", ""), none, 0},
			{time.Second, machine + `container_cpu_usage_seconds_total{cpu="cpu00",id="/"} 9` + "\n" + used("/", 3, "", ""), some(0.5), 0},
		}},
		"quota, and the outer group alone": {match, []look{
			{0, machine + used(beside, 0, chat, "") + used(inner, 10, chat, "") + used(pod, 10, chat, "") + quota(pod, 200000) + quota(beside, 200000), none, 0},
			{time.Second, machine + used(beside, 0, chat, "") + used(inner, 11, chat, "") + used(pod, 11, chat, "") + quota(pod, 200000) + quota(beside, 200000), some(0.25), 0},
		}},
		"no quota": {match, []look{
			{0, machine + used(pod, 10, chat, "") + quota(pod, -1), none, 0},
			{time.Second, machine + used(pod, 12, chat, "") + quota(pod, -1), some(0.5), 0},
		}},
		"stamps of its own": {match, []look{
			{0, machine + used(pod, 10, chat, " 1700000000000"), none, 0},
			{time.Second, machine + used(pod, 10, chat, " 1700000000000"), none, 0},
			{9 * time.Second, machine + used(pod, 20, chat, " 1700000010000"), some(0.25), 0},
			{10 * time.Second, machine + used(pod, 20, chat, " 1700000010000"), some(0.25), 0},
			{3 * time.Minute, machine + used(pod, 20, chat, " 1700000010000"), none, 0}, // frozen
		}},
		"strange": {match, []look{
			{0, machine + used(pod, math.NaN(), chat, ""), none, gpu.FaultNumber},
			{time.Second, machine + used(pod, -5, chat, ""), none, gpu.FaultRange},
			{2 * time.Second, machine + used(pod, 1, chat, "") + used(pod, 2, chat, ""), none, gpu.FaultDuplicate},
			{3 * time.Second, machine + used(pod, 99, chat, ""), some(1), 0}, // never above 1
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) { watch(t, policy.KindCAdvisor, tt.match, tt.looks) })
	}
}

func TestLoadMisses(t *testing.T) {
	for kind, text := range map[string]string{
		policy.KindNodeExporter: "node_cpu_guest_seconds_total{cpu=\"0\",mode=\"user\"} 7\n",
		policy.KindCAdvisor:     "machine_cpu_cores 4\ncontainer_cpu_usage_seconds_total{id=\"/pod\"} 7\n",
	} {
		if got, err := parse(t, kind, nil, text); gpu.FaultOf(err) != gpu.FaultEmpty {
			t.Errorf("%s = %+v, %v; want a miss", kind, got, err)
		}
	}
}
