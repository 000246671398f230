package modelsim_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/weirproxy/weir/internal/modelsim"
)

// metric reads one metric of a text and checks the form of all of it.
func metric(t *testing.T, sim *modelsim.Sim, path, name string) float64 {
	t.Helper()
	w := httptest.NewRecorder()
	sim.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody))
	text := w.Body.String()
	p := expfmt.NewTextParser(model.UTF8Validation)
	if _, err := p.TextToMetricFamilies(w.Body); err != nil {
		t.Fatalf("%s is no metrics text: %v", path, err)
	}
	m := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + `\{[^}]*\} (\S+)$`).FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("%s has no %s: %s", path, name, text)
	}
	v, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// Metrics follow the load.
func TestMetricsFollowLoad(t *testing.T) {
	cfg := exact()
	cfg.Running, cfg.KVTokens = 2, 90
	inside(t, modelsim.Config{Engine: cfg, GPUs: 2}, func(t *testing.T, sim *modelsim.Sim) {
		check := func(when string, running, waiting, kv, util float64) {
			t.Helper()
			for _, m := range []struct {
				path, name string
				want       float64
			}{
				{"/metrics", "vllm:num_requests_running", running},
				{"/metrics", "vllm:num_requests_waiting", waiting},
				{"/metrics", "vllm:kv_cache_usage_perc", kv},
				{"/dcgm/metrics", "DCGM_FI_DEV_GPU_UTIL", util},
			} {
				if got := metric(t, sim, m.path, m.name); got < m.want-1 && m.name == "DCGM_FI_DEV_GPU_UTIL" || m.name != "DCGM_FI_DEV_GPU_UTIL" && got != m.want {
					t.Errorf("%s: %s = %v, want %v", when, m.name, got, m.want)
				}
			}
		}
		time.Sleep(time.Second)
		check("idle", 0, 0, 0, 0)
		if got := metric(t, sim, "/dcgm/metrics", "DCGM_FI_DEV_GPU_UTIL"); got != 0 {
			t.Errorf("utilisation of an idle machine = %v", got)
		}
		var work sync.WaitGroup
		for range 5 {
			work.Go(func() { ask(t, sim, fmt.Sprintf(`{%s,"max_tokens":40}`, hello)) })
		}
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		check("busy", 2, 3, 1, 85)
		work.Wait()
		time.Sleep(time.Second)
		check("after", 0, 0, 0, 0)
		if got := metric(t, sim, "/metrics", "vllm:generation_tokens_total"); got != 200 {
			t.Errorf("generation tokens = %v, want 200", got)
		}
		if got := metric(t, sim, "/metrics", "vllm:prompt_tokens_total"); got != 5*helloTokens {
			t.Errorf("prompt tokens = %v, want %d", got, 5*helloTokens)
		}
	})
}

// vLLM tells its load with a whole answer, in the form that the request asks
// for in any case of letters, and never with a stream.
func TestLoadReport(t *testing.T) {
	r := start(t, modelsim.Config{})
	for _, c := range []struct {
		format, stream string
		want           string
	}{
		{"", "false", ""},
		{"text", "false", `^TEXT named_metrics\.kv_cache_usage_perc=[0-9.e-]+, named_metrics\.num_requests_waiting=0\.0$`},
		{"TEXT", "false", `^TEXT `},
		{"JSON", "false", `^JSON \{"named_metrics": \{"kv_cache_usage_perc": [0-9.e-]+, "num_requests_waiting": 0\.0\}\}$`},
		{"xml", "false", ""},
		{"text", "true", ""},
	} {
		resp, _ := r.must("/v1/chat/completions", fmt.Sprintf(`{%s,"stream":%s}`, hello, c.stream), "endpoint-load-metrics-format", c.format)
		got := resp.Header.Get("endpoint-load-metrics")
		if (got == "") != (c.want == "") || !regexp.MustCompile(c.want).MatchString(got) {
			t.Errorf("format %q, stream %s: %q, want %q", c.format, c.stream, got, c.want)
		}
	}
}
