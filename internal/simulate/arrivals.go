package simulate

import (
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"sort"
	"strconv"
	"time"

	"github.com/weirproxy/weir/identity"
	"github.com/weirproxy/weir/policy"
)

// stream makes the first sends of one arrival. All it draws comes from a dice
// of its own, so that every policy meets the same requests at the same
// instants.
type stream struct {
	a       *Arrival
	mixes   []Mix
	clients []Client
	rng     *rand.Rand
	at      time.Duration // of the send that comes next
	senders senders
	trace   *TraceReader // nil = no trace
	call    Call         // of it, the one at hand
	cut     bool         // the trace goes on after the stream ends

	gap   float64       // evenly spaced: what the rate grows by until the next send
	drawn float64       // mixed: the rate in force
	until time.Duration // and how long it stands
}

// newStream opens a stream; skipBad is for bad lines of a trace.
func newStream(s *Scenario, i int, skipBad bool) (t *stream, err error) {
	a := &s.Arrivals[i]
	t = &stream{a: a, mixes: s.Requests, clients: s.Clients, at: -s.Warmup, until: -s.Warmup - 1, gap: 0.5}
	t.rng = rand.New(rand.NewPCG(s.Seed, uint64(i)<<8|1))
	tenants := &s.Tenants
	if a.Requests != nil {
		t.mixes = a.Requests
	}
	if a.Clients != nil {
		t.clients = a.Clients
	}
	if a.Tenants != nil {
		tenants = a.Tenants
	}
	t.senders = newSenders(tenants)
	if a.Kind == Trace {
		t.trace, err = s.OpenTrace(a.Trace, skipBad)
	}
	return t, err
}

// next finds the instant of the coming send; false = there is none. A rate
// that changes is met by inversion: the next send comes when the rate, summed
// over time, has grown by a drawn amount (evenly spaced: by 1, at first by half).
func (t *stream) next() (bool, error) {
	if t.trace != nil {
		return t.read()
	}
	budget := t.gap
	if t.gap = 1; !t.a.Even {
		budget = t.rng.ExpFloat64()
	}
	for t.at < t.a.To {
		rate, until := t.segment(t.at)
		if dt := budget / rate * float64(time.Second); rate > 0 && dt < float64(until-t.at) {
			t.at += time.Duration(dt)
			return true, nil
		}
		budget -= rate * (until - t.at).Seconds()
		t.at = until
	}
	return false, nil
}

// read takes the next call of the trace.
func (t *stream) read() (more bool, err error) {
	t.call, err = t.trace.Next()
	switch {
	case errors.Is(err, io.EOF) && !t.trace.started:
		return false, fmt.Errorf("trace %s: no line of it can be replayed", t.trace.name)
	case errors.Is(err, io.EOF):
		return false, nil
	}
	t.at = t.a.From + t.call.At
	t.cut = err == nil && t.at >= t.a.To
	return err == nil && !t.cut, err
}

// close gives the trace's file back and says how many of its lines were
// passed over.
func (t *stream) close() (skipped int) {
	if t.trace == nil {
		return 0
	}
	_ = t.trace.Close() // it was read only
	return t.trace.Skipped()
}

// curve is how many pieces of constant rate a period of a curve is made of.
const curve = 1000

// segment is the rate at an instant, and until when it stands. Before the
// start it is that of time 0.
func (t *stream) segment(at time.Duration) (rate float64, until time.Duration) {
	a := t.a
	if a.Kind == Mixed {
		return t.mixed(at)
	}
	if at < 0 {
		return a.At(0), 0
	}
	if at < a.From {
		return 0, a.From
	}
	switch a.Kind {
	case Pulse:
		start := a.From
		if a.Every > 0 {
			start += (at - a.From) / a.Every * a.Every
		}
		if at < start+a.Length {
			return a.Rate, min(start+a.Length, a.To)
		}
		if a.Every > 0 {
			return 0, min(start+a.Every, a.To)
		}
		return 0, a.To
	case Diurnal:
		piece := max(a.Every/curve, time.Millisecond)
		return a.At(at + piece/2), min(at+piece, a.To)
	}
	return a.Rate, a.To
}

// mixed draws the rate anew each Every.
func (t *stream) mixed(at time.Duration) (rate float64, until time.Duration) {
	a := t.a
	if at < a.From && a.From > 0 {
		return 0, a.From
	}
	if at >= t.until {
		t.drawn = a.Rate + (a.Most-a.Rate)*t.rng.Float64()
		t.until = min(at+max(a.Every, time.Millisecond), a.To)
	}
	return t.drawn, t.until
}

