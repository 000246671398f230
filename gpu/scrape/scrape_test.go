package scrape

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/gpu/sourcetest"
	"github.com/weirproxy/weir/policy"
)

// serve makes a source of a handler.
func serve(t *testing.T, kind string, h http.HandlerFunc) *Source {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	own := []policy.EngineMetrics{{Name: "tug", Waiting: []string{"tug_queue"}}}
	s, err := New("node", policy.TelemetrySource{Kind: kind, URL: srv.URL + "/metrics"}, own)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func text(s string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		_, _ = w.Write([]byte(s))
	}
}

func hang(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

func gone(w http.ResponseWriter, _ *http.Request) { http.Error(w, "gone", http.StatusBadGateway) }

func file(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// moving serves texts whose counters grow with each look.
func moving(format string, per float64) http.HandlerFunc {
	var looks atomic.Int64
	return func(w http.ResponseWriter, r *http.Request) {
		text(fmt.Sprintf(format, per*float64(looks.Add(1))))(w, r)
	}
}

// Q3: every kind keeps the contract of sources.
func TestContract(t *testing.T) {
	for _, tt := range []struct {
		kind    string
		good    http.HandlerFunc
		strange string
	}{
		{policy.KindDCGMExporter, text(file(t, "dcgm_full.prom")), "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\"} 9223372036854775794\n"},
		{policy.KindVLLM, text(file(t, "vllm_page.prom")), "vllm:num_requests_waiting NaN\nvllm:kv_cache_usage_perc -1\n"},
		{policy.KindSGLang, text(file(t, "sglang_ranks.prom")), "sglang:token_usage 44\n"},
		{policy.KindTGI, text(file(t, "tgi.prom")), "tgi_queue_size -1\n"},
		{policy.KindTriton, text(file(t, "triton.prom")), "nv_inference_pending_request_count NaN\nnv_gpu_utilization{gpu_uuid=\"a\"} 40\n"},
		{policy.KindTritonLLM, text(file(t, "triton_trtllm.prom")), "nv_trt_llm_request_metrics{request_type=\"waiting\"} +Inf\n"},
		{policy.KindTRTLLM, text(file(t, "trtllm_serve.prom")), "trtllm_kv_cache_utilization 1.5\n"},
		{"tug", text("tug_queue 4\n"), "# TYPE tug_queue counter\ntug_queue 4\n"},
		{policy.KindNodeExporter, moving("node_cpu_seconds_total{cpu=\"0\",mode=\"user\"} %g\n", 1), "node_cpu_seconds_total{cpu=\"0\",mode=\"idle\"} NaN\n"},
		{policy.KindCAdvisor, moving("machine_cpu_cores 4\ncontainer_cpu_usage_seconds_total{id=\"/\"} %g\n", 1e-6), "container_cpu_usage_seconds_total{id=\"/\"} -1\n"},
	} {
		t.Run(tt.kind, func(t *testing.T) {
			source := func(h http.HandlerFunc) func(*testing.T) gpu.Source {
				return func(t *testing.T) gpu.Source { return serve(t, tt.kind, h) }
			}
			sourcetest.Run(t, sourcetest.Makers{
				Good:    source(tt.good),
				Broken:  source(gone),
				Hanging: source(hang),
				Strange: source(text(tt.strange)),
			})
		})
	}
}

// Answers that are no complete metrics text are misses.
func TestMisses(t *testing.T) {
	good := "vllm:num_requests_waiting 240\n"
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	for range 11 {
		_, _ = z.Write(bytes.Repeat([]byte("# x\n"), 1<<18))
	}
	_ = z.Close()
	header := func(name, value, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set(name, value)
			_, _ = w.Write([]byte(body))
		}
	}
	tests := []struct {
		name string
		h    http.HandlerFunc
		want string
		kind gpu.Fault
	}{
		{"error status", gone, "status 502", gpu.FaultStatus},
		{"no content", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }, "status 204", gpu.FaultStatus},
		{"redirect", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/other", http.StatusFound) }, "status 302", gpu.FaultRedirect},
		{"HTML", header("Content-Type", "text/html; charset=utf-8", good), "content-type", gpu.FaultType},
		{"HTML without a type", text("<html><body>login</body></html>\n"), "not a metric", gpu.FaultForm},
		{"JSON", header("Content-Type", "application/json", "{}"), "content-type", gpu.FaultType},
		{"JSON as text", text("{\"error\":\"down\"}\n"), "labels", gpu.FaultForm},
		{"error text", text("Internal error: collector is down\n"), "no known metric", gpu.FaultEmpty},
		{"empty", text(""), "no known metric", gpu.FaultEmpty},
		{"comments only", text("# nothing\n"), "no known metric", gpu.FaultEmpty},
		{"cut in the middle of a number", text("vllm:num_requests_waiting 24"), "middle of a line", gpu.FaultForm},
		{"shorter than promised", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(2*len(good)))
			_, _ = w.Write([]byte(good))
		}, "body", gpu.FaultConnect},
		{"too large", func(w http.ResponseWriter, _ *http.Request) {
			for range MaxText/1024 + 1 {
				_, _ = w.Write(bytes.Repeat([]byte("# x\n"), 256))
			}
		}, ErrTooLarge.Error(), gpu.FaultSize},
		{"too large when unpacked", header("Content-Encoding", "gzip", bomb.String()), ErrTooLarge.Error(), gpu.FaultSize},
		{"broken gzip", header("Content-Encoding", "gzip", good), "gzip", gpu.FaultForm},
		{"cut gzip", header("Content-Encoding", "gzip", bomb.String()[:bomb.Len()/2]), "body", gpu.FaultConnect},
		{"other encoding", header("Content-Encoding", "br", good), "content-encoding", gpu.FaultType},
		{"signal not well formed", text("vllm:num_requests_waiting many\n"), "line 1", gpu.FaultForm},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := serve(t, policy.KindVLLM, tt.h)
			got, err := s.Sample(t.Context())
			if err == nil || !reflect.DeepEqual(got, gpu.Sample{}) {
				t.Fatalf("Sample = %+v, %v; want an error", got, err)
			}
			if !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "node") {
				t.Errorf("error = %v, want the source's name and %q", err, tt.want)
			}
			if f := gpu.FaultOf(err); f != tt.kind {
				t.Errorf("%v is counted as %v, want %v", err, f, tt.kind)
			}
		})
	}
}

