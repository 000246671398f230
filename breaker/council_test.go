package breaker

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirproxy/weir/policy"
)

// says is a replica's word of pool "p" that counts for 15 s.
func says(replica string, seq uint64, state State, requests int) Opinion {
	o := Opinion{Replica: replica, Breaker: "p", State: state, Requests: requests, Failures: requests / 2, Seq: seq, TTL: 15 * sec}
	if state != Closed {
		o.Level = Hard
		if state == Soft {
			o.Level = Soft
		}
		o.Left = 4 * sec
	}
	return o
}

// B3: the stated rule, vote by vote, and its literal form.
func TestRuling(t *testing.T) {
	const closed, soft, hard, half = Closed, Soft, Hard, HalfOpen
	type vote struct {
		state    State
		requests int
	}
	for _, c := range []struct {
		name    string
		votes   []vote
		want    State
		literal State
	}{
		{"nobody", nil, closed, closed},
		{"one closed", []vote{{closed, 100}}, closed, closed},
		{"one alone with evidence is a quorum of one", []vote{{hard, 20}}, hard, hard},
		{"one alone without", []vote{{hard, 19}}, closed, hard},
		{"a cut-off one among three", []vote{{hard, 100}, {closed, 100}, {closed, 100}}, closed, hard},
		{"two of three", []vote{{hard, 100}, {closed, 100}, {hard, 100}}, hard, hard},
		{"one of two is no majority", []vote{{hard, 100}, {closed, 100}}, closed, hard},
		{"the closed ones have seen nothing", []vote{{hard, 100}, {closed, 0}, {closed, 19}}, hard, hard},
		{"the open ones have seen nothing", []vote{{hard, 3}, {hard, 0}, {closed, 20}}, closed, hard},
		{"a loud one does not outweigh", []vote{{hard, 1 << 30}, {closed, 20}, {closed, 20}}, closed, hard},
		{"half-open has no vote", []vote{{half, 100}, {half, 100}, {hard, 20}}, hard, hard},
		{"half-open alone", []vote{{half, 100}}, closed, closed},
		{"soft", []vote{{soft, 20}}, soft, soft},
		{"soft and hard are both open", []vote{{soft, 20}, {hard, 20}, {closed, 20}}, soft, hard},
		{"more than half say hard", []vote{{hard, 20}, {hard, 20}, {soft, 20}}, hard, hard},
	} {
		for _, literal := range []bool{false, true} {
			p := defaults()
			p.Cascade.Literal = literal
			co := NewCouncil("me", p)
			for i, v := range c.votes {
				if !co.Hear(at(0), says(fmt.Sprint("r", i), 1, v.state, v.requests)) {
					t.Fatalf("%s: vote %d is no news", c.name, i)
				}
			}
			want := c.want
			if literal {
				want = c.literal
			}
			r := co.Ruling(at(0), "p", HTTP)
			if r.Elsewhere != want {
				t.Errorf("%s, literal %v: %+v, want %v", c.name, literal, r, want)
			}
			for _, own := range []State{closed, soft, hard, half} {
				for class := policy.Critical; class <= policy.Batch; class++ {
					shed := want != closed && own == closed && class == policy.Batch
					if got := r.Sheds(class, own); got != shed {
						t.Errorf("%s, literal %v: class %v, own %v: sheds %v", c.name, literal, class, own, got)
					}
				}
			}
			// Literal: batch is shed at every pool; else at this one.
			q := co.Ballot(at(0), "another", GRPC).Ruling(at(0))
			if got, want := q.Sheds(policy.Batch, closed), literal && want != closed; got != want {
				t.Errorf("%s, literal %v: at another pool batch is shed: %v", c.name, literal, got)
			}
			if r := co.Ballot(at(0), "another", Tenant).Ruling(at(0)); r.Sheds(policy.Batch, closed) {
				t.Errorf("%s: a tenant is shed for a pool", c.name)
			}
		}
	}
}

