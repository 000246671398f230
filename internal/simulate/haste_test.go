package simulate

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

// hasteSeeds is how many worlds each case of haste is played in.
func hasteSeeds() uint64 {
	if os.Getenv("WEIR_LONG") != "" {
		return 20
	}
	return 4
}

// haste is a duel of a tenant whose callers obey with one whose callers do not,
// in a pool of 200 a second: the arrivals of each of the two, and for how long
// its callers come back before they give up.
type haste struct {
	arrival  Arrival
	patience time.Duration
}

// play tells how many answers either tenant had at each of these instants.
func (c *haste) play(t *testing.T, rogue Client, seed uint64, instants ...time.Duration) (honest, other []float64) {
	t.Helper()
	obeys := Client{Share: 1, Kind: Obedient, Marks: true, Early: 1, Tries: 10000, Patience: c.patience}
	rogue.Share, rogue.Marks, rogue.Tries, rogue.Patience = 1, true, obeys.Tries, c.patience
	s := duel(20, 20, func(a *Arrival) { a.Clients = []Client{rogue} })
	s.Clients[0], s.Duration, s.Seed = obeys, 70*time.Second, seed
	for i := range 2 {
		s.Arrivals[i].Even, s.Arrivals[i].To = true, s.Duration
		more := s.Arrivals[i]
		more.Kind, more.Rate, more.From, more.Length = c.arrival.Kind, c.arrival.Rate, c.arrival.From, c.arrival.Length
		s.Arrivals = append(s.Arrivals, more)
	}
	answers := func(r map[string]*TenantResult, tenant string) float64 { return float64(r[tenant].Served) }
	run(t, s, one(20), func(w *world) {
		for len(instants) > len(honest) && w.now >= instants[len(honest)] {
			honest, other = append(honest, answers(w.tally.tenants, "honest")), append(other, answers(w.tally.tenants, "rogue"))
		}
	})
	if len(honest) < len(instants) {
		t.Fatalf("the run ended before %v", instants[len(honest)])
	}
	return honest, other
}

// run plays a scenario as Run does, and looks at the world after each event.
func run(t *testing.T, s *Scenario, p *policy.Policy, look func(*world)) {
	t.Helper()
	w, err := newWorld(s, Candidate{Name: "test", Policy: p})
	if err != nil {
		t.Fatal(err)
	}
	for i := range s.Arrivals {
		a, err := newStream(s, i, false)
		if err != nil {
			t.Fatal(err)
		}
		w.streams = append(w.streams, a)
		w.sending++
		if err := w.comes(i); err != nil {
			t.Fatal(err)
		}
	}
	w.plan()
	for e, more := w.agenda.pop(); more; e, more = w.agenda.pop() {
		w.now = e.at
		if err := w.happen(&e); err != nil {
			t.Fatal(err)
		}
		look(w)
	}
	w.checkEmpty()
}

// rogues do not obey; all of them say that they come back.
var rogues = map[string]Client{
	"at 0.3 of the hint": {Kind: Obedient, Early: 0.3},
	"at 0.9 of the hint": {Kind: Obedient, Early: 0.9},
	"every 250 ms":       {Kind: Stubborn, Every: 250 * time.Millisecond},
}

// Who comes back before its hint, or every 250 ms saying so, gets no more
// answers than who obeys (Q5), in any while from the start of a burst on or
// from its end.
func TestHasteGainsNothing(t *testing.T) {
	t.Parallel()
	const begins, lasts = 2 * time.Second, 10 * time.Second
	windows := [][2]time.Duration{}
	instants := []time.Duration{begins, begins + lasts}
	for _, from := range []time.Duration{begins, begins + lasts} {
		for _, d := range []time.Duration{5, 15, 30, 58} {
			windows = append(windows, [2]time.Duration{from, from + d*time.Second})
			instants = append(instants, from+d*time.Second)
		}
	}
	slices.Sort(instants)
	instants = slices.Compact(instants)
	for _, load := range []float64{2, 4} {
		for name, rogue := range rogues {
			if rogue.Kind == Stubborn && load == 4 && hasteSeeds() < 20 {
				continue // long
			}
			t.Run(fmt.Sprintf("%g times the capacity, %s", load, name), func(t *testing.T) {
				t.Parallel()
				c := haste{Arrival{Kind: Pulse, Rate: load * 100, From: begins, Length: lasts}, 2 * time.Minute}
				means, seeds := make([]float64, len(windows)), hasteSeeds()
				for seed := range seeds {
					honest, other := c.play(t, rogue, seed+1, instants...)
					for i, v := range windows {
						from, to := slices.Index(instants, v[0]), slices.Index(instants, v[1])
						gain := (other[to]-other[from])/(honest[to]-honest[from]) - 1
						means[i] += gain / float64(seeds)
						if gain > 0.1 { // of 500 answers in the least
							t.Errorf("seed %d: %.3f more from %v to %v", seed+1, gain, v[0], v[1])
						}
					}
				}
				t.Logf("more: %.3f", means)
				for i, mean := range means {
					if mean > 0.02 {
						t.Errorf("%.3f more from %v to %v on average", mean, windows[i][0], windows[i][1])
					}
				}
			})
		}
	}
}

// Where callers give up after five seconds in an overload that lasts, those who
// keep asking have what others of their tenant gave up, and take nothing from
// who obeys.
func TestHasteTakesNothing(t *testing.T) {
	t.Parallel()
	for name, rogue := range rogues {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := haste{Arrival{Kind: Steady, Rate: 130}, 5 * time.Second}
			var gain, loss float64
			seeds := hasteSeeds() / 4
			for seed := range seeds {
				a, b := c.play(t, Client{Kind: Obedient, Early: 1}, seed+1, time.Minute)
				h, g := c.play(t, rogue, seed+1, time.Minute)
				alike := (a[0] + b[0]) / 2
				gain += (g[0]/h[0] - 1) / float64(seeds)
				loss += (1 - h[0]/alike) / float64(seeds)
			}
			t.Logf("the rogue got %.3f more than the honest one, and this %.3f less than among its like", gain, loss)
			if gain > 0.05 || loss > 0.03 {
				t.Errorf("the rogue got %.3f more than the honest one, and this %.3f less than among its like", gain, loss)
			}
		})
	}
}