func TestRedirectIsNotFollowed(t *testing.T) {
	var asked atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	t.Cleanup(other.Close)
	s := serve(t, policy.KindVLLM, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
	})
	if _, err := s.Sample(t.Context()); err == nil || asked.Load() != 0 {
		t.Errorf("Sample = %v, the other server was asked %d times", err, asked.Load())
	}
}

func TestGzip(t *testing.T) {
	s := serve(t, policy.KindVLLM, func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			t.Errorf("Accept-Encoding = %q", r.Header.Get("Accept-Encoding"))
		}
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		_, _ = z.Write([]byte("vllm:num_requests_waiting 7\n"))
		_ = z.Close()
	})
	for range 3 {
		got, err := s.Sample(t.Context())
		if err != nil || got.Waiting != gpu.Some(7) {
			t.Fatalf("Sample = %+v, %v", got, err)
		}
	}
}

// An answer that drips is ended by the deadline, whatever came of it.
func TestSlowAnswer(t *testing.T) {
	s := serve(t, policy.KindVLLM, func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte("vllm:num_requests_waiting 1\n"))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if got, err := s.Sample(ctx); !errors.Is(err, context.DeadlineExceeded) || gpu.FaultOf(err) != gpu.FaultTimeout {
		t.Errorf("Sample = %+v, %v; want context.DeadlineExceeded", got, err)
	}
}

func TestNewRefuses(t *testing.T) {
	for _, c := range []policy.TelemetrySource{
		{Kind: policy.KindVLLM, URL: ""},
		{Kind: policy.KindVLLM, URL: "ftp://host/metrics"},
		{Kind: policy.KindVLLM, URL: "http:///metrics"},
		{Kind: policy.KindVLLM, URL: "http://a b/"},
		{Kind: "mine", URL: "http://host/metrics"},
	} {
		if _, err := New("n", c, nil); err == nil || !strings.Contains(err.Error(), "n:") {
			t.Errorf("New(%+v) = %v, want an error with the name", c, err)
		}
	}
}