// A word counts for its TTL from when it was heard, renewed by newer ones
// alone; peers' clocks and words that come again decide nothing.
func TestFreshness(t *testing.T) {
	co := NewCouncil("me", defaults())
	b := co.Ballot(at(0), "p", HTTP)
	old := says("a", 10, Hard, 20)
	old.Since = at(-1000 * time.Hour) // a clock that is far off
	co.Hear(at(0), old)
	for _, again := range []uint64{10, 9, 1} {
		o := says("a", again, Closed, 20)
		if co.Hear(at(10*sec), o) {
			t.Fatalf("seq %d after 10 is news", again)
		}
	}
	if r := b.Ruling(at(15*sec - 1)); r.Elsewhere != Hard {
		t.Fatalf("%+v", r)
	}
	if r := b.Ruling(at(15 * sec)); r != (Ruling{}) { // without Advance
		t.Fatalf("a dead replica's word: %+v", r)
	}
	if !co.Hear(at(15*sec), says("a", 3, Soft, 20)) { // a new life, behind a clock set back
		t.Fatal("its new life is not heard though the old word is over")
	}
	co.Hear(at(16*sec), says("a", 4, Closed, 20)) // its own closing clears its word at once
	if r := b.Ruling(at(16 * sec)); r.Elsewhere != Closed || r.Votes != 1 {
		t.Fatalf("%+v", r)
	}
	// A closed voter's word ends: the rest decides, at that instant.
	c := says("c", 1, Closed, 20)
	c.TTL = 5 * sec
	co.Hear(at(20*sec), c)
	co.Hear(at(20*sec), says("d", 1, Closed, 20))
	co.Hear(at(21*sec), says("a", 5, Hard, 20))
	co.Hear(at(21*sec), says("b", 1, Hard, 20))
	for _, want := range []struct {
		at time.Duration
		r  Ruling
	}{
		{25*sec - 1, Ruling{Elsewhere: Closed, Votes: 4, Open: 2}},
		{25 * sec, Ruling{Elsewhere: Hard, Votes: 3, Open: 2}},
		{35 * sec, Ruling{Elsewhere: Hard, Votes: 2, Open: 2}},
		{36 * sec, Ruling{}},
	} {
		if r := b.Ruling(at(want.at)); r != want.r {
			t.Errorf("at %v: %+v, want %+v", want.at, r, want.r)
		}
		co.Advance(at(want.at))
		if r := b.Ruling(at(want.at)); r != want.r {
			t.Errorf("at %v, swept: %+v, want %+v", want.at, r, want.r)
		}
	}
}

// Each kind has its own least evidence; pools and tenants of one name are two.
func TestRulingByKind(t *testing.T) {
	p := defaults()
	grpc := defaults()
	grpc.MinRequests = 50
	p.GRPC, p.Tenant.MinRequests = &grpc, 5
	for kind, least := range map[Kind]int{HTTP: 20, GRPC: 50, Tenant: 5} {
		for _, n := range []int{least - 1, least} {
			co := NewCouncil("me", p)
			o := says("a", 1, Hard, n)
			o.Kind = kind
			co.Hear(at(0), o)
			if r := co.Ruling(at(0), "p", kind); (r.Elsewhere == Hard) != (n == least) {
				t.Errorf("%v with %d ends: %+v", kind, n, r)
			}
			other := Tenant
			if kind == Tenant {
				other = HTTP
			}
			if r := co.Ruling(at(0), "p", other); r != (Ruling{}) {
				t.Errorf("%v: of the other of that name: %+v", kind, r)
			}
		}
	}
	co := NewCouncil("me", p)
	co.Hear(at(0), says("a", 1, Hard, 20))
	p.MinRequests = 100
	co.Configure(at(0), p)
	if r := co.Ruling(at(0), "p", HTTP); r.Votes != 0 {
		t.Errorf("after the policy asked for more: %+v", r)
	}
}

