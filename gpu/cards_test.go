package gpu_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/policy"
)

// rack plays one exporter's looks at its cards.
type rack struct {
	t     *testing.T
	g     *gpu.Gauge
	now   time.Time
	cards []gpu.Card
}

func faulty(d time.Duration) policy.Gauge {
	c := defaults()
	c.FaultFor = d
	return c
}

func newRack(t *testing.T, n int) *rack {
	r := &rack{t: t, g: newGauge(faulty(10*time.Minute), card, engine), now: t0}
	for i := range n {
		id := fmt.Sprintf("GPU-%d", i)
		r.cards = append(r.cards, gpu.Card{ID: id, Util: gpu.Some(0.5), XID: gpu.Some(0), Endpoints: gpu.EndpointsOf("pod-" + id)})
	}
	return r
}

// look is one look, a period later, n times.
func (r *rack) look(n int) *rack {
	for range n {
		r.now = r.now.Add(every)
		r.g.Observe(gpu.Sample{Source: "card", At: r.now, Util: gpu.Some(0.5), GPUs: len(r.cards), Cards: slices.Clone(r.cards)})
	}
	return r
}

func (r *rack) capacity(what string, want float64) {
	r.t.Helper()
	if got := r.g.Reading().Capacity(r.now); math.Abs(got-want) > 1e-9 {
		r.t.Errorf("%s: capacity %v, want %v", what, got, want)
	}
}

func (r *rack) card(id string) gpu.CardState {
	for _, c := range r.g.Reading().Cards() {
		if c.ID == id {
			return c
		}
	}
	r.t.Helper()
	r.t.Fatalf("no card %s", id)
	return gpu.CardState{}
}

func (r *rack) health(id string, want gpu.Health) gpu.CardState {
	r.t.Helper()
	c := r.card(id)
	if c.Health != want || (c.Reason == "") != (want == gpu.Healthy) {
		r.t.Errorf("%s is %v (%s), want %v", id, c.Health, c.Reason, want)
	}
	return c
}

// dcgm-exporter#348, #164: a card that vanishes is lost at once and counts
// again when it was back for some looks.
func TestLostCard(t *testing.T) {
	r := newRack(t, 4).look(3)
	all := r.cards
	r.cards = all[:3]
	r.look(1)
	r.capacity("4 -> 3", 0.75)
	if c := r.health("GPU-3", gpu.Lost); !c.Seen.Equal(r.now.Add(-every)) || !c.Since.Equal(r.now) {
		t.Errorf("state %+v", c)
	}
	if e := r.g.Reading().Endpoints(r.now)[3]; e.Healthy {
		t.Errorf("endpoint %+v", e)
	}
	r.cards = all
	r.look(2)
	r.capacity("back in two looks", 0.75)
	r.look(1)
	r.capacity("back in three looks", 1)
	r.health("GPU-3", gpu.Healthy)

	// One that stays away is not missed for ever: the pool has become smaller.
	r.cards = all[:3]
	r.look(119)
	r.capacity("away for long", 0.75)
	r.look(3)
	r.capacity("away for longer than FaultFor", 1)
	if n := len(r.g.Reading().Cards()); n != 3 {
		t.Errorf("%d cards are known, want 3", n)
	}
}

// A pod that went to another GPU leaves nobody missing.
func TestReplacedCard(t *testing.T) {
	r := newRack(t, 4).look(3)
	r.cards[1].ID = "GPU-new"
	r.look(1)
	r.capacity("replaced", 1)
	if all := r.g.Reading().Cards(); len(all) != 4 {
		t.Errorf("%d cards are known, want 4", len(all))
	}
}

// A source that is silent has lost no card; what it said of faults stops
// counting after FaultFor.
func TestSilentSourceLosesNothing(t *testing.T) {
	r := newRack(t, 2).look(3)
	r.cards[0].XID = gpu.Some(95)
	r.look(1)
	for range 20 {
		r.now = r.now.Add(every)
		r.g.Miss("card", r.now, nil)
	}
	r.capacity("silent", 0.5)
	r.g.Observe(gpu.Sample{Source: "card", At: r.now, Util: gpu.Some(0.5), GPUs: 2})
	r.capacity("a look without cards", 0.5)
	r.now = r.now.Add(11 * time.Minute)
	r.capacity("silent for long", 1)
	if all := r.g.Reading().Endpoints(r.now); len(all) != 0 {
		t.Errorf("endpoints %+v", all)
	}
}

