package simulate

import (
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/modelsim"
	"github.com/weirproxy/weir/policy"
)

// BenchmarkMillion plays a million requests of 10 to 100 tokens over three
// pools under continuous batching, about what they carry, with obedient clients,
// streams, a hundred tenants and a quota. The bar is 10 s on one core.
func BenchmarkMillion(b *testing.B) {
	const rate, n = 1500, 1_000_000
	machine := modelsim.EngineConfig{Running: 64, StepBase: time.Millisecond, StepPerSequence: 20 * time.Microsecond, PrefillPerToken: time.Microsecond, PrefillChunk: 8192}
	mix := Mix{Prompt: Dist{Kind: Uniform, A: 10, B: 100}, Output: Dist{Kind: Uniform, A: 10, B: 100}, MaxTokens: 100, Stream: 0.5}
	kinds := []Mix{mix, mix, mix}
	for i, share := range []float64{0.2, 0.5, 0.3} {
		kinds[i].Share, kinds[i].Class = share, policy.Class(i)
	}
	s := &Scenario{
		Name: "million", Seed: 1, Duration: n / rate * time.Second, Requests: kinds,
		Engines:  map[string]Engine{"chat-fp16": {Batch: machine}, "chat-dyn": {Batch: machine}, "chat-int8": {Batch: machine}},
		Arrivals: []Arrival{{Kind: Steady, Rate: rate, To: n / rate * time.Second}},
		Tenants:  Tenants{Count: 100, Zipf: 1},
		Clients:  []Client{{Share: 1, Kind: Obedient, Marks: true, Patience: 20 * time.Second, Tries: 5, Early: 1}},
	}
	p := policy.Default()
	p.Quotas = []policy.QuotaRule{{
		Name: "per-tenant", Match: policy.Match{Tenant: "*"}, By: []string{"tenant"},
		Limits: []policy.Limit{{Unit: policy.Concurrency, Max: 1000}, {Unit: policy.Tokens, Max: 1 << 40, Per: time.Minute}},
	}}
	p.Finish()
	b.ReportAllocs()
	var r *Result
	for b.Loop() {
		r = play(b, s, p)
	}
	tries := 0
	for _, n := range r.Reasons {
		tries += n
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(r.Requests), "ns/request")
	b.ReportMetric(float64(tries)/float64(r.Requests), "tries/request")
	b.ReportMetric(float64(r.Failed)/float64(r.Requests), "failed/request")
}
