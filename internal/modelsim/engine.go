package modelsim

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// EngineConfig is the machine that is simulated. Zero fields take defaults.
type EngineConfig struct {
	Running         int           // sequences in one batch; default 64
	KVTokens        int64         // tokens that fit the cache; default 400000
	StepBase        time.Duration // one decoding step of an empty batch; default 10ms
	StepPerSequence time.Duration // more for each sequence in the batch; default 200us
	PrefillPerToken time.Duration // more for each prompt token read in the step; default 20us
	PrefillChunk    int           // prompt tokens read in one step; default 2048
	Jitter          float64       // each step varies by up to this share; default 0, at most 1
}

func (c *EngineConfig) fill() {
	set(&c.Running, 64)
	set(&c.KVTokens, 400_000)
	set(&c.StepBase, 10*time.Millisecond)
	set(&c.StepPerSequence, 200*time.Microsecond)
	set(&c.PrefillPerToken, 20*time.Microsecond)
	set(&c.PrefillChunk, 2048)
	c.Jitter = min(max(c.Jitter, 0), 1)
}

func set[T int | int64 | float64 | time.Duration](v *T, preset T) {
	if *v <= 0 {
		*v = preset
	}
}

// sequence is one request inside the engine.
type sequence struct {
	Sequence

	// steps has room for every step, so the engine never waits for a reader.
	// It is closed after the last one.
	steps chan struct{}
}

func newSequence(prompt, output, width int) *sequence {
	s := &sequence{
		Sequence: Sequence{Prompt: prompt, Output: output, Width: width},
		steps:    make(chan struct{}, output),
	}
	s.Owner = s
	return s
}

// engine is the shell of a batch: it gives it a clock and a lock, and tells
// each sequence of its steps.
type engine struct {
	speed float64
	wake  chan struct{}

	mu    sync.Mutex
	batch *Batch
}

// Load is the state of the machine: a snapshot, and counters since the start.
type Load struct {
	Running      int           `json:"running"`
	Waiting      int           `json:"waiting"`
	KVUsed       int64         `json:"kv_used"` // tokens held in the cache
	KVTokens     int64         `json:"kv_tokens"`
	PromptTokens int64         `json:"prompt_tokens"` // read since the start
	OutputTokens int64         `json:"output_tokens"` // made since the start
	Steps        int64         `json:"steps"`
	Busy         time.Duration `json:"busy_ns"` // spent in steps since the start, in simulated time
}

func newEngine(cfg EngineConfig, speed float64, seed uint64) *engine {
	return &engine{
		speed: speed,
		wake:  make(chan struct{}, 1),
		batch: NewBatch(cfg, rand.New(rand.NewPCG(seed, 1))),
	}
}

// submit puts a sequence behind the others.
func (e *engine) submit(s *sequence) {
	e.mu.Lock()
	e.batch.Submit(&s.Sequence)
	e.mu.Unlock()
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// leave takes a sequence out, wherever it is, and says how far it came. Safe
// to call for one that is through.
func (e *engine) leave(s *sequence) (read, made int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.batch.Leave(&s.Sequence)
}

// snapshot is the load now.
func (e *engine) snapshot() Load {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.batch.Load()
}

// loop makes steps until ctx ends. Steps follow each other without a gap
// while there is work: a late timer is made up for by the next step.
func (e *engine) loop(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var due time.Time
	for {
		length := e.begin()
		if length == 0 {
			due = time.Time{}
			select {
			case <-e.wake:
				continue
			case <-ctx.Done():
				return
			}
		}
		now := time.Now()
		if due.IsZero() || now.Sub(due) > 10*length {
			due = now
		}
		due = due.Add(length)
		timer.Reset(due.Sub(now))
		select {
		case <-timer.C:
			e.finish()
		case <-ctx.Done():
			return
		}
	}
}

// begin begins a step and says how long it takes in real time; 0 = there is
// nothing to do.
func (e *engine) begin() time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	step := e.batch.Begin()
	if step == 0 {
		return 0
	}
	return max(time.Duration(float64(step)/e.speed), time.Nanosecond)
}

// finish ends a step and tells those who yielded a token, and who is through.
func (e *engine) finish() {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, done := e.batch.Finish()
	for s := range e.batch.Yielded() {
		s.Owner.(*sequence).steps <- struct{}{}
	}
	for _, s := range done {
		close(s.Owner.(*sequence).steps)
	}
}
