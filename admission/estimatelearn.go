package admission

import (
	"math"
	"sync"

	"github.com/weirproxy/weir/policy"
)

// flowKey is a tenant and a model.
type flowKey struct{ tenant, model string }

// flow is what is kept of a tenant's answers of a model: about 600 bytes.
type flow struct {
	learnt

	mu   sync.Mutex
	line line
	hist histogram
	vote vote

	key        flowKey
	prev, next *flow // in the shard's order of use
}

// shard keeps flows in the order in which they last learnt.
type shard struct {
	mu         sync.Mutex
	flows      map[flowKey]*flow
	head, tail *flow // head learnt last
}

// find gives what is learnt of a tenant's model; nil is nothing.
func (e *Estimator) find(r *Request) *learnt {
	key := keyOf(r)
	s := e.shardOf(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.flows[key]; f != nil {
		return &f.learnt
	}
	return nil
}

func keyOf(r *Request) flowKey {
	k := flowKey{model: r.Model}
	if r.Identity != nil {
		k.tenant = r.Identity.Tenant
	}
	return k
}

// shardOf spreads keys by FNV-1a.
func (e *Estimator) shardOf(k flowKey) *shard {
	h := uint32(2166136261)
	for _, s := range [2]string{k.tenant, k.model} {
		for i := range len(s) {
			h = (h ^ uint32(s[i])) * 16777619
		}
	}
	return &e.shards[h%estimateShards]
}

// use gives the flow of a key, made where there is none, as the one that
// learnt last.
func (s *shard) use(k flowKey) *flow {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.flows == nil {
		s.flows = make(map[flowKey]*flow)
	}
	f := s.flows[k]
	if f == nil {
		f = &flow{key: k}
		s.flows[k] = f
	} else {
		s.unlink(f)
	}
	f.prev, f.next = nil, s.head
	if s.head != nil {
		s.head.prev = f
	} else {
		s.tail = f
	}
	s.head = f
	return f
}

// trim drops the flow that did not learn for longest where the shard has more
// than its part of most; nil = it has not.
func (s *shard) trim(most int) *flow {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.flows) <= max(most/estimateShards, 1) {
		return nil
	}
	f := s.tail
	s.unlink(f)
	delete(s.flows, f.key)
	return f
}

func (s *shard) unlink(f *flow) {
	if f.prev != nil {
		f.prev.next = f.next
	} else {
		s.head = f.next
	}
	if f.next != nil {
		f.next.prev = f.prev
	} else {
		s.tail = f.prev
	}
	f.prev, f.next = nil, nil
}

// Learn takes the counts of one whole answer.
func (e *Estimator) Learn(r *Request, u *Usage) {
	if r.Fixed > 0 || !u.Known {
		return
	}
	c, key := &r.Policy.Estimate, keyOf(r)
	s := e.shardOf(key)
	f := s.use(key)
	for old := s.trim(c.Tenants); old != nil; old = s.trim(c.Tenants) {
		e.forget(old)
	}
	m := e.models.of(r.Model)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.vote.gone {
		return // dropped since
	}
	f.learn(r, u, c, &m.learnt)
	m.count(&f.vote, &f.learnt)
}

// forget takes a flow's vote back.
func (e *Estimator) forget(f *flow) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e.models.of(f.key.model).withdraw(&f.vote)
	f.vote.gone = true
}

// learn takes one answer; model is what counts where the tenant's own answers
// say nothing. The lock is held.
func (f *flow) learn(r *Request, u *Usage, c *policy.Estimate, model *learnt) {
	if text := u.Input - r.Tokens; text > 0 && r.Media <= 0 {
		f.line.add(float64(max(r.Prompt, 0)), float64(r.prompts()), float64(text), c)
	}
	if f.line.n >= warm {
		overhead, perByte := f.line.solve(c, overheadOf(nil, model), perByteOf(c, nil, model))
		f.overhead.Store(math.Float64bits(overhead))
		f.perByte.Store(math.Float64bits(perByte))
	}
	each := r.perChoice(u.Output)
	if each > 0 && r.choicesCame(u) && (!r.cutOff(u) || each >= outputOf(c, &f.learnt, model)) {
		f.hist.add(each)
		if f.hist.n >= warm {
			f.output.Store(f.hist.quantile(0.95))
		}
	}
}

