package modelsim

import (
	"context"
	"math/rand/v2"
	"slices"
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
	prompt int // tokens to read
	output int // steps that yield tokens; 0 = reading only
	width  int // tokens a step yields (choices); at least 1

	// steps has room for every step, so the engine never waits for a reader.
	// It is closed after the last one.
	steps chan struct{}

	read int // prompt tokens read; engine's lock
	made int // steps made; engine's lock
	gone bool
}

func newSequence(prompt, output, width int) *sequence {
	return &sequence{prompt: prompt, output: output, width: width, steps: make(chan struct{}, output)}
}

// kv is the share of the cache that a sequence holds from start to end.
func (s *sequence) kv() int64 { return int64(s.prompt) + int64(s.output)*int64(s.width) }

// engine is a machine under continuous batching: each step yields one token
// of every running sequence and reads a piece of new prompts; a step takes
// longer the more sequences run. A sequence starts in order of arrival when
// the batch has a place and the cache has room for all it may need; until
// then it waits inside the engine.
type engine struct {
	cfg   EngineConfig
	speed float64
	rng   *rand.Rand // loop only
	wake  chan struct{}

	mu      sync.Mutex
	waiting []*sequence
	running []*sequence
	kvUsed  int64
	load    Load
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
		cfg:   cfg,
		speed: speed,
		rng:   rand.New(rand.NewPCG(seed, 1)),
		wake:  make(chan struct{}, 1),
	}
}

// submit puts a sequence behind the others.
func (e *engine) submit(s *sequence) {
	e.mu.Lock()
	e.waiting = append(e.waiting, s)
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
	if !s.gone {
		s.gone = true
		if i := slices.Index(e.waiting, s); i >= 0 {
			e.waiting = slices.Delete(e.waiting, i, i+1)
		} else if i := slices.Index(e.running, s); i >= 0 {
			e.running = slices.Delete(e.running, i, i+1)
			e.kvUsed -= s.kv()
		}
	}
	return s.read, s.made
}

// snapshot is the load now.
func (e *engine) snapshot() Load {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.load
	l.Running, l.Waiting = len(e.running), len(e.waiting)
	l.KVUsed, l.KVTokens = e.kvUsed, e.cfg.KVTokens
	return l
}

// loop makes steps until ctx ends. Steps follow each other without a gap
// while there is work: a late timer is made up for by the next step.
func (e *engine) loop(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var due time.Time
	for {
		length, reading := e.begin()
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
			e.finish(length, reading)
		case <-ctx.Done():
			return
		}
	}
}

// begin admits sequences and says how long the coming step takes (in real
// time; 0 = nothing to do) and which sequences read how much of their prompt.
func (e *engine) begin() (length time.Duration, reading map[*sequence]int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for len(e.waiting) > 0 && len(e.running) < e.cfg.Running && e.kvUsed+e.waiting[0].kv() <= e.cfg.KVTokens {
		e.kvUsed += e.waiting[0].kv()
		e.running = append(e.running, e.waiting[0])
		e.waiting = slices.Delete(e.waiting, 0, 1)
	}
	if len(e.running) == 0 {
		return 0, nil
	}
	left := e.cfg.PrefillChunk
	for _, s := range e.running {
		if n := min(s.prompt-s.read, left); n > 0 {
			if reading == nil {
				reading = make(map[*sequence]int)
			}
			reading[s] = n
			left -= n
		}
	}
	step := e.cfg.StepBase + time.Duration(len(e.running))*e.cfg.StepPerSequence +
		time.Duration(e.cfg.PrefillChunk-left)*e.cfg.PrefillPerToken
	if e.cfg.Jitter > 0 {
		step = time.Duration(float64(step) * (1 + e.cfg.Jitter*(2*e.rng.Float64()-1)))
	}
	return max(time.Duration(float64(step)/e.speed), time.Nanosecond), reading
}

// finish ends a step: sequences that have read their prompt yield a token.
func (e *engine) finish(length time.Duration, reading map[*sequence]int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.load.Steps++
	e.load.Busy += time.Duration(float64(length) * e.speed)
	e.running = slices.DeleteFunc(e.running, func(s *sequence) bool {
		n := reading[s]
		s.read += n
		e.load.PromptTokens += int64(n)
		if s.read < s.prompt {
			return false
		}
		if s.made < s.output {
			s.made++
			e.load.OutputTokens += int64(s.width)
			s.steps <- struct{}{}
		}
		if s.made < s.output {
			return false
		}
		s.gone = true
		e.kvUsed -= s.kv()
		close(s.steps)
		return true
	})
}
