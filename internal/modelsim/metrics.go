package modelsim

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"
)

// cards turn the machine's busy time into GPU utilisation: the share of time
// spent in steps since the last look that was at least minSpan ago.
type cards struct {
	mu   sync.Mutex
	at   time.Time
	busy time.Duration
	util float64
}

const minSpan = 50 * time.Millisecond

func newCards(start time.Time) *cards { return &cards{at: start} }

// look is the utilisation, 0..1.
func (c *cards) look(now time.Time, busy time.Duration, speed float64) float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if span := now.Sub(c.at); span >= minSpan {
		c.util = min(max(float64(busy-c.busy)/speed/float64(span), 0), 1)
		c.at, c.busy = now, busy
	}
	return c.util
}

// serveVLLM is the engine's own metrics, under vLLM's names.
func (s *Sim) serveVLLM(w http.ResponseWriter, _ *http.Request) {
	l, t := s.Load(), s.Totals()
	labels := fmt.Sprintf(`{engine="0",model_name=%q}`, s.models()[0])
	var b strings.Builder
	metric := func(name, kind, help string, v any) {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n%s%s %v\n", name, help, name, kind, name, labels, v)
	}
	metric("vllm:num_requests_running", "gauge", "Number of requests in model execution batches.", float64(l.Running))
	metric("vllm:num_requests_waiting", "gauge", "Number of requests waiting to be processed.", float64(l.Waiting))
	metric("vllm:kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", float64(l.KVUsed)/float64(l.KVTokens))
	metric("vllm:prompt_tokens_total", "counter", "Number of prefill tokens processed.", l.PromptTokens)
	metric("vllm:generation_tokens_total", "counter", "Number of generation tokens processed.", l.OutputTokens)
	metric("vllm:request_success_total", "counter", "Count of successfully processed requests.", t.Finished)
	writeText(w, b.String())
}

// reportHeader carries ORCA's load report; the format that a request wants
// stands in a header of the same name with "-Format".
const reportHeader = "Endpoint-Load-Metrics"

// reportLoad tells the load in a header, as vLLM does: with a whole answer
// whose request asks for it, never with a stream.
func (s *Sim) reportLoad(h http.Header, format string) {
	l := s.Load()
	kv, waiting := float64(l.KVUsed)/float64(l.KVTokens), l.Waiting
	switch strings.ToLower(format) {
	case "text":
		h.Set(reportHeader, fmt.Sprintf("TEXT named_metrics.kv_cache_usage_perc=%v, named_metrics.num_requests_waiting=%d.0", kv, waiting))
	case "json":
		h.Set(reportHeader, fmt.Sprintf(`JSON {"named_metrics": {"kv_cache_usage_perc": %v, "num_requests_waiting": %d.0}}`, kv, waiting))
	}
}

// serveDCGM is the GPUs' metrics, under dcgm-exporter's names.
func (s *Sim) serveDCGM(w http.ResponseWriter, _ *http.Request) {
	l := s.Load()
	util := s.gpu.look(time.Now(), l.Busy, s.cfg.Speed)
	const memory = 81_559 // MiB
	used := int(memory * (0.35 + 0.6*float64(l.KVUsed)/float64(l.KVTokens)))
	var b strings.Builder
	metric := func(name, help string, v string) {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s gauge\n", name, help, name)
		for i := range s.cfg.GPUs {
			fmt.Fprintf(&b, "%s{gpu=\"%d\",UUID=\"GPU-sim-%d\",device=\"nvidia%d\",modelName=\"Simulated\",Hostname=\"modelsim\"} %s\n", name, i, i, i, v)
		}
	}
	metric("DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %).", fmt.Sprint(int(util*100+0.5)))
	metric("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "Ratio of time the graphics engine is active.", fmt.Sprintf("%.6f", util))
	metric("DCGM_FI_DEV_FB_USED", "Framebuffer memory used (in MiB).", fmt.Sprint(used))
	metric("DCGM_FI_DEV_FB_FREE", "Framebuffer memory free (in MiB).", fmt.Sprint(memory-used))
	writeText(w, b.String())
}

func writeText(w http.ResponseWriter, text string) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write([]byte(text)) // a scraper that is gone needs no answer
}
