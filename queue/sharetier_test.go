package queue

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

// named are groups in the order of their names; silver is the home.
func named(names ...string) (s Shares) {
	shares := map[string]policy.Ratio{"gold": 0.2, "silver": 0.6, "bronze": 0.1, "trial": 0.1}
	for _, name := range names {
		s.Groups = append(s.Groups, Group{Name: name, Share: shares[name], Home: name == "silver"})
	}
	return s
}

func tierOf(w *Waiter) string { return w.Tier }

// P9: a reload that only changes the order of the tiers changes nothing: a line
// that is reordered in a burst says the same, call by call, as one that is not,
// of seats, hints and bookings.
func TestReorderedTiersChangeNothing(t *testing.T) {
	orders := [][]string{{"gold", "silver", "bronze"}, {"bronze", "gold", "silver"}, {"silver", "bronze", "gold"}}
	for seed := range uint64(40) {
		r := dice(seed)
		cfg := standardConfig(6, []int64{0, 60}[seed%2])
		cfg.Booking = Booking{Share: 0.5, Grace: 1000 * ms, Max: 10_000 * ms}
		shape := func(order []string) Config {
			c := cfg
			c.Shares = named(order...)
			c.Shares.Streaming, c.Shares.Priority = []policy.Ratio{1, 0.7}[seed/2%2], []policy.Ratio{0, 0.1}[seed/4%2]
			return c
		}
		still, moved := New(shape(orders[0]), nil), New(shape(orders[0]), nil)
		seated := [2][]*Waiter{}
		for step := range 600 {
			now, told, hints := at(time.Duration(step)*5*ms), [2][]string{}, [2][]time.Duration{}
			order := r.IntN(40)
			w := Waiter{
				Class: policy.Class(r.IntN(3)), Tenant: fmt.Sprint(r.IntN(4)), Tier: []string{"gold", "silver", "bronze", "", "none"}[r.IntN(5)],
				Cost: 1 + r.Int64N(20), Tokens: 1 + r.Int64N(20), Stream: r.IntN(2) == 0, Priority: r.IntN(5) == 0, MaxWait: 300 * ms, OnExpiry: policy.Expiry(r.IntN(3)), Owner: step,
			}
			pick, offers := r.IntN(1<<20), r.IntN(3) > 0
			for i, l := range []*Line{still, moved} {
				tell := func(exits []Exit) {
					for _, e := range exits {
						told[i] = append(told[i], fmt.Sprint(e.Waiter.Owner, e.Granted, e.Retried, e.Waited))
						hints[i] = append(hints[i], e.Hint)
						if e.Granted {
							seated[i] = append(seated[i], e.Waiter)
						}
					}
				}
				tell(l.Advance(now))
				if i == 1 && order < len(orders) {
					tell(l.Configure(now, shape(orders[order])))
				}
				switch n := len(seated[i]); {
				case offers:
					w := w
					o := l.Offer(now, &w, Bounds{Length: 12, Soft: 10, PerTenant: 0.5, RetryLimit: 200 * ms, RetryLen: 3})
					if o.Granted {
						seated[i] = append(seated[i], &w)
					}
					hints[i] = append(hints[i], o.Hint)
					o.Hint = 0
					told[i] = append(told[i], fmt.Sprint(o))
				case n > 0:
					w := seated[i][pick%n]
					seated[i] = slices.Delete(seated[i], pick%n, pick%n+1)
					tell(l.Release(now, w))
				}
			}
			for i, h := range hints[0] { // sums of another order differ in the last digit
				if d := h - hints[1][i]; d.Abs() > time.Microsecond {
					t.Fatalf("seed %d, step %d: hint %v reordered, %v else", seed, step, hints[1][i], h)
				}
			}
			if !slices.Equal(told[0], told[1]) {
				t.Fatalf("seed %d, step %d: reordered %v, else %v", seed, step, told[1], told[0])
			}
		}
		if moved.used != still.used {
			t.Fatalf("seed %d: %+v seats, want %+v", seed, moved.used, still.used)
		}
	}
}

// P9: a tier that goes leaves its waiters and seats to the home, whatever the
// place of that; a tier that comes has those who were told apart by its name.
func TestTiersComeAndGo(t *testing.T) {
	shape := func(names ...string) Config {
		c := standardConfig(20, 0)
		c.Shares = named(names...)
		return c
	}
	bring := func(l *Line, tier string, n int) []*Waiter {
		return bring(t, l, n, func() *Waiter { w := of(0); w.Tier = tier; return w })
	}
	l := New(shape("silver", "bronze", "gold"), nil)
	running := bring(l, "bronze", 20)
	bring(l, "bronze", 40)
	bring(l, "trial", 40)
	bring(l, "gold", 40)
	l.Configure(at(0), shape("gold", "silver", "trial"))
	if _, groups := l.Parts(); groups[1].Used.Requests != 20 || groups[1].Waiting != 40 || groups[2].Waiting != 40 || groups[0].Waiting != 40 {
		t.Fatalf("gold, silver, trial: %+v", groups)
	}
	got, _ := next(t, l, running, tierOf)
	count := map[string]int{}
	for _, tier := range got {
		count[tier]++
	}
	// 2 : 6 : 1 of 20 for gold, silver (bronze's) and trial.
	for tier, want := range map[string]int{"gold": 4, "bronze": 14, "trial": 2} {
		if n := count[tier]; n < want-1 || n > want+1 {
			t.Errorf("%s has %d of 20 seats, want %d", tier, n, want)
		}
	}
	l.Configure(at(0), standardConfig(20, 0)) // without groups, and back
	l.Configure(at(0), shape("silver", "bronze", "gold"))
	if _, groups := l.Parts(); groups[1].Waiting != 40-count["bronze"] || groups[2].Waiting != 40-count["gold"] || groups[0].Waiting != 40-count["trial"] || groups[0].Used.Requests != 20 {
		t.Fatalf("silver, bronze, gold: %+v", groups)
	}
}
