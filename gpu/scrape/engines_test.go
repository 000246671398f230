package scrape

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/policy"
)

// Q8: what each engine's page says.
func TestEngines(t *testing.T) {
	some, none := gpu.Some, gpu.Value{}
	for _, tt := range []struct {
		file, kind string
		match      map[string]string
		want       gpu.Sample
	}{
		{"vllm_page.prom", policy.KindVLLM, nil, gpu.Sample{Waiting: some(5), Running: some(31), KV: some(0.83)}},
		{"vllm_page.prom", policy.KindVLLM, map[string]string{"engine": "1"}, gpu.Sample{Waiting: some(0), Running: some(11), KV: some(0.4)}},
		{"sglang.prom", policy.KindSGLang, nil, gpu.Sample{Waiting: some(2), Running: some(18), KV: some(0.44)}},
		{"sglang_ranks.prom", policy.KindSGLang, nil, gpu.Sample{Waiting: some(5), Running: some(17), KV: some(0.71)}},
		{"sglang_ranks.prom", policy.KindSGLang, map[string]string{"dp_rank": "1"}, gpu.Sample{Waiting: some(1), Running: some(5), KV: some(0.33)}},
		{"sglang_priority.prom", policy.KindSGLang, nil, gpu.Sample{Waiting: some(2), Running: some(9), KV: some(0.5)}},
		{"tgi.prom", policy.KindTGI, nil, gpu.Sample{Waiting: some(6), Running: some(14), KV: none}},
		{"triton.prom", policy.KindTriton, nil, gpu.Sample{Waiting: some(14), Running: none, KV: none, Util: some(0.7), GPUs: 2}},
		{"triton.prom", policy.KindTriton, map[string]string{"model": "tide_bert"}, gpu.Sample{Waiting: some(11)}},
		{"triton_trtllm.prom", policy.KindTritonLLM, nil, gpu.Sample{Waiting: some(7), Running: some(31), KV: some(0.42)}},
		{"triton_trtllm_old.prom", policy.KindTritonLLM, nil, gpu.Sample{Waiting: none, Running: some(6), KV: some(0.75)}},
		{"trtllm_serve.prom", policy.KindTRTLLM, nil, gpu.Sample{Waiting: some(2), Running: some(8), KV: some(0.62)}},
	} {
		t.Run(tt.file, func(t *testing.T) {
			got, err := parseFile(t, tt.kind, tt.match, tt.file)
			if err != nil {
				t.Fatal(err)
			}
			same(t, got, tt.want)
		})
	}
}

// Triton's GPUs are cards, and its GPUs alone are no word of the engine.
func TestTritonCards(t *testing.T) {
	got, err := parseFile(t, policy.KindTriton, nil, "triton.prom")
	if err != nil || len(got.Cards) != 2 {
		t.Fatalf("cards = %+v, %v", got.Cards, err)
	}
	want := gpu.Card{ID: "GPU-aaaa", Util: gpu.Some(0.5), MemoryUsed: gpu.Some(8e9), MemoryTotal: gpu.Some(16e9), Power: gpu.Some(61.5)}
	if got.Cards[0] != want {
		t.Errorf("card = %+v, want %+v", got.Cards[0], want)
	}
	if got, err := parse(t, policy.KindTriton, nil, "nv_gpu_utilization{gpu_uuid=\"a\"} 0.5\n"); gpu.FaultOf(err) != gpu.FaultEmpty {
		t.Errorf("only GPUs = %+v, %v", got, err)
	}
}

// Policy's own tables: preference, selectors, what is not there.
func TestOwnTable(t *testing.T) {
	own := []policy.EngineMetrics{{
		Name:    "tug",
		Waiting: []string{`tug_requests{state="queued"}`, "tug_backlog"},
		Running: []string{`tug_requests{state="active",tier="gold"}`},
		KV:      []string{"tug_cache", `{"tug.cache",unit="share"}`},
	}}
	some, none := gpu.Some, gpu.Value{}
	for _, tt := range []struct {
		text string
		want gpu.Sample
	}{
		{"tug_requests{state=\"queued\"} 4\ntug_backlog 90\n", gpu.Sample{Waiting: some(4)}},
		{"tug_backlog 90\ntug_requests{state=\"queued\"} 4\n", gpu.Sample{Waiting: some(4)}},
		{"tug_backlog 90\n", gpu.Sample{Waiting: some(90)}},
		{"tug_backlog 90\ntug_requests{state=\"queued\"} NaN\n", gpu.Sample{Waiting: some(90), Dropped: 1}},
		{"tug_requests{state=\"active\",tier=\"gold\"} 3\ntug_requests{tier=\"iron\",state=\"active\"} 5\n", gpu.Sample{Running: some(3)}},
		{"{unit=\"share\",\"tug.cache\"} 0.25\n{\"tug.cache\",unit=\"bytes\"} 1\n", gpu.Sample{KV: some(0.25)}},
		{"tug_cache 0.5\n", gpu.Sample{Waiting: none, KV: some(0.5)}},
	} {
		s, err := New("s", policy.TelemetrySource{Kind: "tug", URL: "http://127.0.0.1:1/"}, own)
		if err != nil || !s.Engine() {
			t.Fatalf("New = %v", err)
		}
		got, err := s.parse([]byte(tt.text), instant)
		if err != nil {
			t.Fatalf("%q: %v", tt.text, err)
		}
		same(t, got, tt.want)
	}
	for _, text := range []string{"tug_requests{state=\"done\"} 4\n", "tug_caches 0.4\n", "other 1\n"} {
		s, err := New("s", policy.TelemetrySource{Kind: "tug", URL: "http://127.0.0.1:1/"}, own)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := s.parse([]byte(text), instant); gpu.FaultOf(err) != gpu.FaultEmpty {
			t.Errorf("%q = %+v, %v; want a miss", text, got, err)
		}
	}
}

