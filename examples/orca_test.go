package examples_test

import (
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/envoytest"
	"github.com/weirproxy/weir/internal/modelsim"
)

const listeningPools = `
gauge: {targets: {waiting: 2}}
pools:
  - {name: chat-fp16, variant: fp16, seats: {requests: 8}, telemetry: [{kind: orca, every: 100ms}]}
  - {name: chat-dyn, variant: fp16-dyn, seats: {requests: 8}}
  - {name: chat-int8, variant: int8, seats: {requests: 8}}
  - {name: infer, variant: fp16, seats: {requests: 8}}
models:
  - {name: deepseek-v4, pools: [chat-fp16]}
  - {name: others, pools: [chat-dyn, chat-int8]}
  - {name: infer, pools: [infer]}
`

// TestLoadInAnswers: a pool tells its load with each answer, the pressure
// follows it up and down, and the caller sees nothing of it, whatever he asks.
func TestLoadInAnswers(t *testing.T) {
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		w := newWorld(t, b, setup{policy: listeningPools, sim: modelsim.Config{Engine: modelsim.EngineConfig{Running: 1}, Speed: 20}})
		token := w.token(nil)
		ask := func() {
			a := w.chat(token, 16, false, "endpoint-load-metrics-format", "JSON", "endpoint-load-metrics", "TEXT named_metrics.kv_cache_usage_perc=1")
			if a.code != http.StatusOK {
				t.Errorf("answer %d %v: %s", a.code, a.err, a.body)
			}
			for _, name := range []string{"endpoint-load-metrics", "endpoint-load-metrics-bin", "endpoint-load-metrics-format"} {
				if v, ok := a.header[http.CanonicalHeaderKey(name)]; ok {
					t.Errorf("the caller sees %s: %q", name, v)
				}
			}
		}
		pressure := func() float64 { return w.metric("weir_gauge_pressure", `pool="chat-fp16"`) }
		if p := pressure(); p != 0.5 {
			t.Errorf("pressure %v before any answer, want neutral", p)
		}
		envoytest.Eventually(t, 20*time.Second, "one call at a time: the pressure falls", func() bool { ask(); return pressure() < 0.2 })
		var work sync.WaitGroup
		done := make(chan struct{})
		for range 6 {
			work.Go(func() {
				for {
					select {
					case <-done:
						return
					default:
						ask()
					}
				}
			})
		}
		envoytest.Eventually(t, 20*time.Second, "six at a time in an engine that serves one: the pressure rises", func() bool { return pressure() > 0.8 })
		close(done)
		work.Wait()
		envoytest.Eventually(t, 20*time.Second, "and falls again", func() bool { ask(); return pressure() < 0.2 })
	})
}
