package storetest

import (
	"context"
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
)

// model is quota.Store by the letter: every cell of every counter kept for
// ever, rational arithmetic, waits found by search. It shares no code with
// the stores but the contract's types.
type model struct {
	counters map[counterID]*cells
	held     map[string]*holding // by slot and id
}

type counterID struct {
	tenant, key string
	unit        policy.Unit
	per         time.Duration
}

type cells struct {
	claim quota.Claim
	limit policy.Limit
	n     map[int64]int64
	live  map[string]int64 // id → deadline in ms
}

type holding struct {
	settled  bool
	deadline int64
	verdict  quota.Verdict
	cell     map[counterID]int64
	amount   map[counterID]int64
}

func newModel() *model {
	return &model{counters: map[counterID]*cells{}, held: map[string]*holding{}}
}

func idOf(c quota.Claim, l policy.Limit) counterID {
	return counterID{c.Tenant, c.Key, l.Unit, l.Per}
}

// head is the newest cell, that of now included, and how much of it is over.
// broken means that the counter was written more than a period ahead.
func (c *cells) head(ms int64) (cell int64, elapsed *big.Rat, broken bool) {
	period := c.limit.Per.Milliseconds()
	cell = ms * 30 / period
	elapsed = big.NewRat(ms*30-cell*period, period)
	for k := range c.n {
		if k > cell {
			cell, elapsed = k, new(big.Rat)
		}
	}
	return cell, elapsed, cell > ms*30/period+30
}

func (c *cells) used(ms int64) int64 {
	if c.limit.Unit == policy.Concurrency {
		var n int64
		for _, deadline := range c.live {
			if deadline > ms {
				n++
			}
		}
		return n
	}
	head, elapsed, broken := c.head(ms)
	if broken {
		return 0
	}
	sum := new(big.Rat)
	for k, n := range c.n {
		part := big.NewRat(1, 1)
		if k == head-30 {
			part.Sub(part, elapsed)
		} else if k < head-30 {
			continue
		}
		sum.Add(sum, part.Mul(part, new(big.Rat).SetInt64(n)))
	}
	up := new(big.Int).Add(sum.Num(), new(big.Int).Sub(sum.Denom(), big.NewInt(1)))
	return min(up.Div(up, sum.Denom()).Int64(), quota.MaxCount)
}

func (c *cells) add(ms, n int64) int64 {
	cell, _, broken := c.head(ms)
	if broken {
		clear(c.n)
		cell, _, _ = c.head(ms)
	}
	c.n[cell] = min(c.n[cell]+n, quota.MaxCount)
	return cell
}

// fits searches for the first tick with room; usage only falls with time.
func (c *cells) fits(ms, room int64) int64 {
	low, high := ms, ms+4*c.limit.Per.Milliseconds()
	for low < high {
		mid := (low + high) / 2
		if c.used(mid) <= room {
			high = mid
		} else {
			low = mid + 1
		}
	}
	return low
}

func (m *model) counter(c quota.Claim, l policy.Limit) *cells {
	id := idOf(c, l)
	if m.counters[id] == nil {
		m.counters[id] = &cells{claim: c, n: map[int64]int64{}, live: map[string]int64{}}
	}
	m.counters[id].limit = l
	return m.counters[id]
}

func (m *model) reserve(now time.Time, id string, claims []quota.Claim) quota.Verdict {
	ms := now.UnixMilli()
	for _, c := range claims {
		if h := m.held[c.Tenant+"\x00"+id]; h != nil && h.deadline > ms {
			return h.verdict
		}
	}
	v, refused, share := quota.Verdict{Allowed: true}, false, big.NewRat(-1, 1)
	for _, c := range claims {
		for _, l := range c.Limits {
			cn, amount := m.counter(c, l), c.Amount.Of(l.Unit)
			used := cn.used(ms)
			if amount == 0 {
				continue
			}
			if used+amount <= l.Max {
				if s := big.NewRat(used+amount, l.Max); !refused && s.Cmp(share) > 0 {
					share, v = s, quota.Verdict{Allowed: true, Rule: c.Rule, Limit: l, Used: used}
				}
				continue
			}
			r := quota.Verdict{Rule: c.Rule, Limit: l, Used: used, Never: amount > l.Max}
			if !r.Never && l.Unit != policy.Concurrency {
				r.RetryAfter = time.UnixMilli(cn.fits(ms, l.Max-amount)).Sub(now)
			}
			if !refused || (!v.Never && (r.Never || r.RetryAfter > v.RetryAfter)) {
				v, refused = r, true
			}
		}
	}
	if v.Allowed {
		m.take(ms, id, claims, v)
	}
	return v
}

func (m *model) take(ms int64, id string, claims []quota.Claim, v quota.Verdict) {
	for _, c := range claims {
		h := m.held[c.Tenant+"\x00"+id]
		if h == nil || h.deadline <= ms {
			h = &holding{deadline: ms + quota.DefaultHold.Milliseconds(), verdict: v, cell: map[counterID]int64{}, amount: map[counterID]int64{}}
			m.held[c.Tenant+"\x00"+id] = h
		}
		for _, l := range c.Limits {
			cn, amount := m.counter(c, l), c.Amount.Of(l.Unit)
			h.amount[idOf(c, l)] = amount
			if l.Unit == policy.Concurrency && amount > 0 {
				cn.live[id] = h.deadline
			} else if l.Unit != policy.Concurrency && amount > 0 {
				h.cell[idOf(c, l)] = cn.add(ms, amount)
			}
		}
	}
}