// Garbage and floods take no more room than is stated.
func TestCouncilIsBounded(t *testing.T) {
	co := NewCouncil("me", defaults())
	for i, spoil := range []func(*Opinion){
		func(o *Opinion) { o.Replica = "" },
		func(o *Opinion) { o.Breaker = strings.Repeat("x", 300) },
		func(o *Opinion) { o.Kind = 7 },
		func(o *Opinion) { o.State = 7 },
		func(o *Opinion) { o.Level = Closed },
		func(o *Opinion) { o.Failures = o.Requests + 1 },
		func(o *Opinion) { o.Requests, o.Failures = -1, -1 },
		func(o *Opinion) { o.Left = -1 },
		func(o *Opinion) { o.Seq = 0 },
		func(o *Opinion) { o.Seq = 1 << 53 },
		func(o *Opinion) { o.TTL = 0 },
		func(o *Opinion) { o.TTL = MaxTTL + 1 },
	} {
		o := says("a", 1, Hard, 20)
		spoil(&o)
		if co.Hear(at(0), o) || co.Refused() != uint64(i+1) {
			t.Errorf("heard %+v", o)
		}
	}
	for i := range maxWords + 50 {
		co.Hear(at(0), says(fmt.Sprint("r", i), 1, Hard, 20))
	}
	if n := len(co.Words(at(0), "p", HTTP)); n != maxWords {
		t.Errorf("%d words on one breaker", n)
	}
	for i := range maxBallots + 50 {
		o := says("a", 1, Hard, 20)
		o.Breaker = fmt.Sprint("b", i)
		co.Hear(at(0), o)
	}
	if n := len(co.ballots); n != maxBallots {
		t.Errorf("%d ballots", n)
	}
	if r := co.Ballot(at(0), "one more", HTTP).Ruling(at(0)); r != (Ruling{}) {
		t.Errorf("%+v", r)
	}
	co.Hear(at(16*sec), says("a", 2, Hard, 20)) // all others are over: room again
	co.Advance(at(16 * sec))
	if n := len(co.ballots); n != 1 {
		t.Errorf("%d ballots after all but one were over", n)
	}
}

// A replica that joins takes over its own earlier life's word, else what the
// quorum says, for what is left.
func TestTakeOver(t *testing.T) {
	left := func(o Opinion, d time.Duration) Opinion { o.Left = d; return o }
	for _, c := range []struct {
		name  string
		words []Opinion
		from  string // "" = nothing
	}{
		{"nothing stands", nil, ""},
		{"its own", []Opinion{says("me", 1, Hard, 0), says("a", 1, Closed, 20)}, "me"},
		{"its own was closed", []Opinion{says("me", 1, Closed, 0), says("a", 1, Hard, 20)}, ""},
		{"the quorum's, with the longest time left", []Opinion{says("a", 1, Hard, 20), left(says("b", 1, Hard, 20), 9*sec), says("c", 1, Closed, 20)}, "b"},
		{"not a soft word for a hard ruling", []Opinion{says("a", 1, Hard, 20), left(says("b", 1, Soft, 20), 9*sec), says("c", 1, Hard, 20)}, "a"},
		{"not a word without evidence", []Opinion{says("a", 1, Hard, 20), left(says("b", 1, Hard, 3), 9*sec)}, "a"},
		{"a cut-off one is outvoted", []Opinion{says("a", 1, Hard, 20), says("b", 1, Closed, 20)}, ""},
	} {
		co := NewCouncil("me", defaults())
		for _, o := range c.words {
			co.Hear(at(0), o)
		}
		o, ok := co.TakeOver(at(0), "p", HTTP)
		if ok != (c.from != "") || ok && o.Replica != c.from {
			t.Errorf("%s: %v %+v, want that of %q", c.name, ok, o, c.from)
		}
		b := newHTTP(defaults(), dice(1))
		if ok && (!b.Restore(at(0), o.Level, o.Left, o.Replica) || b.View(at(0)).Left != o.Left) {
			t.Errorf("%s: not taken over: %+v", c.name, b.View(at(0)))
		}
	}
}