// MIG: the instances are parts of their GPU, and its fault is theirs.
func TestInstances(t *testing.T) {
	r := newRack(t, 2)
	for _, i := range []string{"1", "2", "3", "4"} {
		r.cards = append(r.cards, gpu.Card{ID: "GPU-1", Instance: i, Util: gpu.Some(0.2), Endpoints: gpu.EndpointsOf("mig-" + i)})
	}
	r.look(3).capacity("all well", 1)
	all := slices.Clone(r.cards)
	r.cards = r.cards[:5]
	r.look(1).capacity("one of four instances is lost", 0.875)
	r.cards = all
	r.look(3).capacity("back", 1)
	r.cards[1].XID = gpu.Some(119)
	r.look(1).capacity("the GPU with the instances is faulty", 0.5)
	for _, e := range r.g.Reading().Endpoints(r.now) {
		if e.Healthy != (e.Name == "pod-GPU-0") {
			t.Errorf("endpoint %+v", e)
		}
	}

	sized := newRack(t, 2)
	for i, slices := range []int{4, 2, 1} {
		sized.cards = append(sized.cards, gpu.Card{ID: "GPU-1", Instance: fmt.Sprint(i), Slices: slices, Util: gpu.Some(0.2)})
	}
	sized.look(3).capacity("instances of 4, 2 and 1 slices", 1)
	all = slices.Clone(sized.cards)
	sized.cards = append(sized.cards[:2:2], sized.cards[3:]...)
	sized.look(1).capacity("that of 4 is lost", 1-4./14)
	sized.cards = all
	sized.look(3).capacity("it is back", 1)
	sized.cards = sized.cards[:4]
	sized.look(1).capacity("that of 1 is lost", 1-1./14)

	part := newRack(t, 1)
	part.cards = append(part.cards, gpu.Card{ID: "GPU-1", Instance: "1", Slices: 1, Util: gpu.Some(0.2)})
	part.look(3).capacity("a whole GPU and a seventh", 1)
	part.cards = part.cards[:1]
	part.look(1).capacity("without the seventh", 7./8)

	only := newRack(t, 1).look(3)
	only.cards = []gpu.Card{{ID: "GPU-0", Instance: "1", Util: gpu.Some(0.2)}, {ID: "GPU-0", Instance: "2", Util: gpu.Some(0.2)}}
	only.look(1).capacity("cut into instances, the whole is not told of any more", 1)
}

// A card that two sources tell of is one card: the first source's, until that
// is silent. Its history goes with it.
func TestTwoSourcesOneCard(t *testing.T) {
	agent := gpu.SourceInfo{Name: "agent", Every: every}
	g := newGauge(faulty(10*time.Minute), agent, card)
	at := t0
	look := func(source string, xid float64) {
		g.Observe(gpu.Sample{Source: source, At: at, GPUs: 1, Cards: []gpu.Card{{ID: "a", Util: gpu.Some(0.5), XID: gpu.Some(xid)}}})
	}
	check := func(what, source string, health gpu.Health, capacity float64) {
		t.Helper()
		cards := g.Reading().Cards()
		if len(cards) != 1 || cards[0].Source != source || cards[0].Health != health || g.Reading().Capacity(at) != capacity {
			t.Errorf("%s: %+v, capacity %v", what, cards, g.Reading().Capacity(at))
		}
	}
	look("card", 0)
	check("the second was first", "card", gpu.Healthy, 1)
	look("agent", 0)
	check("the first tells of it", "agent", gpu.Healthy, 1)
	at = at.Add(every)
	look("card", 0)
	look("agent", 48)
	check("faulty by the first", "agent", gpu.Faulty, 0)
	for range 4 {
		at = at.Add(every)
		look("card", 0)
	}
	check("the first is silent", "card", gpu.Faulty, 0)
}

// What is no card, or one too many, is left out and counted; figures that are
// none are absent.
func TestCardsAreBounded(t *testing.T) {
	g := newGauge(faulty(time.Minute), card)
	cards := make([]gpu.Card, 0, 5002)
	for i := range 5000 {
		cards = append(cards, gpu.Card{ID: fmt.Sprint(i), Util: gpu.Some(math.NaN()), Power: gpu.Some(-3), XID: gpu.Some(math.Inf(1))})
	}
	cards = append(cards, gpu.Card{}, cards[0])
	g.Observe(gpu.Sample{Source: "card", At: t0, GPUs: 5000, Cards: cards})
	known := g.Reading().Cards()
	if len(known) != 4096 || known[7].Util.OK || known[7].Power.OK || known[7].XID.OK {
		t.Errorf("%d cards, %+v", len(known), known[7])
	}
	if s := g.Reading().Sources[0]; s.Dropped != 3*5001+906 || s.Faults[gpu.FaultOther] != 906 {
		t.Errorf("%d dropped, %d of them left out", s.Dropped, s.Faults[gpu.FaultOther])
	}
	if !math.IsNaN(cards[0].Util.V) {
		t.Error("the source's own cards were changed")
	}
}