func (m *model) settle(now time.Time, id string, claims []quota.Claim, final quota.Amount) {
	ms := now.UnixMilli()
	for _, c := range claims {
		h := m.held[c.Tenant+"\x00"+id]
		if h == nil || h.settled || h.deadline <= ms {
			continue
		}
		h.settled, h.deadline = true, ms+quota.KeepSettled.Milliseconds()
		for cid, amount := range h.amount {
			cn := m.counters[cid]
			delete(cn.live, id)
			if cid.unit == policy.Concurrency {
				continue
			}
			if more := final.Of(cid.unit) - amount; more > 0 {
				cn.add(ms, more)
			} else if n, ok := cn.n[h.cell[cid]]; ok {
				cn.n[h.cell[cid]] = max(n+more, 0)
			}
		}
	}
}

func (m *model) usage(now time.Time, tenant string) []quota.Counter {
	var out []quota.Counter
	for id, c := range m.counters {
		if used := c.used(now.UnixMilli()); id.tenant == tenant && used > 0 {
			out = append(out, quota.Counter{Rule: c.claim.Rule, Key: c.claim.Key, Limit: c.limit, Used: used})
		}
	}
	slices.SortFunc(out, quota.Counter.Compare)
	return out
}

// againstModel drives a store and the model with the same random calls.
func againstModel(t *testing.T, open func(t *testing.T) quota.Store) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			w := &walk{rng: rand.New(rand.NewPCG(seed, 7)), store: open(t), model: newModel(), now: t0}
			for step := range 400 {
				w.step(t, step)
			}
		})
	}
}

type walk struct {
	rng   *rand.Rand
	store quota.Store
	model *model
	now   time.Time
	calls []quotaCall
}

type quotaCall struct {
	id     string
	claims []quota.Claim
}

func (w *walk) step(t *testing.T, step int) {
	ctx := context.Background()
	w.tick()
	switch old := w.rng.IntN(10); {
	case old < 5 || len(w.calls) == 0: // a new call
		c := quotaCall{fmt.Sprint("id", step), w.claims()}
		w.calls = append(w.calls, c)
		w.compare(t, step, c)
	case old < 6: // an old one again
		w.compare(t, step, w.calls[w.rng.IntN(len(w.calls))])
	case old < 9: // its end, perhaps once more
		c := w.calls[max(len(w.calls)-1-w.rng.IntN(12), 0)]
		final := quota.Amount{Requests: w.rng.Int64N(3), Input: w.rng.Int64N(400), Output: w.rng.Int64N(400)}
		if err := w.store.Settle(ctx, w.now, c.id, c.claims, final); err != nil {
			t.Fatalf("step %d: Settle: %v", step, err)
		}
		w.model.settle(w.now, c.id, c.claims, final)
	default:
		tenant := w.tenant()
		got, err := w.store.Usage(ctx, w.now, tenant)
		if want := w.model.usage(w.now, tenant); err != nil || !slices.Equal(got, want) {
			t.Fatalf("step %d: Usage(%q) at %v\n got %+v, %v\nwant %+v", step, tenant, w.now.Sub(t0), got, err, want)
		}
	}
}

// tick moves the clock: mostly by a little, at times not at all, far, or back.
func (w *walk) tick() {
	switch w.rng.IntN(12) {
	case 0:
		w.now = w.now.Add(time.Duration(w.rng.IntN(40)) * time.Second)
	case 1:
		w.now = w.now.Add(-time.Duration(w.rng.IntN(3000)) * time.Millisecond)
	case 2, 3, 4:
	default:
		w.now = w.now.Add(time.Duration(w.rng.IntN(700_000)) * time.Microsecond)
	}
}

func (w *walk) tenant() string {
	return []string{"acme", "globex", "日本", quota.Shared}[w.rng.IntN(4)]
}

func (w *walk) claims() []quota.Claim {
	tenant := w.tenant()
	a := quota.Amount{Requests: 1, Input: w.rng.Int64N(200), Output: w.rng.Int64N(300), Concurrency: w.rng.Int64N(2)}
	out := []quota.Claim{
		in(tenant, "a", claim(a, tokens(1500, 7*time.Second), requests(20, 13*time.Second), atOnce(6))),
		in(tenant, "b", claim(a, policy.Limit{Unit: policy.OutputTokens, Max: 2900, Per: 61 * time.Second})),
	}
	if w.rng.IntN(3) == 0 {
		out = append(out, in(quota.Shared, "all", claim(a, tokens(3001, 17*time.Second))))
	}
	return out[w.rng.IntN(2):]
}

func (w *walk) compare(t *testing.T, step int, c quotaCall) {
	t.Helper()
	got, err := w.store.Reserve(context.Background(), w.now, c.id, c.claims)
	want := w.model.reserve(w.now, c.id, c.claims)
	if err != nil || got != want {
		t.Fatalf("step %d: Reserve(%s) at %v\n got %+v, %v\nwant %+v", step, c.id, w.now.Sub(t0), got, err, want)
	}
}
