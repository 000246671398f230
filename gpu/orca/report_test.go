package orca

import (
	"encoding/base64"
	"math"
	"strings"
	"testing"

	orcav3 "github.com/cncf/xds/go/xds/data/orca/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/weirproxy/weir/gpu"
)

// binary is a report in the binary form.
func binary(t testing.TB, m *orcav3.OrcaLoadReport) string {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return "BIN " + base64.StdEncoding.EncodeToString(b)
}

func namedMetrics(kv ...any) *orcav3.OrcaLoadReport {
	m := &orcav3.OrcaLoadReport{NamedMetrics: map[string]float64{}}
	for i := 0; i < len(kv); i += 2 {
		m.NamedMetrics[kv[i].(string)] = kv[i+1].(float64)
	}
	return m
}

func TestReports(t *testing.T) {
	none := gpu.Value{}
	for _, c := range []struct {
		name, value          string
		kv, waiting, running gpu.Value
		load                 gpu.Value
	}{
		{"vllm text", "TEXT named_metrics.kv_cache_usage_perc=0.42, named_metrics.num_requests_waiting=5.0", gpu.Some(0.42), gpu.Some(5), none, none},
		{"vllm json", `JSON {"named_metrics": {"kv_cache_usage_perc": 0.42, "num_requests_waiting": 5.0}}`, gpu.Some(0.42), gpu.Some(5), none, none},
		{"vllm, two ranks", "TEXT named_metrics.kv_cache_usage_perc=0.2, named_metrics.kv_cache_usage_perc=0.7, named_metrics.num_requests_waiting=1.0, named_metrics.num_requests_waiting=3.0", gpu.Some(0.7), gpu.Some(4), none, none},
		{"triton text", "TEXT named_metrics.kv_cache_utilization=0.500000, named_metrics.max_token_capacity=10240", gpu.Some(0.5), none, none, none},
		{"triton json", `JSON {"named_metrics":{"kv_cache_utilization":0.5,"max_token_capacity":10240}}`, gpu.Some(0.5), none, none, none},
		{"binary", binary(t, namedMetrics("kv_cache_usage_perc", 0.25, "num_requests_waiting", 0.0, "num_requests_running", 9.0)), gpu.Some(0.25), gpu.Some(0), gpu.Some(9), none},
		{"binary without padding", strings.TrimRight(binary(t, namedMetrics("num_requests_waiting", 2.0)), "="), none, gpu.Some(2), none, none},
		{"idle is a value", "TEXT named_metrics.kv_cache_usage_perc=0,named_metrics.num_requests_waiting=0", gpu.Some(0), gpu.Some(0), none, none},
		{"no blanks, empty places", "TEXT ,named_metrics.num_requests_running=3,,", none, none, gpu.Some(3), none},
		{"blanks", "TEXT   named_metrics.num_requests_waiting \t=\t 3 ", none, gpu.Some(3), none, none},
		{"cpu beyond its soft limit", "TEXT cpu_utilization=1.7", none, none, none, gpu.Some(1)},
		{"cpu, binary", binary(t, &orcav3.OrcaLoadReport{CpuUtilization: 0.3, MemUtilization: 0.9}), none, none, none, gpu.Some(0.3)},
		{"not weir's", "TEXT eps=1, rps_fractional=10.0, mem_utilization=0.8, named_metrics.custom=banana", none, none, none, none},
		{"a field is no named metric", "TEXT kv_cache_usage_perc=0.5, named_metrics.cpu_utilization=0.5", none, none, none, none},
		{"nothing", "TEXT", none, none, none, none},
		{"json camel", `JSON {"cpuUtilization": 0.5, "unknown": {"a": [1, 2]}}`, none, none, none, gpu.Some(0.5)},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := parse(c.value)
			if err != nil {
				t.Fatalf("parse: %v", err)
			}
			if r.kv != c.kv || r.waiting != c.waiting || r.running != c.running || r.load != c.load {
				t.Errorf("kv %v, waiting %v, running %v, load %v; want %v, %v, %v, %v", r.kv, r.waiting, r.running, r.load, c.kv, c.waiting, c.running, c.load)
			}
			if r.faults != (gpu.Faults{}) {
				t.Errorf("faults = %v, want none", r.faults)
			}
			if known := c.kv.OK || c.waiting.OK || c.running.OK || c.load.OK; r.known != known {
				t.Errorf("known = %v, want %v", r.known, known)
			}
		})
	}
}

// What is no number of requests and no ratio is dropped and counted; the rest
// of the report stays.
func TestDroppedValues(t *testing.T) {
	for value, fault := range map[string]gpu.Fault{
		"NaN": gpu.FaultNumber, "inf": gpu.FaultNumber, "-Inf": gpu.FaultNumber, "1e999": gpu.FaultNumber, "": gpu.FaultNumber,
		"0,3": gpu.FaultForm, "12%": gpu.FaultNumber, "0.5=0.6": gpu.FaultNumber,
		"-0.1": gpu.FaultRange, "1.01": gpu.FaultRange, "42": gpu.FaultRange,
	} {
		r, err := parse("TEXT named_metrics.kv_cache_usage_perc=" + value + ", named_metrics.num_requests_waiting=1")
		if fault == gpu.FaultForm {
			if gpu.FaultOf(err) != fault {
				t.Errorf("%q: error %v, want a fault of form", value, err)
			}
			continue
		}
		if err != nil || r.kv.OK || r.waiting != gpu.Some(1) || r.faults[fault] != 1 {
			t.Errorf("%q: %+v, %v; want one fault %v and the waiting", value, r, err, fault)
		}
	}
	for _, c := range []struct {
		m     *orcav3.OrcaLoadReport
		fault gpu.Fault
	}{
		{namedMetrics("kv_cache_usage_perc", math.NaN()), gpu.FaultNumber},
		{namedMetrics("num_requests_waiting", -1.0), gpu.FaultRange},
		{namedMetrics("num_requests_waiting", 1e8), gpu.FaultRange},
		{namedMetrics("num_requests_running", math.Inf(1)), gpu.FaultNumber},
		{&orcav3.OrcaLoadReport{CpuUtilization: -1}, gpu.FaultRange},
		{&orcav3.OrcaLoadReport{CpuUtilization: math.NaN()}, gpu.FaultNumber},
	} {
		r, err := parse(binary(t, c.m))
		if err != nil || r.kv.OK || r.waiting.OK || r.running.OK || r.load.OK || !r.known || r.faults[c.fault] != 1 {
			t.Errorf("%v: %+v, %v; want one fault %v", c.m, r, err, c.fault)
		}
	}
}

