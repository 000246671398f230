package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

const world = `seed: 3
duration: 5s
topology:
  models: [{name: deepseek-v4, pools: [a]}]
  pools: [{name: a, variant: fp16, seats: {requests: 20}}]
overlay: {quotas: [], classes: [{name: standard, onExpiry: null}], variants: {choose: null}}
engines:
  a: {service: {places: 20, time: 100ms}}
arrivals:
  - {kind: steady, rate: 100}
  - {kind: pulse, rate: 300, from: 2s, length: 1s, burst: true}
requests: [{share: 1, prompt: 100, output: 50}]
`

// desk writes files into a directory and returns it.
func desk(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// runs is what --json printed.
func runs(t *testing.T, out string) (list []map[string]any) {
	t.Helper()
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	return list
}

func names(list []map[string]any) string {
	var names []string
	for _, r := range list {
		names = append(names, fmt.Sprint(r["policy"]))
	}
	return strings.Join(names, " ")
}

func TestSimulateComparesPolicies(t *testing.T) {
	dir := desk(t, map[string]string{"world.yaml": world, "mine.yaml": defaultPolicy(t), "b.old.yaml": defaultPolicy(t)})
	scenario := filepath.Join(dir, "world.yaml")
	out, errs, code := execute(t, "simulate", scenario, "--json")
	if code != 0 || names(runs(t, out)) != "default source" {
		t.Fatalf("code %d, %s: %s", code, errs, out)
	}
	out, errs, code = execute(t, "simulate", scenario, "--json", "--policy", "source", "--compare", filepath.Join(dir, "mine.yaml")+",default,"+filepath.Join(dir, "b.old.yaml"))
	list := runs(t, out)
	if code != 0 || names(list) != "source mine default b.old" {
		t.Fatalf("code %d, %s: %s", code, errs, out)
	}
	delete(list[1], "wall_s")
	delete(list[1], "policy")
	delete(list[2], "wall_s")
	delete(list[2], "policy")
	if !reflect.DeepEqual(list[1], list[2]) {
		t.Errorf("the same policy under another name went differently:\n%v\n%v", list[1], list[2])
	}
	if n := list[0]["requests"].(float64); n < 700 || n > 900 {
		t.Errorf("%v requests, 800 are expected", n)
	}
	again, _, _ := execute(t, "simulate", scenario, "--json", "--policy", "default", "--seed", "4")
	if n := runs(t, again)[0]["requests"]; n == list[2]["requests"] {
		t.Errorf("another seed sent the same %v requests", n)
	}
	long, _, _ := execute(t, "simulate", scenario, "--json", "--policy", "default", "--requests", "5000")
	if n := runs(t, long)[0]["requests"].(float64); n < 5000 || n > 5600 {
		t.Errorf("%v requests, about 5000 were asked for", n)
	}
}

func TestSimulatePrintsTablesAndWritesAReport(t *testing.T) {
	dir := desk(t, map[string]string{"world.yaml": world})
	page := filepath.Join(dir, "report.html")
	out, errs, code := execute(t, "simulate", filepath.Join(dir, "world.yaml"), "--html", page)
	if code != 0 || errs != "" {
		t.Fatalf("code %d: %s", code, errs)
	}
	for _, want := range []string{"policy ", "default ", "source ", "standard", " ms", " %", "hints given"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	html, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"new uPlot(", `"policies":["default","source"]`, "Queue depth", "Pressure"} {
		if !strings.Contains(string(html), want) {
			t.Errorf("no %q in the report", want)
		}
	}
}

func TestSimulateSaysWhenNoPolicyCanHelp(t *testing.T) {
	dir := desk(t, map[string]string{"world.yaml": strings.Replace(world, "rate: 100}", "rate: 400}", 1)})
	out, _, code := execute(t, "simulate", filepath.Join(dir, "world.yaml"), "--policy", "default")
	if code != 0 || !strings.Contains(out, "no policy can help") {
		t.Errorf("code %d:\n%s", code, out)
	}
}

// TestSimulateRefuses holds that every wrong input is named, and the codes.
func TestSimulateRefuses(t *testing.T) {
	trace := strings.Replace(world, "  - {kind: steady, rate: 100}\n", "  - {kind: trace, file: t.csv}\n", 1)
	dir := desk(t, map[string]string{
		"world.yaml": world,
		"typo.yaml":  strings.Replace(world, "kind: steady, rate", "kind: steady, rat", 1),
		"over.yaml":  strings.Replace(world, "quotas: []", "queue: {softLimit: 120%}", 1),
		"lost.yaml":  world + "policies: [none.yaml]\n",
		"bad.yaml":   "version: 1\nqueue: {softLimt: 70%}\n",
		"trace.yaml": trace,
		"t.csv":      "at,class\n0.5,batch\n0.6,vip\n0.7,batch\n",
		"long.yaml":  strings.Replace(trace, "t.csv", "long.csv", 1),
		"long.csv":   "at\n0\n1\n1000\n",
		"none-.yaml": strings.Replace(trace, "t.csv", "none.csv", 1),
		"none.csv":   "at,code\n0,401\n",
	})
	file := func(name string) string { return filepath.Join(dir, name) }
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{}, 2, "accepts 1 arg"},
		{[]string{file("world.yaml"), "--sed", "1"}, 2, "unknown flag"},
		{[]string{file("world.yaml"), "--requests", "-1"}, 2, "--requests must not be negative"},
		{[]string{file("none.yaml")}, 1, "none.yaml: no such file"},
		{[]string{file("typo.yaml")}, 1, file("typo.yaml") + ":10:20: arrivals[0].rat: unknown key"},
		{[]string{file("over.yaml")}, 1, file("over.yaml") + ":6:30: queue.softLimit"},
		{[]string{file("lost.yaml")}, 1, file("none.yaml") + ": no such file"},
		{[]string{file("world.yaml"), "--policy", file("bad.yaml")}, 1, file("bad.yaml") + ":2:"},
		{[]string{file("world.yaml"), "--policy", "/dev/zero"}, 1, "/dev/zero is not a plain file"},
		{[]string{file("trace.yaml")}, 1, file("t.csv") + `:3: class: must be critical, standard or batch (got "vip")`},
		{[]string{file("trace.yaml"), "--skip-bad", "--policy", "default"}, 0, "note: default: 1 lines of traces were passed over"},
		{[]string{file("long.yaml"), "--policy", "default"}, 0, "note: a trace goes on after "},
		{[]string{file("world.yaml"), "--policy", "default", "--requests", "999999999999"}, 0, "do not send 999999999999 requests"},
		{[]string{file("none-.yaml")}, 1, file("none.csv") + ": no line of it can be replayed"},
		{[]string{file("world.yaml"), "--compare", "default,"}, 2, "a name is empty"},
		{[]string{file("world.yaml"), "--compare", ""}, 2, "a name is empty"},
		{[]string{file("world.yaml"), "--html", filepath.Join(dir, "no", "r.html")}, 1, "no such file"},
	} {
		out, errs, code := execute(t, append([]string{"simulate"}, c.args...)...)
		if code != c.code || !strings.Contains(errs, c.says) {
			t.Errorf("%v: code %d, want %d; %s\nwant %s", c.args, code, c.code, errs, c.says)
		}
		if code != 0 && out != "" {
			t.Errorf("%v: a failure prints results: %s", c.args, out)
		}
	}
}

