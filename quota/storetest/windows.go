package storetest

import (
	"context"
	"fmt"
	"time"

	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
)

// T1: five minutes in cells of 10 s; the oldest by its unexpired part.
func slides(h *house) {
	limit := tokens(1000, 5*time.Minute)
	h.admit(0, "a", claim(call(400), limit))
	h.admit(25*time.Second, "b", claim(call(600), limit))
	for _, c := range []struct {
		at   time.Duration
		want int64
	}{
		{25 * time.Second, 1000},
		{299 * time.Second, 1000},
		{300 * time.Second, 1000}, // the cell of a is the oldest, whole
		{302500 * time.Millisecond, 900},
		{305 * time.Second, 800},
		{309999 * time.Millisecond, 601}, // 400 * 0.0001, rounded up
		{310 * time.Second, 600},
		{320 * time.Second, 600},
		{323 * time.Second, 420},
		{330 * time.Second, 0},
	} {
		h.wantUsed(c.at, "acme", "rule", limit, c.want)
	}
}

// K: 60 just before and 60 just after the edge of a minute.
func edge(h *house) {
	limit := requests(60, time.Minute)
	one := claim(quota.Amount{Requests: 1}, limit)
	admitted := 0
	for i := range 60 {
		if h.reserve(59*time.Second, fmt.Sprint("before", i), one).Allowed {
			admitted++
		}
	}
	for i := range 60 {
		if h.reserve(61*time.Second, fmt.Sprint("after", i), one).Allowed {
			admitted++
		}
	}
	if admitted != 60 {
		h.Errorf("%d admitted around the edge, want 60", admitted)
	}
	// The cell 58..60 s leaves the window between 118 and 120 s.
	h.refuse(118*time.Second, "still", one)
	h.admit(119*time.Second, "half", claim(quota.Amount{Requests: 30}, limit))
}

// K: a window of a day has no edge to be reset at: 1,000 calls around midnight
// of any zone see one budget, which comes back as they get a day old.
func edgeOfDay(h *house) {
	limit := requests(500, 24*time.Hour)
	one := claim(quota.Amount{Requests: 1}, limit)
	admitted := 0
	for i := range 1000 { // midnight UTC is 16 h after t0, midnight in Shanghai 8 h
		at := 16*time.Hour + time.Duration(i-500)*time.Second
		if h.reserve(at, fmt.Sprint(i), one).Allowed {
			admitted++
		}
	}
	if admitted != 500 {
		h.Errorf("%d admitted around midnight, want 500", admitted)
	}
	h.wantUsed(17*time.Hour, "acme", "rule", limit, 500)
	h.refuse(39*time.Hour, "a day later, but for an hour", one)
	h.admit(41*time.Hour, "more than a day later", one)
}

// K: an instant is the same in every zone, also over a change of the clocks.
func zones(h *house) {
	limit := tokens(100, 24*time.Hour)
	c := claim(call(60), limit)
	ctx := context.Background()
	summer, winter := time.FixedZone("summer", -4*3600), time.FixedZone("winter", -5*3600)
	at := t0.Add(time.Hour)
	if v, err := h.store.Reserve(ctx, at.In(summer), "a", []quota.Claim{c}); err != nil || !v.Allowed {
		h.Fatalf("%+v, %v", v, err)
	}
	there, err := h.store.Reserve(ctx, at.In(winter), "b", []quota.Claim{c})
	if err != nil {
		h.Fatal(err)
	}
	here, err := h.store.Reserve(ctx, at.In(time.FixedZone("Shanghai", 8*3600)), "c", []quota.Claim{c})
	if err != nil || there.Allowed || here != there {
		h.Errorf("%+v here and %+v there, %v; want the same refusal", here, there, err)
	}
	h.wantUsed(time.Hour, "acme", "rule", limit, 60)
}

func severalWindows(h *house) {
	second, minute := requests(10, 3*time.Second), requests(20, time.Minute)
	one := claim(quota.Amount{Requests: 1}, second, minute)
	id := 0
	fill := func(at time.Duration) (n int, last quota.Verdict) {
		for {
			id++
			if last = h.reserve(at, fmt.Sprint(id), one); !last.Allowed {
				return n, last
			}
			n++
		}
	}
	if n, v := fill(0); n != 10 || v.Limit != second || v.RetryAfter != 3010*time.Millisecond {
		h.Errorf("%d admitted, then %+v; want 10, then the short window for 3.01 s", n, v)
	}
	if n, v := fill(10 * time.Second); n != 10 || v.Limit != minute || v.RetryAfter != 50200*time.Millisecond {
		h.Errorf("%d admitted, then %+v; want 10, then the long window for 50.2 s", n, v)
	}
}