// A report that is not well formed is dropped whole.
func TestMalformedReports(t *testing.T) {
	for _, c := range []struct {
		value string
		fault gpu.Fault
	}{
		{"", gpu.FaultForm},
		{"named_metrics.kv_cache_usage_perc=0.42", gpu.FaultForm},
		{"text named_metrics.kv_cache_usage_perc=0.42", gpu.FaultForm},
		{"YAML a: 1", gpu.FaultForm},
		{"TEXT named_metrics.kv_cache_usage_perc=0.42, banana", gpu.FaultForm},
		{"TEXT named_metrics.kv_cache_usage_perc=0.42, =1", gpu.FaultForm},
		{"JSON", gpu.FaultForm},
		{`JSON "named_metrics": {"kv_cache_usage_perc": 0.4}`, gpu.FaultForm},
		{`JSON {"named_metrics": {"kv_cache_usage_perc": "high"}}`, gpu.FaultForm},
		{`JSON {"named_metrics": {"kv_cache_usage_perc": 0.4, "kv_cache_usage_perc": 0.1}}`, gpu.FaultForm},
		{`JSON [1]`, gpu.FaultForm},
		{"JSON " + strings.Repeat(`{"x":`, 3000), gpu.FaultForm},
		{"BIN ???", gpu.FaultForm},
		{"BIN " + base64.StdEncoding.EncodeToString([]byte{0x0a, 0xff}), gpu.FaultForm},
		{"<html>502 Bad Gateway</html>", gpu.FaultForm},
		{"TEXT named_metrics.kv_cache_usage_perc=0.5," + strings.Repeat(" ", MaxReport), gpu.FaultSize},
	} {
		r, err := parse(c.value)
		if err == nil || gpu.FaultOf(err) != c.fault || r != (reading{}) {
			t.Errorf("%.60q: %+v, %v; want fault %v", c.value, r, err, c.fault)
			continue
		}
		if len(err.Error()) > 300 {
			t.Errorf("%.60q: error of %d bytes", c.value, len(err.Error()))
		}
	}
}

// Whatever an upstream writes, values are in range or absent, and nothing
// panics; what a message says in two forms is the same.
func FuzzReport(f *testing.F) {
	for _, v := range []string{
		"TEXT named_metrics.kv_cache_usage_perc=0.42, named_metrics.num_requests_waiting=5.0", "TEXT a=b,=,",
		`JSON {"named_metrics": {"kv_cache_usage_perc": NaN}}`, `JSON {"named_metrics":{"num_requests_waiting":"Infinity"}}`,
		binary(f, namedMetrics("kv_cache_usage_perc", 0.25, "num_requests_waiting", 3.0)), "BIN AAAA", "JSON {}",
	} {
		f.Add(v)
	}
	f.Fuzz(func(t *testing.T, value string) {
		r, err := parse(value)
		if err != nil {
			if r != (reading{}) {
				t.Errorf("%+v with error %v", r, err)
			}
			return
		}
		for what, v := range map[string]gpu.Value{"kv": r.kv, "load": r.load} {
			if v.OK && !(v.V >= 0 && v.V <= 1) {
				t.Errorf("%s = %v", what, v.V)
			}
		}
		for what, v := range map[string]gpu.Value{"waiting": r.waiting, "running": r.running} {
			if v.OK && !(v.V >= 0 && v.V <= maxCount*MaxReport) {
				t.Errorf("%s = %v", what, v.V)
			}
		}
		if found := r.kv.OK || r.waiting.OK || r.running.OK || r.load.OK || r.faults != (gpu.Faults{}); found != r.known {
			t.Errorf("known = %v, of %+v", r.known, r)
		}
	})
}

// FuzzForms: a message says the same in all three forms.
func FuzzForms(f *testing.F) {
	f.Add(0.5, 3.0, 4.0, 0.2)
	f.Add(-1.0, math.NaN(), 1e8, 7.0)
	f.Fuzz(func(t *testing.T, kv, waiting, running, cpu float64) {
		m := namedMetrics("kv_cache_utilization", kv, "num_requests_waiting", waiting, "num_requests_running", running, "other", cpu)
		m.CpuUtilization = cpu
		j, err := protojson.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		want := read(m)
		forms := []string{"JSON " + string(j), binary(t, m)}
		if cpu != 0 {
			forms = append(forms, asText(m))
		}
		for _, form := range forms {
			if got, err := parse(form); err != nil || got != want {
				t.Errorf("%s: %+v, %v; want %+v", form, got, err, want)
			}
		}
	})
}
