package scrape

import (
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/policy"
)

// absent and NaN-free expectations for each file of testdata.
func TestFixtures(t *testing.T) {
	some, none := gpu.Some, gpu.Value{}
	tests := []struct {
		file, kind string
		match      map[string]string
		want       gpu.Sample
	}{
		{"dcgm_4gpu_normal.prom", policy.KindDCGMExporter, nil, gpu.Sample{Util: some((0.82 + 0.79 + 0 + 1) / 4), GPUs: 4}},
		{"dcgm_4gpu_normal.prom", policy.KindDCGMExporter, map[string]string{"gpu": "1"}, gpu.Sample{Util: some(0.79), GPUs: 1}},
		{"dcgm_4gpu_normal.prom", policy.KindDCGMExporter, map[string]string{"gpu": "0", "Hostname": "dock-1"}, gpu.Sample{Util: some(0.82), GPUs: 1}},
		{"dcgm_new_names.prom", policy.KindDCGMExporter, nil, gpu.Sample{Util: some(0.5), Active: some(0.35), GPUs: 2}},
		{"dcgm_mig.prom", policy.KindDCGMExporter, nil, gpu.Sample{Util: some(0.525), Active: some(0.525), GPUs: 1}},
		{"dcgm_mig.prom", policy.KindDCGMExporter, map[string]string{"GPU_I_ID": "1"}, gpu.Sample{Util: some(0.93), Active: some(0.93), GPUs: 1}},
		{"dcgm_mig_sizes.prom", policy.KindDCGMExporter, map[string]string{"gpu": "0"}, gpu.Sample{Util: some(0.8), Active: some(0.8), GPUs: 1}},
		{"dcgm_mig_sizes.prom", policy.KindDCGMExporter, nil, gpu.Sample{Util: some(0.45), Active: some(0.8), GPUs: 2}}, // (0.8*5/7 + 0.2) / (12/7)
		{"dcgm_mig_no_ratio.prom", policy.KindDCGMExporter, nil, gpu.Sample{Util: none, GPUs: 1}},
		{"dcgm_sentinel_values.prom", policy.KindDCGMExporter, nil, gpu.Sample{Util: some(0.64), Active: some(0.61), GPUs: 3, Dropped: 3}},
		{"dcgm_one_blank.prom", policy.KindDCGMExporter, nil, gpu.Sample{Util: some(0.9), GPUs: 4, Dropped: 1}},
		{"dcgm_stuck_ratio.prom", policy.KindDCGMExporter, nil, gpu.Sample{Util: some(0.99), Active: some(0), GPUs: 1}},
		{"dcgm_shared_by_pods.prom", policy.KindDCGMExporter, nil, gpu.Sample{Util: some(0.6), GPUs: 2}},
		{"vllm_new_names.prom", policy.KindVLLM, nil, gpu.Sample{KV: some(0.91), Waiting: some(3), Running: some(24)}},
		{"vllm_old_names.prom", policy.KindVLLM, nil, gpu.Sample{KV: some(0.91), Waiting: some(3), Running: some(24)}},
		{"vllm_saturated_but_kv_low.prom", policy.KindVLLM, nil, gpu.Sample{KV: some(0.32), Waiting: some(240), Running: some(20)}},
		{"vllm_two_engines.prom", policy.KindVLLM, nil, gpu.Sample{KV: some(0.91), Waiting: some(3), Running: some(14)}},
		{"vllm_two_engines.prom", policy.KindVLLM, map[string]string{"engine": "1"}, gpu.Sample{KV: some(0.12), Waiting: some(0), Running: some(4)}},
	}
	for _, tt := range tests {
		t.Run(tt.file, func(t *testing.T) {
			got, err := parseFile(t, tt.kind, tt.match, tt.file)
			if err != nil {
				t.Fatal(err)
			}
			same(t, got, tt.want)
		})
	}
}

// Files that say nothing about the signals of their kind are misses.
func TestNoSignal(t *testing.T) {
	for file, kind := range map[string]string{
		"sglang.prom":           policy.KindVLLM,
		"vllm_new_names.prom":   policy.KindDCGMExporter,
		"dcgm_4gpu_normal.prom": policy.KindVLLM,
	} {
		if got, err := parseFile(t, kind, nil, file); err == nil {
			t.Errorf("%s as %s = %+v, want an error", file, kind, got)
		}
	}
	if got, err := parseFile(t, policy.KindVLLM, map[string]string{"engine": "7"}, "vllm_new_names.prom"); err == nil {
		t.Errorf("no engine matches = %+v, want an error", got)
	}
}

// Values that no healthy exporter gives are dropped, not read.
func TestBadValues(t *testing.T) {
	bad := []string{"NaN", "+Inf", "-Inf", "-1", "4294967295", "9223372036854775794", "140737488355328", "100.5", "5000"}
	for _, v := range bad {
		got, err := parse(t, policy.KindDCGMExporter, nil, "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\"} "+v+"\nDCGM_FI_DEV_GPU_UTIL{gpu=\"1\"} 30\n")
		if err != nil {
			t.Fatal(err)
		}
		same(t, got, gpu.Sample{Util: gpu.Some(0.3), GPUs: 2, Dropped: 1})
	}
	for _, v := range []string{"NaN", "+Inf", "-1", "1.01", "91"} {
		got, err := parse(t, policy.KindVLLM, nil, "vllm:kv_cache_usage_perc "+v+"\nvllm:num_requests_waiting 1\n")
		if err != nil {
			t.Fatal(err)
		}
		same(t, got, gpu.Sample{Waiting: gpu.Some(1), Dropped: 1})
	}
}

// A GPU that goes is left out, one that comes back counts again.
func TestGPUGoesAndComesBack(t *testing.T) {
	s, err := New("s", policy.TelemetrySource{Kind: policy.KindDCGMExporter, URL: "http://127.0.0.1:1/metrics"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	both := "DCGM_FI_DEV_GPU_UTIL{UUID=\"a\"} 20\nDCGM_FI_DEV_GPU_UTIL{UUID=\"b\"} 40\n"
	one := "DCGM_FI_DEV_GPU_UTIL{UUID=\"a\"} 20\n"
	for _, tt := range []struct {
		text string
		want gpu.Sample
	}{
		{both, gpu.Sample{Util: gpu.Some(0.3), GPUs: 2}},
		{one, gpu.Sample{Util: gpu.Some(0.2), GPUs: 1}},
		{both, gpu.Sample{Util: gpu.Some(0.3), GPUs: 2}},
	} {
		got, err := s.parse([]byte(tt.text), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		same(t, got, tt.want)
	}
}

func parseFile(t *testing.T, kind string, match map[string]string, file string) (gpu.Sample, error) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	return parse(t, kind, match, string(text))
}

func parse(t *testing.T, kind string, match map[string]string, text string) (gpu.Sample, error) {
	t.Helper()
	s, err := New("s", policy.TelemetrySource{Kind: kind, URL: "http://127.0.0.1:1/metrics", Match: match}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s.parse([]byte(text), time.Now())
}

// same compares samples; values to 1e-9.
func same(t *testing.T, got, want gpu.Sample) {
	t.Helper()
	near := func(a, b gpu.Value) bool { return a.OK == b.OK && math.Abs(a.V-b.V) < 1e-9 }
	if !near(got.Util, want.Util) || !near(got.KV, want.KV) || !near(got.Waiting, want.Waiting) ||
		!near(got.Running, want.Running) || !near(got.Active, want.Active) ||
		got.GPUs != want.GPUs || got.Dropped != want.Dropped {
		t.Errorf("sample = %+v, want %+v", got, want)
	}
}
