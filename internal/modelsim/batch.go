package modelsim

import (
	"container/heap"
	"iter"
	"math/rand/v2"
	"time"
)

// Sequence is one request inside a batch. Prompt, Output and Width must not
// change after Submit.
type Sequence struct {
	Prompt int // tokens to read
	Output int // steps that yield tokens; 0 = reading only
	Width  int // tokens a step yields (choices); below 1 counts as 1
	Owner  any // the shell's; not looked at

	state sequenceState
	read  int   // prompt tokens read
	until int64 // decoding, through: the step after which it is through
	made  int   // steps that yielded, of one that left
	at    int   // decoding: its index in byEnd
}

type sequenceState uint8

const (
	waiting sequenceState = iota
	reading
	decoding
	through
	left
)

// KV is the share of the cache that a sequence holds from start to end.
func (s *Sequence) KV() int64 { return int64(s.Prompt) + int64(s.Output)*s.width() }

func (s *Sequence) width() int64 { return int64(max(s.Width, 1)) }

// Batch is a machine under continuous batching (Yu et al., Orca, OSDI 2022;
// prompts in chunks: Agrawal et al., Sarathi, 2023): each step yields one
// token of every sequence that has read its prompt and reads a piece of new
// prompts, the oldest first; a step takes longer the more sequences run. A
// sequence starts in order of arrival when the batch has a place, the cache
// has room for all it may need, and the step can read some of its prompt (as
// in vLLM, whose scheduler stops at the step's token budget); until then it
// waits inside the engine. So at most one prompt is half read after a step.
//
// It has no clock: Begin says how long the coming step takes, Finish ends it.
// A step costs O(1) for the sequences that only yield, O(log n) for one that
// begins or ends to. Not safe for concurrent use.
type Batch struct {
	cfg EngineConfig
	rng *rand.Rand

	waiting  fifo
	reading  *Sequence // that a step has read a part of; nil = none
	decoding byEnd     // that yield a token each step
	rate     int64     // tokens that these yield in a step
	parts    []part
	length   time.Duration // of the step under way

	load  Load
	first []*Sequence
	done  []*Sequence
}

// part is what a sequence reads in one step.
type part struct {
	s *Sequence
	n int
}

// NewBatch makes an empty machine. rng makes the jitter and is the batch's
// from now on.
func NewBatch(cfg EngineConfig, rng *rand.Rand) *Batch {
	b := &Batch{rng: rng}
	b.Configure(cfg)
	return b
}

// Configure changes the machine from the next step on. What runs stays in,
// also where it is more than the machine would take in now.
func (b *Batch) Configure(cfg EngineConfig) {
	cfg.fill()
	b.cfg, b.load.KVTokens = cfg, cfg.KVTokens
}

// Config is the machine, defaults filled in.
func (b *Batch) Config() EngineConfig { return b.cfg }

// Submit puts a sequence behind the others. One that needs more than the
// whole cache never starts, and nobody behind it does.
func (b *Batch) Submit(s *Sequence) {
	b.waiting.push(s)
	b.load.Waiting++
}

// Leave takes a sequence out, wherever it is, and says how far it came: prompt
// tokens read, and steps that yielded. Safe to call for one that is through.
func (b *Batch) Leave(s *Sequence) (read, made int) {
	made = b.made(s)
	switch s.state {
	case waiting:
		b.load.Waiting--
	case reading:
		if b.reading == s {
			b.reading = nil
		}
		b.release(s)
	case decoding:
		heap.Remove(&b.decoding, s.at)
		b.rate -= s.width()
		b.release(s)
	case through, left:
		return s.read, made
	}
	s.state, s.made = left, made
	return s.read, made
}

// made is how many steps of the sequence have yielded.
func (b *Batch) made(s *Sequence) int {
	switch s.state {
	case decoding:
		return s.Output - int(s.until-b.load.Steps)
	case through:
		return s.Output
	}
	return s.made
}

// release gives back the place and the cache of a sequence.
func (b *Batch) release(s *Sequence) {
	b.load.Running--
	b.load.KVUsed -= s.KV()
}

// Begin starts sequences and says how long the coming step takes; 0 = there is
// nothing to do. After a step has begun, Finish must follow.
func (b *Batch) Begin() time.Duration {
	b.parts = b.parts[:0]
	spare := b.cfg.PrefillChunk
	if b.reading != nil {
		spare = b.read(b.reading, spare)
	}
	spare = b.start(spare)
	if b.load.Running == 0 {
		return 0
	}
	step := b.cfg.StepBase + time.Duration(b.load.Running)*b.cfg.StepPerSequence +
		time.Duration(b.cfg.PrefillChunk-spare)*b.cfg.PrefillPerToken
	if b.cfg.Jitter > 0 {
		step = time.Duration(float64(step) * (1 + b.cfg.Jitter*(2*b.rng.Float64()-1)))
	}
	b.length = max(step, time.Nanosecond)
	return b.length
}