func TestOwnTableRefuses(t *testing.T) {
	for _, name := range []string{"", "a b", "a 1", "a 1 2", "a{", "a{b}", "a{b=c}", "a{b=\"c\"", "a\nb", "# a", "{b=\"c\"}", "1a", "a{b=\"c\"} 0"} {
		own := []policy.EngineMetrics{{Name: "tug", Waiting: []string{name}}}
		_, err := New("s", policy.TelemetrySource{Kind: "tug", URL: "http://127.0.0.1:1/"}, own)
		if err == nil || !strings.Contains(err.Error(), "tug") {
			t.Errorf("New with metric %q = %v, want an error that names the engine", name, err)
		}
	}
	if _, err := New("s", policy.TelemetrySource{Kind: "tug", URL: "http://127.0.0.1:1/"}, []policy.EngineMetrics{{Name: "tug"}}); err == nil {
		t.Error("a table without a name is taken")
	}
}

func blocks(kind string, n int) string {
	return fmt.Sprintf("nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=%q,model=\"m\"} %d\n", kind, n)
}

// Wrong input: each reading is dropped and counted by its kind, never read.
func TestWrongReadings(t *testing.T) {
	some := gpu.Some
	for _, tt := range []struct {
		name, kind, text string
		want             gpu.Sample
		fault            gpu.Fault
		n                uint64
	}{
		{"not a number", policy.KindVLLM, "vllm:num_requests_waiting NaN\nvllm:num_requests_running 2\n", gpu.Sample{Running: some(2)}, gpu.FaultNumber, 1},
		{"infinite", policy.KindVLLM, "vllm:num_requests_waiting +Inf\nvllm:kv_cache_usage_perc -Inf\n", gpu.Sample{}, gpu.FaultNumber, 2},
		{"negative", policy.KindVLLM, "vllm:num_requests_waiting -1\n", gpu.Sample{}, gpu.FaultRange, 1},
		{"above 100 %", policy.KindVLLM, "vllm:kv_cache_usage_perc 1.01\n", gpu.Sample{}, gpu.FaultRange, 1},
		{"sentinel", policy.KindDCGMExporter, "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\"} 9223372036854775794\n", gpu.Sample{GPUs: 1}, gpu.FaultBlank, 1},
		{"sentinels", policy.KindDCGMExporter, "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\"} 2147483632\nDCGM_FI_PROF_SM_ACTIVE{gpu=\"0\"} 140737488355330\n", gpu.Sample{GPUs: 1}, gpu.FaultBlank, 2},
		{"unsigned -1", policy.KindDCGMExporter, "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\"} 4294967295\n", gpu.Sample{GPUs: 1}, gpu.FaultBlank, 1},
		{"corrupt", policy.KindDCGMExporter, "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\"} 5000\n", gpu.Sample{GPUs: 1}, gpu.FaultRange, 1},
		{"repeated", policy.KindVLLM, "vllm:num_requests_waiting{a=\"1\",b=\"2\"} 4\nvllm:num_requests_waiting{b=\"2\",a=\"1\"} 9\n", gpu.Sample{Waiting: some(4)}, gpu.FaultDuplicate, 1},
		{"repeated card", policy.KindDCGMExporter, "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\"} 40\nDCGM_FI_DEV_GPU_UTIL{gpu=\"0\"} 90\n", gpu.Sample{Util: some(0.4), GPUs: 1}, gpu.FaultDuplicate, 1},
		{"a total by its type", policy.KindVLLM, "# TYPE vllm:num_requests_waiting counter\nvllm:num_requests_waiting 4\nvllm:num_requests_running 1\n", gpu.Sample{Running: some(1)}, gpu.FaultCounter, 1},
		{"more blocks than there are", policy.KindTritonLLM, blocks("used", 9) + blocks("max", 8), gpu.Sample{}, gpu.FaultRange, 1},
		{"no blocks at all", policy.KindTritonLLM, blocks("used", 0) + blocks("max", 0), gpu.Sample{}, gpu.FaultOther, 0},
		{"no type", policy.KindVLLM, "vllm:num_requests_waiting 4\n", gpu.Sample{Waiting: some(4)}, gpu.FaultOther, 0},
		{"another's type", policy.KindVLLM, "# TYPE vllm:num_requests_waiting_total counter\nvllm:num_requests_waiting 4\n", gpu.Sample{Waiting: some(4)}, gpu.FaultCounter, 0},
		{"escapes", policy.KindVLLM, `vllm:num_requests_waiting{model_name="a\"} 99\n\\"} 4` + "\n", gpu.Sample{Waiting: some(4)}, gpu.FaultOther, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parse(t, tt.kind, nil, tt.text)
			if err != nil {
				t.Fatal(err)
			}
			tt.want.Dropped = int(tt.n)
			same(t, got, tt.want)
			var want gpu.Faults
			want[tt.fault] = tt.n
			if got.Faults != want {
				t.Errorf("faults = %v, want %d of %v", got.Faults, tt.n, tt.fault)
			}
		})
	}
	own := []policy.EngineMetrics{{Name: "tug", Running: []string{"tug_done_total"}, Waiting: []string{"tug_queue"}}}
	s, err := New("s", policy.TelemetrySource{Kind: "tug", URL: "http://127.0.0.1:1/"}, own)
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.parse([]byte("tug_done_total 90\ntug_queue 1\n"), instant)
	if err != nil || got.Running.OK || got.Faults[gpu.FaultCounter] != 1 {
		t.Errorf("a total by its name = %+v, %v; want it dropped", got, err)
	}
}