// T7.
func units(h *house) {
	limits := []policy.Limit{
		{Unit: policy.Requests, Max: 1000, Per: time.Minute},
		{Unit: policy.Tokens, Max: 1000, Per: time.Minute},
		{Unit: policy.InputTokens, Max: 1000, Per: time.Minute},
		{Unit: policy.OutputTokens, Max: 1000, Per: time.Minute},
		{Unit: policy.Concurrency, Max: 1000},
	}
	c := claim(quota.Amount{Requests: 1, Input: 30, Output: 12, Concurrency: 1}, limits...)
	h.admit(0, "a", c)
	h.admit(0, "b", c)
	for i, want := range []int64{2, 84, 60, 24, 2} {
		h.wantUsed(0, "acme", "rule", limits[i], want)
	}
	h.settle(0, "a", quota.Amount{Requests: 1, Input: 31, Output: 2}, c)
	for i, want := range []int64{2, 75, 61, 14, 1} {
		h.wantUsed(0, "acme", "rule", limits[i], want)
	}
}

func noClaims(h *house) {
	if v := h.admit(0, "a"); v != (quota.Verdict{Allowed: true}) {
		h.Errorf("no claims: %+v, want plainly allowed", v)
	}
	h.admit(0, "b", claim(call(5)))
	h.settle(0, "a", quota.Amount{})
	h.settle(0, "b", quota.Amount{}, claim(call(5)))
}

// A unit of which nothing is asked refuses nothing, not even in debt.
func nothingAsked(h *house) {
	limit := tokens(100, time.Minute)
	h.admit(0, "a", claim(call(100), limit))
	h.refuse(0, "b", claim(call(1), limit))
	h.admit(0, "c", claim(quota.Amount{Requests: 1}, limit))
	h.admit(0, "d", claim(quota.Amount{Input: -5, Output: -7, Requests: -1}, limit))
	h.wantUsed(0, "acme", "rule", limit, 100)
}

func never(h *house) {
	small, big := tokens(100, time.Minute), tokens(1000, time.Hour)
	h.admit(0, "a", claim(call(100), small, big))
	v := h.refuse(0, "b", claim(call(101), small, big))
	if !v.Never || v.Limit != small || v.RetryAfter != 0 {
		h.Errorf("more than the limit: %+v, want never", v)
	}
	if v := h.refuse(0, "c", claim(call(1), tokens(0, time.Minute))); !v.Never {
		h.Errorf("a limit of nothing: %+v, want never", v)
	}
	if v := h.refuse(0, "d", claim(quota.Amount{Concurrency: 1}, atOnce(0))); !v.Never {
		h.Errorf("no concurrency: %+v, want never", v)
	}
	h.wantUsed(0, "acme", "rule", big, 100)
}

func tightest(h *house) {
	minute, hour := tokens(100, time.Minute), tokens(1000, time.Hour)
	v := h.admit(0, "a", claim(call(50), hour, minute))
	if v.Rule != "rule" || v.Limit != minute || v.Used != 0 {
		h.Errorf("first: %+v, want the minute with 0 used", v)
	}
	v = h.admit(0, "b", claim(call(10), hour, minute))
	if v.Limit != minute || v.Used != 50 {
		h.Errorf("second: %+v, want the minute with 50 used", v)
	}
	v = h.admit(2*time.Minute, "c", claim(call(20), hour, minute))
	if v.Limit != minute || v.Used != 0 {
		h.Errorf("later: %+v, want the minute with 0 used", v)
	}
	v = h.refuse(2*time.Minute, "d", claim(call(90), hour, minute))
	if v.Limit != minute || v.Used != 20 || v.Rule != "rule" {
		h.Errorf("refused: %+v, want the minute with 20 used", v)
	}
}

// Two limits of the same unit and period bound one counter; it counts once.
func sameCounter(h *house) {
	wide, narrow := tokens(1000, time.Minute), tokens(100, time.Minute)
	c := claim(call(60), wide, narrow)
	h.admit(0, "a", c)
	h.wantUsed(0, "acme", "rule", narrow, 60)
	h.refuse(0, "b", c)
	h.settle(0, "a", call(10), c)
	h.wantUsed(0, "acme", "rule", narrow, 10)
}

func allOrNone(h *house) {
	loose, tight := in("acme", "loose", claim(call(100), tokens(1000, time.Minute))),
		in("acme", "tight", claim(call(100), tokens(150, time.Minute)))
	h.admit(0, "a", loose, tight)
	if v := h.refuse(0, "b", loose, tight); v.Rule != "tight" || v.Used != 100 {
		h.Errorf("refused by %+v, want by tight with 100 used", v)
	}
	h.wantUsed(0, "acme", "loose", loose.Limits[0], 100)
	h.wantUsed(0, "acme", "tight", tight.Limits[0], 100)
}