// TestTitles: two policies of one file name are told apart.
func TestTitles(t *testing.T) {
	names := []string{"old/weir.yaml", "new/weir.yaml", "p.yaml", "default", "p.yaml"}
	want := []string{"old/weir.yaml", "new/weir.yaml", "p", "default", "p"}
	for i, name := range names {
		if got := title(name, names); got != want[i] {
			t.Errorf("%s is called %s, want %s", name, got, want[i])
		}
	}
}

// TestExampleScenarios plays every scenario of the show flat with the policies
// that it names, and holds what docs/simulate.md says of the source's claims:
// its baselines are met, and default meets the claims as far as they hold. The
// built weir plays them: a run has one goroutine, and the race detector makes it
// ten times as long.
func TestExampleScenarios(t *testing.T) {
	files, err := filepath.Glob("../../examples/scenarios/*.yaml")
	if err != nil || len(files) < 5 {
		t.Fatalf("%d scenarios, %v", len(files), err)
	}
	weir, held := filepath.Join(t.TempDir(), "weir"), 0
	build := exec.Command("go", "build", "-trimpath", "-o", weir, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as make build, which leaves the packages in the cache
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			var errs strings.Builder
			simulate := exec.Command(weir, "simulate", file, "--json")
			simulate.Stderr = &errs
			stdout, err := simulate.Output()
			if err != nil {
				t.Fatal(err, errs.String())
			}
			out := string(stdout)
			if list := runs(t, out); len(list) < 3 || !strings.HasSuffix(names(list), "source default") {
				t.Errorf("policies %s", names(list))
			}
			for _, c := range claims() {
				if c.scenario == filepath.Base(file) {
					c.hold(t, out)
					held++
				}
			}
		})
	}
	if held != len(claims()) {
		t.Errorf("%d of %d claims were held against a run", held, len(claims()))
	}
}