// The council is its model: all words kept, counted anew for each question.
func TestCouncilIsItsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := defaults()
		p.Cascade.Literal = rapid.Bool().Draw(t, "literal")
		co := NewCouncil("r0", p)
		type heard struct {
			o  Opinion
			at time.Duration
		}
		var all []heard
		var now time.Duration
		pools := []string{"p", "q"}
		t.Repeat(map[string]func(*rapid.T){
			"hear": func(t *rapid.T) {
				o := says(fmt.Sprint("r", rapid.IntRange(0, 3).Draw(t, "replica")), rapid.Uint64Range(1, 9).Draw(t, "seq"),
					State(rapid.IntRange(0, 3).Draw(t, "state")), rapid.SampledFrom([]int{0, 19, 20, 99}).Draw(t, "n"))
				o.Breaker = rapid.SampledFrom(pools).Draw(t, "pool")
				o.TTL = time.Duration(rapid.IntRange(1, 9).Draw(t, "ttl")) * sec
				co.Hear(at(now), o)
				all = append(all, heard{o, now})
			},
			"pass":    func(t *rapid.T) { now += time.Duration(rapid.IntRange(0, 40).Draw(t, "d")) * 100 * ms },
			"advance": func(*rapid.T) { co.Advance(at(now)) },
			"": func(t *rapid.T) {
				standing := map[string]heard{}
				for _, h := range all { // as they came
					k := h.o.Replica + " " + h.o.Breaker
					if s, ok := standing[k]; !ok || s.at+s.o.TTL <= h.at || h.o.Seq > s.o.Seq {
						standing[k] = h
					}
				}
				want, shout := map[string]Ruling{}, false
				hard := map[string]int{}
				for _, h := range standing {
					if h.at+h.o.TTL <= now {
						continue
					}
					r := want[h.o.Breaker]
					shout = shout || h.o.Open()
					if p.Cascade.Literal && h.o.Open() {
						r.Elsewhere = max(r.Elsewhere, h.o.State)
					}
					if h.o.State != HalfOpen && h.o.Requests >= 20 {
						r.Votes++
						if h.o.Open() {
							r.Open++
						}
						if h.o.State == Hard {
							hard[h.o.Breaker]++
						}
					}
					want[h.o.Breaker] = r
				}
				for _, pool := range pools {
					r := want[pool]
					r.Shouted = p.Cascade.Literal && shout
					if !p.Cascade.Literal && 2*r.Open > r.Votes {
						r.Elsewhere = Soft
						if 2*hard[pool] > r.Votes {
							r.Elsewhere = Hard
						}
					}
					if got := co.Ballot(at(now), pool, HTTP).Ruling(at(now)); got != r {
						t.Fatalf("at %v, %s: %+v, want %+v", now, pool, got, r)
					}
				}
			},
		})
	})
}

// Words come and rulings are read at once.
func TestCouncilConcurrently(t *testing.T) {
	co := NewCouncil("me", defaults())
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			b := co.Ballot(at(0), "p", HTTP)
			for i := range 2000 {
				now := at(time.Duration(i) * 10 * ms)
				co.Hear(now, says(fmt.Sprint("r", g), uint64(i+1), Hard, 20))
				if r := b.Ruling(now); r.Elsewhere != Hard || r.Open == 0 || r.Votes < r.Open {
					t.Errorf("%+v", r)
				}
				if i%100 == 0 {
					co.Advance(now)
					co.Configure(now, defaults())
				}
			}
		})
	}
	wg.Wait()
}

func BenchmarkRuling(b *testing.B) {
	co := NewCouncil("me", defaults())
	for i := range 10 {
		co.Hear(at(0), says(fmt.Sprint("r", i), 1, Hard, 20))
	}
	ballot := co.Ballot(at(0), "p", HTTP)
	b.ReportAllocs()
	for b.Loop() {
		if r := ballot.Ruling(at(sec)); !r.Sheds(policy.Batch, Closed) {
			b.Fatal(r)
		}
	}
}

// Whatever comes over the wire, rulings stay what they may be.
func FuzzHear(f *testing.F) {
	f.Add("a", "p", uint8(0), uint8(2), uint8(2), 20, 20, uint64(1), int64(15*sec), int64(0))
	f.Add("", "", uint8(9), uint8(9), uint8(9), -1, 1, uint64(1<<63), int64(-1), int64(1<<62))
	f.Fuzz(func(t *testing.T, replica, name string, kind, state, level uint8, requests, failures int, seq uint64, ttl, pass int64) {
		co := NewCouncil("me", defaults())
		co.Hear(at(0), says("a", 1, Closed, 20))
		o := Opinion{
			Replica: replica, Breaker: name, Kind: Kind(kind), State: State(state), Level: State(level),
			Requests: requests, Failures: failures, Seq: seq, TTL: time.Duration(ttl),
		}
		if news := co.Hear(at(0), o); news && o.Check() != nil {
			t.Fatalf("heard %+v", o)
		}
		for _, now := range []time.Time{at(0), at(time.Duration(pass)), at(-time.Duration(pass))} {
			for _, pool := range []string{name, "p"} {
				r := co.Ruling(now, pool, o.Kind)
				if r.Open > r.Votes || r.Votes > 2 || r.Elsewhere > Hard || r.Elsewhere != Closed && 2*r.Open <= r.Votes {
					t.Fatalf("%+v", r)
				}
				if w, ok := co.TakeOver(now, pool, o.Kind); ok && !w.Open() {
					t.Fatalf("taken over: %+v", w)
				}
			}
			co.Advance(now)
		}
	})
}
