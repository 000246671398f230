package gpu

import (
	"slices"
	"strings"
	"time"
)

// maxCards bounds the cards of a pool.
const maxCards = 4096

// cardKey names a card.
type cardKey struct{ id, instance string }

func keyOf(c *Card) cardKey { return cardKey{c.ID, c.Instance} }

// roll is the cards of one source. A card belongs to the first source in the
// policy's order that tells of it: what the others say of it counts only once
// that one is silent.
//
// A look without any card is no word about cards. In one with cards those
// that are missing are lost. A lost card counts as missing for faultFor, or
// until as many are there as ever were (a pod went to another GPU): then the
// pool is as large as what is there.
type roll struct {
	entries []*entry  // those of the last look first, in its order, then the lost
	most    int       // GPUs that were there at once
	round   uint64    // of looks that had cards
	at      time.Time // of its source's last look
	shown   *chunk    // nil = to be made anew
}

// chunk is the immutable picture of a roll.
type chunk struct {
	at        time.Time // of its source's last look
	cards     []CardState
	good, all float64 // GPUs
}

// takeCards enters a look's cards; gone is how many were left out as repeated,
// without a name, or beyond the bound.
func (g *Gauge) takeCards(src *source, cards []Card, at time.Time) (gone int) {
	r := &src.roll
	r.at, r.shown = at, nil
	if len(cards) == 0 {
		return 0
	}
	r.round++
	present := make([]*entry, 0, len(cards))
	for i := range cards {
		c := &cards[i]
		if c.ID == "" {
			gone++
			continue
		}
		owner, e := g.ownerOf(c, src, at)
		switch {
		case e == nil:
			gone++
		case owner != src: // told of by another
		case e.round == r.round:
			gone++
		default:
			e.round = r.round
			e.see(c, at, g.policy.FaultFor)
			present = append(present, e)
		}
	}
	for _, e := range r.entries {
		if e.round == r.round {
			continue
		}
		if e.miss(at); at.Sub(e.state.Seen).Abs() > g.policy.FaultFor {
			delete(g.owners, keyOf(&e.state.Card))
			continue
		}
		present = append(present, e)
	}
	r.entries = present
	g.forgetReplaced(r)
	return gone
}

// ownerOf finds a card's entry and whose it is: src's from now on where nobody
// had it, or its owner is silent or comes later in order. nil = there is no
// room.
func (g *Gauge) ownerOf(c *Card, src *source, at time.Time) (*source, *entry) {
	key := keyOf(c)
	o, known := g.owners[key]
	switch {
	case !known && len(g.owners) >= maxCards:
		return nil, nil
	case !known:
		o.entry = g.recall(key)
	case o.source == src:
		return src, o.entry
	case o.source.place < src.place && at.Sub(o.source.state.At).Abs() <= g.window(o.source.info.Every):
		return o.source, o.entry
	default:
		from := &o.source.roll
		from.entries = slices.DeleteFunc(slices.Clone(from.entries), func(e *entry) bool { return e == o.entry })
		from.shown = nil
	}
	o.source = src
	o.entry.round, o.entry.state.Source = 0, src.info.Name
	g.owners[key] = o
	return src, o.entry
}

// forgetReplaced drops the lost where as many GPUs are there as ever were.
func (g *Gauge) forgetReplaced(r *roll) {
	here := map[string]bool{}
	for _, e := range r.entries {
		if e.round == r.round {
			here[e.state.ID] = true
		}
	}
	r.most = max(r.most, len(here))
	if len(here) < r.most {
		return
	}
	r.entries = slices.DeleteFunc(r.entries, func(e *entry) bool {
		// The instances of a GPU that is there are no GPUs.
		replaced := e.round != r.round && (e.state.Instance == "" || !here[e.state.ID])
		if replaced {
			delete(g.owners, keyOf(&e.state.Card))
		}
		return replaced
	})
}

// show makes the picture of a roll.
func (r *roll) show() *chunk {
	if r.shown == nil {
		r.shown = r.picture()
	}
	return r.shown
}

// device is one GPU of a picture: itself and its MIG instances, each of which
// counts as much as it has compute slices.
type device struct {
	whole    *CardState
	there    bool    // an instance is
	good, of float64 // instances, by weight
	slices   int     // of the instances
	blind    bool    // slices are not known of each
}