// claim bounds a figure of a policy's run; beside another policy, as a part of
// that one's.
type claim struct {
	scenario, policy, figure string
	least, most              float64
	beside                   string
}

// claims are H1, H2 and H7. H2's 850 ms and H7's 15 % do not hold, see
// docs/simulate.md: half of the source's own baseline does, and 10 %.
func claims() []claim {
	return []claim{
		{"pulse.yaml", "no-queue", "burst_admitted", 0.80, 0.84, ""}, // the source's 18 % fail, within 2 points
		{"pulse.yaml", "default", "burst_admitted", 0.95, 1, ""},
		{"pulse.yaml", "default", "latency_p99_ms", 0, 580, ""},
		{"pulse.yaml", "default", "throughput_of_capacity", 0.95, 1.01, ""},
		{"pulse.yaml", "default", "critical", 0.99, 1, ""},
		{"tenants.yaml", "one-queue", "latency_p99_ms", 0.9 * 2100, 1.1 * 2100, ""},
		{"tenants.yaml", "default", "latency_p99_ms", 0, 0.5, "one-queue"},
		{"tenants.yaml", "default", "critical", 0.99, 1, ""},
		{"precision.yaml", "default", "goodput_per_s", 1.1, 1.3, "one-precision"},
		{"precision.yaml", "default", "critical", 1.08, 2, "one-precision"},
	}
}

func (c *claim) hold(t *testing.T, out string) {
	t.Helper()
	got, of := c.read(t, out, c.policy), 1.
	if c.beside != "" {
		of = c.read(t, out, c.beside)
	}
	if v := got / of; v < c.least || v > c.most {
		t.Errorf("%s: %s is %.4g, want %g..%g %s", c.policy, c.figure, v, c.least, c.most, c.beside)
	}
}

// read is the figure; "critical" is how much of that class is admitted at the
// first try.
func (c *claim) read(t *testing.T, out, policy string) float64 {
	t.Helper()
	for _, r := range runs(t, out) {
		if r["policy"] != policy {
			continue
		}
		v, ok := r[c.figure].(float64)
		if c.figure == "critical" {
			critical, _ := r["classes"].(map[string]any)["critical"].(map[string]any)
			v, ok = critical["admitted_first"].(float64)
		}
		if ok {
			return v
		}
	}
	t.Fatalf("no %s of %s", c.figure, policy)
	return 0
}