// Half of the GPUs contradicting themselves make their source doubtful, and
// each is named.
func TestDoubtedCards(t *testing.T) {
	r := newRack(t, 4)
	for i := range r.cards {
		r.cards[i].Util, r.cards[i].SM = gpu.Some(0.99), gpu.Some(0.8)
	}
	r.cards[0].SM = gpu.Some(0)
	r.look(1)
	if s := r.g.Reading().Sources[0]; s.Suspect != "" || r.card("GPU-0").Suspect == "" || r.card("GPU-1").Suspect != "" {
		t.Errorf("source %q, cards %q %q", s.Suspect, r.card("GPU-0").Suspect, r.card("GPU-1").Suspect)
	}
	r.cards[1].SM = gpu.Some(0)
	r.look(1)
	if s := r.g.Reading().Sources[0]; s.Suspect == "" {
		t.Error("source is not doubted")
	}
}

// T4: the load is the mean over the nodes that are fresh, and no pressure.
func TestLoad(t *testing.T) {
	node := func(name string) gpu.SourceInfo { return gpu.SourceInfo{Name: name, Every: every} }
	g := newGauge(raw(), node("n1"), node("n2"), engine)
	if v := g.Reading().Load(t0); v.OK {
		t.Errorf("load before any sample: %v", v)
	}
	g.Observe(gpu.Sample{Source: "n1", At: t0, Load: gpu.Some(0.9)})
	g.Observe(gpu.Sample{Source: "n2", At: t0.Add(every), Load: gpu.Some(0.5)})
	r := g.Reading()
	near(t, "load", r.Load(t0.Add(every)).V, 0.7)
	near(t, "pressure", r.Pressure(t0.Add(every)), 0.5)
	near(t, "load with one silent", r.Load(t0.Add(4*every)).V, 0.5)
	if v := r.Load(t0.Add(time.Hour)); v.OK {
		t.Errorf("load of silent nodes: %v", v)
	}
	g.Observe(gpu.Sample{Source: "n1", At: t0.Add(every), Load: gpu.Some(1.2)})
	if s := g.Reading().Sources[0]; s.Load.OK || s.Dropped != 1 || !s.Blank {
		t.Errorf("impossible load taken: %+v", s)
	}
	nodes := newGauge(raw(), node("n1"))
	nodes.Observe(gpu.Sample{Source: "n1", At: t0, Load: gpu.Some(0.9)})
	if age, stale := nodes.Reading().Age(t0.Add(time.Hour)); age != 0 || stale {
		t.Errorf("the pressure of a pool with nodes alone ages: %v, %v", age, stale)
	}
}

// FuzzCards: whatever cards come and go, capacity stays in 0..1, the book in
// its bound, and each card is known once.
func FuzzCards(f *testing.F) {
	f.Add(uint64(1), uint64(200))
	f.Fuzz(func(t *testing.T, seed, n uint64) {
		rng := rand.New(rand.NewPCG(seed, 0))
		g := newGauge(faulty(time.Minute), card, engine, gpu.SourceInfo{Name: "other", Every: time.Second})
		now := t0
		for range n % 300 {
			now = now.Add(time.Duration(rng.IntN(20)-1) * time.Second)
			s := gpu.Sample{Source: []string{"card", "engine", "other"}[rng.IntN(3)], At: now}
			for range rng.IntN(6) {
				s.Cards = append(s.Cards, gpu.Card{
					ID: []string{"", "a", "b", "c", "d"}[rng.IntN(5)], Instance: []string{"", "", "1", "2"}[rng.IntN(4)],
					Endpoints: gpu.EndpointsOf([]string{"", "x", "y"}[rng.IntN(3)], []string{"", "y"}[rng.IntN(2)]), XID: gpu.Value{V: float64(rng.IntN(130)), OK: rng.IntN(2) == 0},
					Util: gpu.Value{V: rng.Float64(), OK: rng.IntN(3) > 0}, Clocks: gpu.Some(float64(rng.IntN(512))),
				})
			}
			g.Observe(s)
			r := g.Reading()
			seen := map[[2]string]bool{}
			for _, c := range r.Cards() {
				key := [2]string{c.ID, c.Instance}
				if c.ID == "" || seen[key] || c.Health > gpu.Lost || (c.Reason == "") != (c.Health == gpu.Healthy) || c.Since.IsZero() {
					t.Fatalf("card %+v", c)
				}
				seen[key] = true
			}
			if v := r.Capacity(now); !(v >= 0 && v <= 1) {
				t.Fatalf("capacity %v", v)
			}
			for i, e := range r.Endpoints(now) {
				if e.Name == "" || e.Healthy != (e.Reason == "") || i > 2 {
					t.Fatalf("endpoint %+v", e)
				}
			}
		}
	})
}