// start lets in who waits, in order, while there is room and so many tokens to
// read in the step; it gives those left over.
func (b *Batch) start(spare int) int {
	for s := b.waiting.head(); s != nil && spare > 0; s = b.waiting.head() {
		if b.load.Running >= b.cfg.Running || b.load.KVUsed+s.KV() > b.cfg.KVTokens {
			break
		}
		b.waiting.pop()
		b.load.Waiting--
		b.load.Running++
		b.load.KVUsed += s.KV()
		s.state = reading
		spare = b.read(s, spare)
	}
	return spare
}

// read lets the coming step read a prompt on; it gives the tokens left over.
func (b *Batch) read(s *Sequence, spare int) int {
	n := min(s.Prompt-s.read, spare)
	b.parts = append(b.parts, part{s, n})
	return spare - n
}

// Finish ends the step. It gives the sequences whose first token came with it,
// and those that are through by it; both lists are valid until the next Finish.
func (b *Batch) Finish() (first, done []*Sequence) {
	b.first, b.done = b.first[:0], b.done[:0]
	b.load.Steps++
	b.load.Busy += b.length
	b.reading = nil
	for _, p := range b.parts {
		if p.s.state == reading {
			b.advance(p.s, p.n)
		}
	}
	b.load.OutputTokens += b.rate
	for len(b.decoding) > 0 && b.decoding[0].until <= b.load.Steps {
		s := heap.Pop(&b.decoding).(*Sequence)
		b.rate -= s.width()
		b.end(s)
	}
	return b.first, b.done
}

// advance counts n more tokens of a prompt as read; whoever has read it all yields.
func (b *Batch) advance(s *Sequence, n int) {
	s.read += n
	b.load.PromptTokens += int64(n)
	if s.read < s.Prompt {
		b.reading = s
		return
	}
	if s.Output <= 0 {
		b.end(s)
		return
	}
	s.state = decoding
	s.until = b.load.Steps - 1 + int64(s.Output)
	heap.Push(&b.decoding, s)
	b.rate += s.width()
	b.first = append(b.first, s)
}

func (b *Batch) end(s *Sequence) {
	s.state = through
	b.release(s)
	b.done = append(b.done, s)
}

// Yielded are the sequences that the last step made a token of; valid until
// the next call of another method.
func (b *Batch) Yielded() iter.Seq[*Sequence] {
	return func(yield func(*Sequence) bool) {
		for _, s := range b.decoding {
			if !yield(s) {
				return
			}
		}
		for _, s := range b.done {
			if s.Output > 0 && !yield(s) {
				return
			}
		}
	}
}

// Load is the state of the machine, and its counters since the start.
func (b *Batch) Load() Load { return b.load }

// fifo is a line of sequences; those that left from the middle are skipped when
// they reach the head.
type fifo struct {
	list []*Sequence
	gone int // of the list's front
}

func (f *fifo) push(s *Sequence) { f.list = append(f.list, s) }

func (f *fifo) size() int { return len(f.list) - f.gone }

// head is the first one that still waits; nil = nobody.
func (f *fifo) head() *Sequence {
	for f.size() > 0 {
		if s := f.list[f.gone]; s.state == waiting {
			return s
		}
		f.pop()
	}
	return nil
}

// pop forgets the first one; the list's front is given back when it is half
// of the list.
func (f *fifo) pop() {
	f.list[f.gone] = nil
	f.gone++
	if 2*f.gone >= len(f.list) {
		n := copy(f.list, f.list[f.gone:])
		clear(f.list[n:])
		f.list, f.gone = f.list[:n], 0
	}
}

// byEnd is a heap of decoding sequences by their last step.
type byEnd []*Sequence

func (h byEnd) Len() int           { return len(h) }
func (h byEnd) Less(i, j int) bool { return h[i].until < h[j].until }
func (h byEnd) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}

// Push implements heap.Interface.
func (h *byEnd) Push(x any) {
	s := x.(*Sequence)
	s.at = len(*h)
	*h = append(*h, s)
}

// Pop implements heap.Interface.
func (h *byEnd) Pop() any {
	old := *h
	n := len(old) - 1
	s := old[n]
	old[n] = nil
	*h = old[:n]
	return s
}
