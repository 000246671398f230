package gpu

import (
	"maps"
	"slices"
)

// memory is what a gauge knows of cards from the gauges before it, until each
// of its GPU sources has looked once.
//
// shown are cards that the pool had and whose source is none of the gauge's:
// they count meanwhile, as those of a source that is silent do. known are
// these and the cards of other pools: a source that tells of one goes on where
// the gauge before stood, with its fault and with what it is known to show.
type memory struct {
	shown roll
	known map[cardKey]*entry
}

// Inherit makes g, which has seen nothing yet, know what the gauges before it
// knew of cards, so that a reload that changes a pool's telemetry forgets no
// fault. own is the gauge of the same pool, nil = there was none; same names
// its source that looks at the same cards, by g's name for it: what is lost
// there stays lost. others are gauges of other pools, whose cards may have
// come here.
func (g *Gauge) Inherit(own *Gauge, same map[string]string, others ...*Gauge) {
	known := map[cardKey]*entry{}
	for _, o := range others {
		b := o.copyBook()
		maps.Copy(known, b.before.known)
		for i := range b.rolls {
			b.rolls[i].enter(known)
		}
	}
	var was book
	if own != nil {
		was = own.copyBook()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range g.sources {
		src := &g.sources[i]
		name, ok := same[src.info.Name]
		at := slices.Index(was.names, name)
		if !ok || at < 0 {
			continue
		}
		src.roll = was.rolls[at]
		for _, e := range src.roll.entries {
			e.state.Source = src.info.Name
			g.owners[keyOf(&e.state.Card)] = owner{src, e}
		}
		was.names, was.rolls = slices.Delete(was.names, at, at+1), slices.Delete(was.rolls, at, at+1)
	}
	maps.Copy(known, was.before.known)
	shown := was.before.shown
	for i := range was.rolls {
		r := &was.rolls[i]
		r.enter(known)
		shown.entries = append(shown.entries, r.entries...)
		shown.most += r.most
		if r.at.After(shown.at) {
			shown.at = r.at
		}
	}
	g.before = memory{shown, known}
	g.forget()
	g.publish(g.start)
}

// book is a copy of what a gauge knows of cards, by source.
type book struct {
	names  []string
	rolls  []roll
	before memory
}

func (g *Gauge) copyBook() (b book) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range g.sources {
		b.names = append(b.names, g.sources[i].info.Name)
		b.rolls = append(b.rolls, g.sources[i].roll.clone())
	}
	b.before = memory{g.before.shown.clone(), make(map[cardKey]*entry, len(g.before.known))}
	for key, e := range g.before.known {
		c := *e
		b.before.known[key] = &c
	}
	b.before.shown.enter(b.before.known) // one copy of those in both
	return b
}

// clone is a copy with entries of its own.
func (r *roll) clone() roll {
	c := *r
	c.shown, c.entries = nil, make([]*entry, len(r.entries))
	for i, e := range r.entries {
		own := *e
		c.entries[i] = &own
	}
	return c
}

// enter puts the entries of a roll into a book.
func (r *roll) enter(known map[cardKey]*entry) {
	for _, e := range r.entries {
		known[keyOf(&e.state.Card)] = e
	}
}

// recall is the entry of a card that no source of the gauge has told of: what
// is known of it, or a new one.
func (g *Gauge) recall(key cardKey) *entry {
	e, ok := g.before.known[key]
	if !ok {
		return new(entry)
	}
	delete(g.before.known, key)
	shown := &g.before.shown
	shown.entries = slices.DeleteFunc(slices.Clone(shown.entries), func(s *entry) bool { return s == e })
	shown.shown = nil
	return e
}

// forget ends the memory once each GPU source has looked.
func (g *Gauge) forget() {
	for i := range g.sources {
		if s := &g.sources[i]; !s.info.Engine && s.state.Samples == 0 {
			return
		}
	}
	g.before = memory{}
}
