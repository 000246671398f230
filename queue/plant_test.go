package queue_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/weirproxy/weir/internal/modelsim"
	"github.com/weirproxy/weir/queue"
)

// job draws one request: tokens of prompt and of answer.
type job func(rng *rand.Rand) (prompt, output int)

// plant is a pool in virtual time: engines, seats, and callers without end
// (or arrivals at a rate) that take each free seat at once.
type plant struct {
	now     time.Duration
	rng     *rand.Rand
	draw    job
	batches []*batch
	turn    int

	seats   int64
	used    int64
	silent  int64
	waiting int

	tokenSeats int64 // prompt and answer of those with a seat; 0 = no bound
	taken      int64 // of them
	head       *modelsim.Sequence

	rate    float64 // arrivals per second; 0 = without end
	next    time.Duration
	ended   uint64
	firsts  []begun
	onFirst func(now time.Time, took time.Duration)
}

type begun struct{ at, took time.Duration }

// batch is one engine and the end of its step under way.
type batch struct {
	*modelsim.Batch
	due  time.Duration
	busy bool
}

func newPlant(seed uint64, draw job, engines ...modelsim.EngineConfig) *plant {
	p := &plant{rng: rand.New(rand.NewPCG(seed, 2)), draw: draw}
	for i, c := range engines {
		p.batches = append(p.batches, &batch{Batch: modelsim.NewBatch(c, rand.New(rand.NewPCG(seed, uint64(10+i))))})
	}
	return p
}

var epoch = time.Unix(1_700_000_000, 0)

func (p *plant) at() time.Time { return epoch.Add(p.now) }

// fill gives free seats out, as the line does.
func (p *plant) fill() {
	for p.used < p.seats && (p.rate == 0 || p.waiting > 0) {
		if p.head == nil {
			in, out := p.draw(p.rng)
			p.head = &modelsim.Sequence{Prompt: in, Output: out}
		}
		if p.tokenSeats > 0 && p.taken+p.head.KV() > p.tokenSeats {
			return
		}
		if p.rate > 0 {
			p.waiting--
		}
		p.used++
		p.silent++
		p.taken += p.head.KV()
		p.head.Owner = p.now
		b := p.batches[p.turn%len(p.batches)]
		p.turn++
		b.Submit(p.head)
		p.head = nil
		if !b.busy {
			p.begin(b)
		}
	}
}

func (p *plant) begin(b *batch) {
	if d := b.Begin(); d > 0 {
		b.busy, b.due = true, p.now+d
	}
}

// run goes on until an instant.
func (p *plant) run(until time.Duration) {
	for {
		p.fill()
		var b *batch // whose step ends first
		for _, x := range p.batches {
			if x.busy && x.due <= until && (b == nil || x.due < b.due) {
				b = x
			}
		}
		switch {
		case p.rate > 0 && p.next <= until && (b == nil || p.next <= b.due):
			p.now = p.next
			p.next += time.Duration(p.rng.ExpFloat64() / p.rate * float64(time.Second))
			p.waiting++
		case b != nil:
			p.now, b.busy = b.due, false
			p.finish(b)
			p.fill()
			if !b.busy {
				p.begin(b)
			}
		default:
			p.now = until
			return
		}
	}
}

func (p *plant) finish(b *batch) {
	first, done := b.Finish()
	for _, s := range first {
		took := p.now - s.Owner.(time.Duration)
		p.silent--
		p.firsts = append(p.firsts, begun{p.now, took})
		if p.onFirst != nil {
			p.onFirst(p.at(), took)
		}
	}
	for _, s := range done {
		p.taken -= s.KV()
	}
	p.used -= int64(len(done))
	p.ended += uint64(len(done))
}

func (p *plant) load() (waiting, running int, kv float64, tokens int64) {
	for _, b := range p.batches {
		l := b.Load()
		waiting += l.Waiting
		running += l.Running
		kv = max(kv, float64(l.KVUsed)/float64(l.KVTokens))
		tokens += l.OutputTokens
	}
	return waiting, running, kv, tokens
}

// p95 is of the answers that began in a span.
func (p *plant) p95(from, to time.Duration) time.Duration {
	var took []time.Duration
	for _, f := range p.firsts {
		if f.at > from && f.at <= to {
			took = append(took, f.took)
		}
	}
	if len(took) == 0 {
		return 0
	}
	slices.Sort(took)
	return took[int(math.Ceil(0.95*float64(len(took))))-1]
}

// fixed measures tokens per second and TTFT of a fixed number of seats.
func fixed(c *trial, seats int64, engines []modelsim.EngineConfig) (rate float64, ttft time.Duration) {
	p, rate := hold(c, 1, seats, engines)
	return rate, p.p95(4*c.mean, p.now)
}

// hold runs a plant with a fixed number of seats, and gives its tokens per
// second once it is warm.
func hold(c *trial, seed uint64, seats int64, engines []modelsim.EngineConfig) (p *plant, rate float64) {
	p = newPlant(seed, c.draw, engines...)
	p.seats = seats
	warm, span := 4*c.mean, 12*c.mean
	p.run(warm)
	before := p.tokens()
	p.run(warm + span)
	return p, float64(p.tokens()-before) / span.Seconds()
}

// best finds the fixed numbers that are as good as any: the least that gives
// 98 % of the most tokens per second (in rough traffic 95 %) with TTFT in time,
// and the largest.
func best(c *trial, engines []modelsim.EngineConfig) (b band) {
	type try struct {
		n    int64
		rate float64
	}
	var tries []try
	step := int64(queue.Thorough(106, 103))
	for n := c.bounds.Min; n <= c.bounds.Max; n = max(n+1, n*step/100) {
		r, ttft := fixed(c, n, engines)
		if ttft <= c.bounds.TTFT {
			tries = append(tries, try{n, r})
			b.rate = max(b.rate, r)
		}
	}
	enough := 0.98
	if c.rough {
		enough = 0.95
	}
	for _, t := range tries {
		if t.rate >= enough*b.rate {
			if b.least == 0 {
				b.least = t.n
			}
			b.most = t.n
		}
	}
	return b
}

// band is the fixed numbers that are as good as any.
type band struct {
	least, most int64
	rate        float64 // tokens per second
}

func (p *plant) tokens() int64 {
	_, _, _, n := p.load()
	return n
}

// follow lets a tuner steer the plant for so many seconds and gives the seats
// after each. With engine it hears the engine, sampled 0.7 s before each look;
// with first it hears of first tokens.
func (p *plant) follow(t *queue.Tuner, seconds int, engine, first bool) (seats []int64) {
	p.onFirst = nil
	if first {
		p.onFirst = t.First
	}
	for range seconds {
		look := queue.Look{}
		p.run(p.now + 300*time.Millisecond)
		if engine {
			w, r, kv, _ := p.load()
			look.Engine = queue.Engine{At: p.at(), Waiting: word(float64(w)), Running: word(float64(r)), KV: word(kv)}
		}
		p.run(p.now + 700*time.Millisecond)
		look.Used, look.Ended, look.Waiting = p.used, p.ended, p.waiting
		look.Full = p.used >= p.seats && (p.rate == 0 || p.waiting > 0)
		if first {
			look.Silent = p.silent
		}
		p.seats = t.Tune(p.at(), look)
		seats = append(seats, p.seats)
	}
	return seats
}

func word(v float64) queue.Word { return queue.Word{V: v, OK: true} }
