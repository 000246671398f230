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
	s, err := New("node", policy.TelemetrySource{Kind: kind, URL: srv.URL + "/metrics"}, nil)
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

// Q3
func TestContract(t *testing.T) {
	strange := map[string]string{
		policy.KindDCGMExporter: "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\"} 9223372036854775794\n",
		policy.KindVLLM:         "vllm:num_requests_waiting NaN\nvllm:kv_cache_usage_perc -1\n",
	}
	for kind, name := range map[string]string{policy.KindDCGMExporter: "dcgm_4gpu_normal.prom", policy.KindVLLM: "vllm_new_names.prom"} {
		t.Run(kind, func(t *testing.T) {
			source := func(h http.HandlerFunc) func(*testing.T) gpu.Source {
				return func(t *testing.T) gpu.Source { return serve(t, kind, h) }
			}
			sourcetest.Run(t, sourcetest.Makers{
				Good:    source(text(file(t, name))),
				Broken:  source(gone),
				Hanging: source(hang),
				Strange: source(text(strange[kind])),
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
	}{
		{"error status", gone, "status 502"},
		{"no content", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }, "status 204"},
		{"redirect", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/other", http.StatusFound) }, "status 302"},
		{"HTML", header("Content-Type", "text/html; charset=utf-8", good), "content-type"},
		{"HTML without a type", text("<html><body>login</body></html>\n"), "not a metric"},
		{"JSON", header("Content-Type", "application/json", "{}"), "content-type"},
		{"JSON as text", text("{\"error\":\"down\"}\n"), "labels"},
		{"error text", text("Internal error: collector is down\n"), "no known metric"},
		{"empty", text(""), "no known metric"},
		{"comments only", text("# nothing\n"), "no known metric"},
		{"cut in the middle of a number", text("vllm:num_requests_waiting 24"), "middle of a line"},
		{"shorter than promised", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(2*len(good)))
			_, _ = w.Write([]byte(good))
		}, "body"},
		{"too large", func(w http.ResponseWriter, _ *http.Request) {
			for range MaxText/1024 + 1 {
				_, _ = w.Write(bytes.Repeat([]byte("# x\n"), 256))
			}
		}, ErrTooLarge.Error()},
		{"too large when unpacked", header("Content-Encoding", "gzip", bomb.String()), ErrTooLarge.Error()},
		{"broken gzip", header("Content-Encoding", "gzip", good), "gzip"},
		{"cut gzip", header("Content-Encoding", "gzip", bomb.String()[:bomb.Len()/2]), "body"},
		{"other encoding", header("Content-Encoding", "br", good), "content-encoding"},
		{"signal not well formed", text("vllm:num_requests_waiting many\n"), "line 1"},
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
	if got, err := s.Sample(ctx); !errors.Is(err, context.DeadlineExceeded) {
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