// What lies in another slot is given back when a later one refuses, and the
// order of the claims does not matter.
func allOrNoneOverSlots(h *house) {
	shared := in(quota.Shared, "shared", claim(call(100), tokens(1000, time.Minute), atOnce(100)))
	own := in("acme", "own", claim(call(100), tokens(150, time.Minute), atOnce(100)))
	h.admit(0, "a", own, shared)
	if v := h.refuse(0, "b", own, shared); v.Rule != "own" {
		h.Errorf("refused by %+v, want by own", v)
	}
	h.refuse(0, "b", shared, own)
	check := func(at time.Duration, n, live int64) {
		h.Helper()
		h.wantUsed(at, quota.Shared, "shared", shared.Limits[0], n)
		h.wantUsed(at, quota.Shared, "shared", shared.Limits[1], live)
		h.wantUsed(at, "acme", "own", own.Limits[0], n)
		h.wantUsed(at, "acme", "own", own.Limits[1], live)
	}
	check(0, 100, 1)
	h.settle(time.Second, "a", call(40), own, shared)
	check(time.Second, 40, 0)
	h.admit(time.Second, "b", own, shared)
	check(time.Second, 140, 1)
	globex := in("globex", "own", own)
	h.admit(time.Second, "c", globex, shared)
	h.wantUsed(time.Second, quota.Shared, "shared", shared.Limits[0], 240)
}

func slotsApart(h *house) {
	limit := tokens(100, time.Minute)
	for _, tenant := range []string{"acme", "globex", "ACME", "acme ", "a"} {
		h.admit(0, "same-id", in(tenant, "rule", claim(call(100), limit)))
		h.refuse(0, "other", in(tenant, "rule", claim(call(1), limit)))
	}
}

// Names are chosen by callers: none of them may reach another's counter or
// break a key.
func hostileNames(h *house) {
	limit := tokens(100, time.Minute)
	rules := []policy.QuotaRule{
		{Name: "per-tenant", By: []string{"tenant"}, Limits: []policy.Limit{limit}},
		{Name: "per-user", By: []string{"tenant", "user"}, Limits: []policy.Limit{limit}},
	}
	long := string(make([]byte, 1<<20))
	names := []string{
		"*", "a*", "{a}", "}{", "a\nb", "a\r\n$5\r\nb", "a b", "a:b", "a/b", "~a", "!", "\x00", "\xff\xfe",
		"日本", "a|b", "?[a-z]", long, long + "x", "h:" + long[:4096],
	}
	for i, name := range names {
		claims := quota.Claims(rules, policy.Subject{Tenant: name, User: name}, call(100))
		if len(claims) != 2 {
			h.Fatalf("%d claims, want 2", len(claims))
		}
		h.admit(0, fmt.Sprint("id", i), claims...)
	}
	for i, name := range names {
		claims := quota.Claims(rules, policy.Subject{Tenant: name, User: "x" + name}, call(1))
		if v := h.refuse(0, fmt.Sprint("again", i), claims...); v.Used != 100 || v.Rule != "per-tenant" {
			h.Fatalf("name %d: %+v, want its own 100 used", i, v)
		}
		counters, err := h.store.Usage(context.Background(), t0, name)
		if err != nil || len(counters) != 2 {
			h.Fatalf("name %d: %d counters, %v; want 2", i, len(counters), err)
		}
		h.settle(0, fmt.Sprint("id", i), quota.Amount{}, quota.Claims(rules, policy.Subject{Tenant: name, User: name}, call(100))...)
	}
}

func largeCounts(h *house) {
	// I: 5.5 billion tokens of a budget of 10 billion.
	limit := tokens(10_000_000_000, time.Hour)
	c := claim(call(10), limit)
	h.admit(0, "a", c)
	h.settle(0, "a", quota.Amount{Requests: 1, Input: 3_000_000_000, Output: 2_500_000_000}, c)
	h.wantUsed(0, "acme", "rule", limit, 5_500_000_000)
	v := h.refuse(0, "b", claim(call(4_500_000_001), limit))
	if v.Used != 5_500_000_000 || v.Never {
		h.Errorf("over the rest: %+v, want 5.5e9 used", v)
	}
	h.admit(0, "c", claim(call(4_500_000_000), limit))
}

// I: near the top of the counter's type the gate stays closed.
func saturated(h *house) {
	limit := tokens(1<<62, time.Hour)
	c := claim(call(1), limit)
	for i := range 3 {
		id := fmt.Sprint(i)
		h.reserve(time.Duration(i)*time.Minute, id, c)
		h.settle(time.Duration(i)*time.Minute, id, quota.Amount{Input: 1 << 62, Output: 1 << 62}, c)
	}
	h.wantUsed(2*time.Minute, "acme", "rule", limit, quota.MaxCount)
	h.refuse(2*time.Minute, "x", c)
	h.settle(2*time.Minute, "x", quota.Amount{Input: 1 << 62}, c)
	h.refuse(2*time.Minute, "y", c)
}

func hugeLimits(h *house) {
	for i, max := range []int64{1, 1e9, 1e15} {
		for j, per := range []time.Duration{time.Second, time.Minute, 24 * time.Hour, 31 * 24 * time.Hour} {
			c := in("acme", fmt.Sprint("r", i, j), claim(quota.Amount{Requests: max}, requests(max, per)))
			h.admit(0, fmt.Sprint("a", i, j), c)
			v := h.refuse(0, fmt.Sprint("b", i, j), c)
			if v.RetryAfter <= per || v.RetryAfter > per+per/30+time.Millisecond || v.Used != max {
				h.Errorf("%d per %v: %+v, want a wait of 30 to 31 cells", max, per, v)
			}
		}
	}
}