// draw makes the caller of the send at hand.
func (t *stream) draw() *caller {
	m := pick(t.mixes, t.rng.Float64(), shareOfMix)
	c := &caller{first: t.at, client: pick(t.clients, t.rng.Float64(), shareOfClient)}
	c.class, c.colour, c.model, c.embed, c.priority, c.deadline = m.Class, m.Colour, m.Model, m.Embedding, m.Priority, m.Deadline
	c.stream = t.rng.Float64() < m.Stream
	c.luck = 2*t.rng.Float64() - 1
	c.prompt, c.output, c.maxOut = m.Prompt.Draw(t.rng), m.Output.Draw(t.rng), m.MaxTokens
	who, tier := t.senders.pick(t.rng), m.Tier
	if t.trace != nil {
		tier = c.follow(&t.call, &who, tier)
	}
	switch {
	case c.embed:
		c.output, c.maxOut = 0, 0
	case m.Understate > 0:
		c.maxOut = max(int64(m.Understate*float64(c.output)), 1)
	case c.maxOut > 0:
		c.output = min(c.output, c.maxOut)
	}
	c.identity = t.senders.identity(who, c.class, c.colour, tier)
	return c
}

// follow takes what a trace says of a request.
func (c *caller) follow(call *Call, who *sender, tier string) string {
	if class, ok := policy.ParseClass(call.Class); ok {
		c.class = class
	}
	if call.Tenant != "" {
		*who = sender{name: call.Tenant}
	}
	if call.Model != "" {
		c.model = call.Model
	}
	if call.Stream != nil {
		c.stream = *call.Stream
	}
	if call.Prompt > 0 {
		c.prompt = call.Prompt
	}
	if call.Output > 0 {
		c.output = call.Output
	}
	if call.MaxTokens > 0 {
		c.maxOut = call.MaxTokens
	}
	if call.Tier != "" {
		return call.Tier
	}
	return tier
}

func shareOfMix(m *Mix) float64       { return m.Share }
func shareOfClient(c *Client) float64 { return c.Share }

// pick is the entry in whose part of the shares u falls.
func pick[T any](list []T, u float64, share func(*T) float64) *T {
	last := len(list) - 1
	for i := range last {
		if u -= share(&list[i]); u < 0 {
			return &list[i]
		}
	}
	return &list[last]
}

// senders are the tenants of a stream.
type senders struct {
	names []string
	upTo  []float64 // cumulated shares; nil = equal ones
	keys  int
	turn  []int // of each tenant's keys
	known map[known]*identity.Identity
}

// sender is who sends, with which of its keys.
type sender struct{ name, key string }

type known struct {
	sender
	class  policy.Class
	colour policy.Colour
	tier   string
}

func newSenders(t *Tenants) senders {
	n := max(t.Count, 1)
	name := t.Name
	if name == "" {
		name = "tenant"
	}
	s := senders{names: []string{name}, keys: t.Keys, known: map[known]*identity.Identity{}}
	if n > 1 {
		s.names = make([]string, n)
		for i := range s.names {
			s.names[i] = name + "-" + strconv.Itoa(i+1)
		}
	}
	if t.Keys > 1 {
		s.turn = make([]int, n)
	}
	high := int(math.Round(t.HighPart * float64(n)))
	if t.Zipf <= 0 && (high <= 0 || high >= n) {
		return s
	}
	sum := 0.0
	s.upTo = make([]float64, n)
	for i := range s.upTo {
		switch {
		case t.Zipf > 0:
			sum += math.Pow(float64(i+1), -t.Zipf)
		case i < high:
			sum += t.HighLoad / float64(high)
		default:
			sum += (1 - t.HighLoad) / float64(n-high)
		}
		s.upTo[i] = sum
	}
	for i := range s.upTo {
		s.upTo[i] /= sum
	}
	return s
}

func (s *senders) pick(rng *rand.Rand) sender {
	i := 0
	switch {
	case s.upTo != nil:
		i = min(sort.SearchFloat64s(s.upTo, rng.Float64()), len(s.names)-1)
	case len(s.names) > 1:
		i = rng.IntN(len(s.names))
	}
	w := sender{name: s.names[i]}
	if s.turn != nil {
		s.turn[i] = (s.turn[i] + 1) % s.keys
		w.key = "key-" + strconv.Itoa(s.turn[i])
	}
	return w
}

// identity is the sender's name tag; those without keys are kept.
func (s *senders) identity(w sender, class policy.Class, colour policy.Colour, tier string) *identity.Identity {
	k := known{w, class, colour, tier}
	if id := s.known[k]; id != nil {
		return id
	}
	id := &identity.Identity{Tenant: w.name, Key: w.key, Class: class, Colour: colour, Tier: tier}
	if w.key == "" {
		s.known[k] = id
	}
	return id
}