// choicesCame reports whether the answers that were asked for came: an engine
// that knows no n would make what one answer takes look small.
func (r *Request) choicesCame(u *Usage) bool {
	return r.Choices <= 1 || u.Choices >= min(r.Choices, ManyChoices)
}

// cutOff reports an answer that ended at the caller's own cap. It tells that
// answers are at least so long, not how long they are.
func (r *Request) cutOff(u *Usage) bool { return r.MaxOut > 0 && u.Output >= r.MaxOut }

// line fits tokens = overhead x prompts + perByte x bytes by least squares. An
// answer weighs 1/(bytes + flatBytes): its part in perByte grows with its
// bytes, its part in the overhead does not. Older answers fade, and what they
// leave open stays where it is taken to be: perByte as if bytes of priorBytes
// had shown it, the overhead as if one short prompt had.
type line struct {
	n                  int
	pp, pb, bb, pt, bt float64 // sums of products of prompts, bytes, tokens, weighted
}

const (
	flatBytes     = 64
	priorBytes    = 16 << 10
	priorOverhead = 1.0 / flatBytes
	fade          = 1 - 1.0/256 // each answer fades by so much with the next
	maxOverhead   = 1 << 16     // tokens of a prompt beside its text, of chat templates and tools
)

// add takes an answer. A count beyond what the bounds allow is cut, so that no
// single one counts for many.
func (l *line) add(bytes, prompts, tokens float64, c *policy.Estimate) {
	tokens = min(tokens, bytes*boundPerByte(c, 1/c.MinBytesPerToken)+maxOverhead*prompts)
	l.n = min(l.n+1, warm)
	w := 1 / (bytes + flatBytes)
	add := func(to *float64, v float64) { *to = *to*fade + w*v }
	add(&l.pp, prompts*prompts)
	add(&l.pb, prompts*bytes)
	add(&l.bb, bytes*bytes)
	add(&l.pt, prompts*tokens)
	add(&l.bt, bytes*tokens)
}

// solve gives the line; overhead and perByte are where it starts from.
func (l *line) solve(c *policy.Estimate, overhead, perByte float64) (a, b float64) {
	pp, bb := l.pp+priorOverhead, l.bb+priorBytes
	pt, bt := l.pt+priorOverhead*overhead, l.bt+priorBytes*perByte
	det := pp*bb - l.pb*l.pb // above 0: both priors are
	b = boundPerByte(c, (pp*bt-l.pb*pt)/det)
	a = (pt - l.pb*b) / pp
	if a < 0 || a > maxOverhead {
		a = min(max(a, 0), maxOverhead)
		b = boundPerByte(c, (bt-l.pb*a)/bb)
	}
	return a, b
}

// histogram counts answers by their output.
type histogram struct {
	n     int // answers, up to warm
	total uint32
	of    [buckets]uint16
}

const (
	perOctave = 8 // buckets per doubling: the percentile is exact to 9 %
	buckets   = perOctave*20 + 1
	halveAt   = 2048 // it is halved here: it follows the last few thousand answers
)

func (h *histogram) add(output int64) {
	h.n = min(h.n+1, warm)
	h.of[bucket(output)]++
	if h.total++; h.total >= halveAt {
		h.total = 0
		for i := range h.of {
			h.of[i] /= 2
			h.total += uint32(h.of[i])
		}
	}
}

// quantile is the upper edge of the bucket where the share q is reached.
func (h *histogram) quantile(q float64) int64 {
	sum := 0.0
	for i, n := range h.of {
		if sum += float64(n); sum >= q*float64(h.total) {
			return edge(i)
		}
	}
	return edge(buckets - 1)
}

// bucket i holds the counts in (edge(i-1), edge(i)].
func bucket(n int64) int {
	i := int(math.Ceil(math.Log2(float64(n)) * perOctave))
	return min(max(i, 0), buckets-1)
}

func edge(i int) int64 { return int64(math.Floor(math.Exp2(float64(i) / perOctave))) }