func (r *roll) picture() *chunk {
	c := &chunk{at: r.at, cards: make([]CardState, len(r.entries))}
	devices := map[string]*device{}
	var order []string
	for i, e := range r.entries {
		c.cards[i] = e.state
		d := devices[e.state.ID]
		if d == nil {
			d = new(device)
			devices[e.state.ID] = d
			order = append(order, e.state.ID)
		}
		if e.state.Instance == "" {
			d.whole = &c.cards[i]
		}
	}
	for i := range c.cards {
		if s := &c.cards[i]; s.Instance != "" {
			devices[s.ID].take(s)
		}
	}
	here, lost, missing := 0, 0, 0.0
	for _, id := range order {
		d := devices[id]
		part, there := d.judge()
		c.good += part * d.weight()
		if there {
			here++
			c.all += d.weight()
		} else {
			lost++
			missing += d.weight()
		}
	}
	if lost > 0 { // of them as many count as were ever there beside the others
		c.all += missing * float64(min(max(r.most-here, 0), lost)) / float64(lost)
	}
	return c
}

// take counts an instance. What is wrong with the GPU is wrong with all of it.
func (d *device) take(s *CardState) {
	if w := d.whole; w != nil && w.Health == Faulty && s.Health < Faulty {
		s.Health, s.Since, s.Reason = w.Health, w.Since, "its GPU: "+w.Reason
	}
	d.of += s.weight()
	d.slices += s.Slices
	d.blind = d.blind || s.Slices <= 0
	d.there = d.there || s.Health != Lost
	if !s.Health.Out() {
		d.good += s.weight()
	}
}

// weight is how much the GPU counts beside others.
func (d *device) weight() float64 {
	if d.blind {
		return 1
	}
	return weigh(d.slices)
}

// judge is the part of a GPU that can be had, and whether it is there. Once a
// source tells of instances alone, they are the GPU.
func (d *device) judge() (good float64, there bool) {
	switch {
	case d.there:
		return d.good / d.of, true
	case d.whole == nil:
		return 0, false
	case d.whole.Health.Out():
		return 0, d.whole.Health != Lost
	}
	return 1, true
}

// cardsAt calls fn for the pictures that are not too old to count at now.
func (r *Reading) cardsAt(now time.Time, fn func(*chunk)) {
	for _, c := range r.chunks {
		if now.Sub(c.at).Abs() <= r.policy.FaultFor {
			fn(c)
		}
	}
}

// Cards are the GPUs and MIG instances that are known, by source, at most
// 4096. What a silent source told last is among them: see CardState.Seen.
func (r *Reading) Cards() []CardState {
	var all []CardState
	for _, c := range r.chunks {
		all = append(all, c.cards...)
	}
	return all
}

// Capacity is the share of the pool's GPUs at now that are neither faulty nor
// lost, 0..1; the instances of a GPU are parts of it, by their compute slices. 1 where no GPU is known.
// What a source said stops counting when it has been silent for faultFor.
func (r *Reading) Capacity(now time.Time) float64 {
	if !r.impaired {
		return 1
	}
	var good, all float64
	r.cardsAt(now, func(c *chunk) {
		good += c.good
		all += c.all
	})
	if all == 0 {
		return 1
	}
	return unit(good / all)
}

// Endpoints are the model endpoints that the GPUs serve, by name, as far as
// sources tell it. One is unhealthy when one of its GPUs is faulty or lost: an
// engine does not run on the others alone. Pool is for the caller to fill in.
func (r *Reading) Endpoints(now time.Time) []Endpoint {
	var all []Endpoint
	r.cardsAt(now, func(c *chunk) {
		for i := range c.cards {
			s := &c.cards[i]
			for _, name := range s.Endpoints.All() {
				at, known := slices.BinarySearchFunc(all, name, func(e Endpoint, name string) int { return strings.Compare(e.Name, name) })
				if !known {
					all = slices.Insert(all, at, Endpoint{Name: name, Healthy: true})
				}
				if e := &all[at]; s.Health.Out() && e.Healthy {
					e.Healthy, e.Reason = false, s.name()+": "+s.Reason
				}
			}
		}
	})
	return all
}

// name is the card in words.
func (s *CardState) name() string {
	if s.Instance == "" {
		return "GPU " + s.ID
	}
	return "GPU " + s.ID + " instance " + s.Instance
}
