package gpu_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/weirproxy/weir/gpu"
)

// heir is a rack whose gauge has the given sources and inherits from others.
func (r *rack) heir(own *gpu.Gauge, same map[string]string, others []*gpu.Gauge, sources ...gpu.SourceInfo) *rack {
	next := &rack{t: r.t, now: r.now, cards: slices.Clone(r.cards)}
	next.g = newGauge(faulty(10*time.Minute), sources...)
	next.g.Inherit(own, same, others...)
	return next
}

// lookBy is a look of another source.
func (r *rack) lookBy(source string) *rack {
	r.now = r.now.Add(every)
	r.g.Observe(gpu.Sample{Source: source, At: r.now, Util: gpu.Some(0.5), GPUs: len(r.cards), Cards: slices.Clone(r.cards)})
	return r
}

// A card that was faulty in the gauge before is faulty in the next, whichever
// source tells of it there, and no look is a gap; it comes back when it would
// have.
func TestFaultOutlivesAReload(t *testing.T) {
	agent := gpu.SourceInfo{Name: "agent", Every: every}
	slower := gpu.SourceInfo{Name: "card", Every: 2 * every}
	for name, tt := range map[string]struct {
		same   map[string]string
		source gpu.SourceInfo
	}{
		"the same source, looked at less often": {map[string]string{"card": "card"}, slower},
		"the same source under another name":    {map[string]string{"agent": "card"}, agent},
		"another kind of source":                {nil, agent},
		"a source that is not there any more":   {map[string]string{"agent": "gone"}, agent},
	} {
		t.Run(name, func(t *testing.T) {
			old := newRack(t, 4).look(3)
			old.cards[2].XID = gpu.Some(79)
			old.look(1)
			r := old.heir(old.g, tt.same, nil, tt.source, engine)
			r.capacity("before the first look", 0.75)
			if e := r.g.Reading().Endpoints(r.now); len(e) != 4 || e[2].Healthy || !e[0].Healthy {
				t.Errorf("endpoints before the first look: %+v", e)
			}
			r.g.Miss(tt.source.Name, r.now.Add(time.Second), nil)
			r.capacity("after a look that failed", 0.75)
			r.lookBy(tt.source.Name).capacity("after the first look", 0.75)
			if c := r.health("GPU-2", gpu.Faulty); c.Source != tt.source.Name || !c.Since.Equal(old.now) {
				t.Errorf("state %+v, want since %v", c, old.now)
			}
			if n := len(r.g.Reading().Cards()); n != 4 {
				t.Errorf("%d cards are known, want 4", n)
			}
			for range 118 {
				r.lookBy(tt.source.Name)
			}
			r.capacity("9:55 after the XID", 0.75)
			r.lookBy(tt.source.Name).capacity("10:00 after it", 1)

			// The old gauge goes its own way.
			old.look(1).capacity("the old gauge", 0.75)
		})
	}
}

// What an exporter has shown for long is old in the next gauge too, and what
// comes after it is new in its first look.
func TestCodesOutliveAReload(t *testing.T) {
	old := newRack(t, 2)
	old.cards[0].XID, old.cards[1].XID = gpu.Some(79), gpu.Some(13)
	old.look(3)
	r := old.heir(old.g, nil, nil, gpu.SourceInfo{Name: "agent", Every: every})
	r.cards[1].XID = gpu.Some(119)
	r.lookBy("agent")
	r.health("GPU-0", gpu.Healthy)
	r.health("GPU-1", gpu.Faulty)
}

// Where the same source is looked at, a lost card stays lost; cards that only
// a source told of that has left count until each source has looked.
func TestLostOutlivesAReload(t *testing.T) {
	old := newRack(t, 4).look(3)
	all := old.cards
	old.cards = all[:3]
	old.look(1)
	r := old.heir(old.g, map[string]string{"card": "card"}, nil, card)
	r.capacity("before the first look", 0.75)
	r.look(3).capacity("after it", 0.75)
	r.health("GPU-3", gpu.Lost)
	r.cards = all
	r.look(3).capacity("back", 1)

	// Other labels are matched now: half of the cards are not wanted any more.
	old.cards = all
	old.cards[3].XID = gpu.Some(79)
	old.look(4).capacity("a fault among four", 0.75)
	other := gpu.SourceInfo{Name: "other", Every: every}
	half := old.heir(old.g, nil, nil, gpu.SourceInfo{Name: "agent", Every: every}, other)
	half.cards = half.cards[:2]
	half.lookBy("agent").capacity("one of two sources has looked", 0.75)
	half.g.Observe(gpu.Sample{Source: "other", At: half.now})
	half.capacity("both have looked", 1)
	if n := len(half.g.Reading().Cards()); n != 2 {
		t.Errorf("%d cards are known, want 2", n)
	}
	half.now = half.now.Add(11 * time.Minute)

	silent := old.heir(old.g, nil, nil, other)
	silent.now = silent.now.Add(10*time.Minute + time.Second)
	silent.capacity("a source that never looked, after FaultFor", 1)
}

