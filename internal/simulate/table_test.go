package simulate

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"
)

func results() []*Result {
	v := func(f float64) *float64 { return &f }
	return []*Result{
		{
			Policy: "default", Requests: 12000, Wall: 0.5, BurstAdmitted: v(0.955), BurstAdmittedFirst: v(0.84), LatencyP99: v(512.4), WaitP99: v(400),
			Throughput: v(0.98), UtilisationMin: 0.9, UtilisationMax: 1, Goodput: 1100, Failed: 600,
			Classes: map[string]*ClassResult{"critical": {2000, 0.995, 90}, "batch": {3000, 0.5, 900}},
			Reasons: map[string]int{"admitted": 11000}, Hints: HintResult{Given: 900, Returned: 900, FirstReturn: 0.93, MedianError: 0.11, WavePeakRatio: 1.05},
			Series: []Sample{{At: time.Second, Waiting: 3, Seats: 120}, {At: 2 * time.Second, Waiting: 5, Seats: 120}},
		},
		{Policy: "no-queue", Requests: 12000, Failed: 12000, Classes: map[string]*ClassResult{}, Reasons: map[string]int{"queue_full": 7}, Advice: "no policy can help: 300/s are missing"},
	}
}

// TestJSONHasTheNamesPromised holds the shape that scripts read.
func TestJSONHasTheNamesPromised(t *testing.T) {
	var b bytes.Buffer
	if err := WriteJSON(&b, results()); err != nil {
		t.Fatal(err)
	}
	var got []map[string]any
	if err := json.Unmarshal(b.Bytes(), &got); err != nil || len(got) != 2 {
		t.Fatalf("%v: %s", err, b.String())
	}
	for _, name := range []string{
		"policy", "requests", "wall_s", "burst_admitted", "burst_admitted_first", "latency_p99_ms", "wait_p99_ms",
		"throughput_of_capacity", "utilisation_min", "utilisation_max", "classes",
	} {
		for i := range got {
			if _, ok := got[i][name]; !ok {
				t.Errorf("run %d has no %s", i, name)
			}
		}
	}
	for _, name := range []string{"burst_admitted", "burst_admitted_first", "latency_p99_ms", "wait_p99_ms", "throughput_of_capacity"} {
		if got[1][name] != nil {
			t.Errorf("%s must be null without a burst, is %v", name, got[1][name])
		}
		if _, number := got[0][name].(float64); !number {
			t.Errorf("%s must be a number, is %v", name, got[0][name])
		}
	}
	class := got[0]["classes"].(map[string]any)["critical"].(map[string]any)
	for _, name := range []string{"requests", "admitted_first", "wait_p99_ms"} {
		if _, ok := class[name].(float64); !ok {
			t.Errorf("a class has no %s: %v", name, class)
		}
	}
	b.Reset()
	if err := WriteJSON(&b, nil); err != nil || strings.TrimSpace(b.String()) != "[]" {
		t.Errorf("no runs must be an empty array, not %q", b.String())
	}
}

func TestTableIsAlignedAndHasUnits(t *testing.T) {
	var b bytes.Buffer
	if err := WriteTable(&b, results()); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(b.String(), "\n")
	at := func(start string) string {
		i := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, start) })
		if i < 0 {
			t.Fatalf("no line %q in\n%s", start, b.String())
		}
		return lines[i]
	}
	if h, r := at("policy "), at("default "); len(h) != len(r) || len(r) != len(at("no-queue ")) {
		t.Errorf("columns do not stand under each other:\n%s", b.String())
	}
	for _, want := range []string{"12000", "5.0 %", "1100/s", "95.5 %", "84.0 %", "512 ms", "400 ms", "98.0 %", "90-100 %"} {
		if !strings.Contains(at("default "), want) {
			t.Errorf("no %s in %q", want, at("default "))
		}
	}
	for _, want := range []string{"critical", "99.5 %", "90 ms"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %s in\n%s", want, b.String())
		}
	}
	if !strings.Contains(b.String(), "no-queue: no policy can help: 300/s are missing") {
		t.Errorf("the advice is not told:\n%s", b.String())
	}
	if strings.Index(b.String(), "critical") > strings.Index(b.String(), "batch") {
		t.Error("classes are not in their order")
	}
}
