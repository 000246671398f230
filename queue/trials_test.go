package queue_test

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/weirproxy/weir/internal/modelsim"
	"github.com/weirproxy/weir/policy"
)

// trial is one kind of engine and traffic.
type trial struct {
	name    string
	bounds  policy.Adaptive
	draw    job
	engines []modelsim.EngineConfig
	half    func(c modelsim.EngineConfig) modelsim.EngineConfig
	mean    time.Duration // of an answer

	// slack is how many targets p95 may be, where few answers or very uneven
	// prompts make it jump, with a fixed number too; 0 = 1.
	slack float64

	// rough traffic: chance moves all by more than seats do. Numbers that give
	// 95 % are as good as any, and may move by 30 %; who hears the engine or first
	// tokens alone is held to the rate and no number.
	rough bool
}

func uniform(lo, hi int) func(*rand.Rand) int {
	return func(r *rand.Rand) int { return lo + r.IntN(hi-lo+1) }
}

func jobs(prompt, output func(*rand.Rand) int) job {
	return func(r *rand.Rand) (int, int) { return prompt(r), output(r) }
}

func mixed(r *rand.Rand) int {
	if r.IntN(10) == 0 {
		return 4000 + r.IntN(8000)
	}
	return 100 + r.IntN(500)
}

// machine is modelsim's default with another batch and cache.
func machine(running int, kv int64) modelsim.EngineConfig {
	return modelsim.EngineConfig{
		Running: running, KVTokens: kv, Jitter: 0.05, PrefillChunk: 2048,
		StepBase: 10 * time.Millisecond, StepPerSequence: 200 * time.Microsecond, PrefillPerToken: 20 * time.Microsecond,
	}
}

func trials() []*trial {
	const plenty = 2_000_000
	places := func(c modelsim.EngineConfig) modelsim.EngineConfig { c.Running /= 2; return c }
	cache := func(c modelsim.EngineConfig) modelsim.EngineConfig { c.KVTokens /= 2; return c }
	speed := func(c modelsim.EngineConfig) modelsim.EngineConfig {
		c.StepBase *= 2
		c.StepPerSequence *= 2
		c.PrefillPerToken *= 2
		return c
	}
	slow, fast := machine(128, plenty), machine(256, plenty)
	slow.StepBase, slow.StepPerSequence = 20*time.Millisecond, time.Millisecond
	fast.StepBase, fast.StepPerSequence = 5*time.Millisecond, 20*time.Microsecond
	usual := policy.Adaptive{Min: 8, Max: 256, TTFT: 2 * time.Second}
	large := policy.Adaptive{Min: 8, Max: 512, TTFT: 3 * time.Second}
	quick := policy.Adaptive{Min: 8, Max: 512, TTFT: 500 * time.Millisecond}
	chat := jobs(uniform(100, 500), uniform(50, 350))
	return []*trial{
		{name: "batch", bounds: usual, draw: chat, engines: engines(machine(64, plenty)), half: places, mean: 5 * time.Second},
		{name: "small batch", bounds: usual, draw: chat, engines: engines(machine(16, plenty)), half: places, mean: 5 * time.Second},
		{name: "step time", bounds: usual, draw: chat, engines: engines(machine(64, plenty)), half: speed, mean: 5 * time.Second},
		{name: "kv", bounds: usual, draw: jobs(uniform(200, 1500), uniform(50, 450)), engines: engines(machine(256, 60_000)), half: cache, mean: 5 * time.Second},
		{name: "kv mixed", bounds: large, draw: jobs(mixed, uniform(50, 450)), engines: engines(machine(512, 400_000)), half: cache, mean: 5 * time.Second, slack: 1.6, rough: true},
		{name: "prefill", bounds: usual, draw: jobs(uniform(2000, 6000), uniform(20, 200)), engines: engines(machine(256, plenty)), half: speed, mean: 5 * time.Second, slack: 1.3},
		{name: "slow decode", bounds: large, draw: jobs(uniform(100, 500), uniform(50, 150)), engines: engines(slow), half: places, mean: 15 * time.Second},
		{name: "long answers", bounds: usual, draw: jobs(uniform(100, 2000), uniform(400, 2400)), engines: engines(machine(64, plenty)), half: speed, mean: 40 * time.Second, slack: 1.4},
		{name: "replicas", bounds: usual, draw: chat, engines: engines(machine(48, plenty), machine(48, plenty)), half: places, mean: 5 * time.Second},
		{name: "fast", bounds: quick, draw: jobs(uniform(20, 100), uniform(5, 30)), engines: engines(fast), half: places, mean: time.Second},
	}
}

func engines(c ...modelsim.EngineConfig) []modelsim.EngineConfig { return c }

func halved(c *trial) []modelsim.EngineConfig {
	e := slices.Clone(c.engines)
	for i := range e {
		e[i] = c.half(e[i])
	}
	return e
}