// A card that goes from one pool to another, or through two reloads at once,
// takes its fault along.
func TestFaultMovesWithItsCard(t *testing.T) {
	old := newRack(t, 4).look(3)
	old.cards[2].XID = gpu.Some(79)
	old.look(1)
	agent := gpu.SourceInfo{Name: "agent", Every: every}
	between := old.heir(nil, nil, []*gpu.Gauge{old.g}, agent)
	between.capacity("cards of another pool do not count before they are told of", 1)
	for i, r := range []*rack{
		between.heir(nil, nil, []*gpu.Gauge{between.g}, agent),
		between.heir(between.g, nil, nil, agent),
		between,
	} {
		r.cards = r.cards[2:]
		r.lookBy("agent").capacity(fmt.Sprintf("way %d", i), 0.5)
		r.health("GPU-2", gpu.Faulty)
	}
	once := old.heir(old.g, nil, nil, agent)
	twice := once.heir(once.g, map[string]string{"agent": "agent"}, nil, agent)
	twice.capacity("after two reloads without a look", 0.75)
	twice.lookBy("agent").capacity("and a look", 0.75)
}

// FuzzInherit: whatever gauges follow each other, each card is known once,
// capacity stays in 0..1, and what is inherited is as it was.
func FuzzInherit(f *testing.F) {
	f.Add(uint64(1), uint64(200))
	f.Fuzz(func(t *testing.T, seed, n uint64) {
		rng := rand.New(rand.NewPCG(seed, 0))
		names := []string{"a", "b", "c"}
		fresh := func() *gpu.Gauge {
			var sources []gpu.SourceInfo
			for _, name := range names {
				if rng.IntN(2) == 0 {
					sources = append(sources, gpu.SourceInfo{Name: name, Every: every, Engine: name == "c"})
				}
			}
			return newGauge(faulty(time.Minute), sources...)
		}
		pools := []*gpu.Gauge{fresh(), fresh()}
		now := t0
		for range n % 300 {
			now = now.Add(time.Second)
			at := rng.IntN(2)
			if rng.IntN(8) == 0 {
				same := map[string]string{}
				for range rng.IntN(3) {
					same[names[rng.IntN(3)]] = names[rng.IntN(3)]
				}
				next := fresh()
				next.Inherit(pools[at], same, pools[1-at])
				was := map[string]gpu.CardState{}
				for _, c := range pools[at].Reading().Cards() {
					was[c.ID] = c
				}
				for _, c := range next.Reading().Cards() {
					if w, ok := was[c.ID]; !ok || c.Health != w.Health || c.Reason != w.Reason || !c.Since.Equal(w.Since) {
						t.Fatalf("%+v is inherited as %+v", w, c)
					}
				}
				pools[at] = next
			}
			s := gpu.Sample{Source: names[rng.IntN(3)], At: now}
			for range rng.IntN(4) {
				c := gpu.Card{ID: []string{"x", "y", "z"}[rng.IntN(3)], Util: gpu.Some(0.5), XID: gpu.Value{V: float64(rng.IntN(2) * 79), OK: rng.IntN(2) == 0}}
				if rng.IntN(2) == 0 {
					c.XIDAt = now.Add(-time.Duration(rng.IntN(100)) * time.Second)
				}
				s.Cards = append(s.Cards, c)
			}
			g := pools[at]
			g.Observe(s)
			seen := map[string]bool{}
			for _, c := range g.Reading().Cards() {
				if seen[c.ID] || (c.Reason == "") != (c.Health == gpu.Healthy) {
					t.Fatalf("card %+v, twice: %v", c, seen[c.ID])
				}
				seen[c.ID] = true
			}
			if v := g.Reading().Capacity(now); !(v >= 0 && v <= 1) {
				t.Fatalf("capacity %v", v)
			}
		}
	})
}
