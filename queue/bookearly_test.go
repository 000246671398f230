package queue

import (
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

// Who is invited for an instant is early before it and not from it on, once;
// Grace later the invitation is forgotten, and the flow with it.
func TestInvitations(t *testing.T) {
	const c, slot = policy.Standard, 120 * ms
	for _, at := range []struct {
		name   string
		at     time.Duration
		early  bool
		second bool // of another one at the same instant
	}{
		{"before the slot", slot - ms, true, true},
		{"after the slot, before the invitation", 30*time.Second - ms, true, true},
		{"invited", 30 * time.Second, false, true},
		{"a second late", 31 * time.Second, false, true},
		{"when one of the two is forgotten", 38 * time.Second, true, true},
		{"when both are", 46 * time.Second, false, false},
	} {
		b := newBook()
		e := enquire(0, "a")
		mustBook(t, b, e)
		b.invite(e, 40*time.Second)
		b.invite(e, 30*time.Second)
		b.pass(at.at)
		if got := b.early(at.at, c, "a"); got != at.early {
			t.Errorf("%s: early %t", at.name, got)
		}
		if got := b.early(at.at, c, "a"); got != at.second {
			t.Errorf("%s: the second early %t", at.name, got)
		}
		if b.early(at.at, c, "b") || b.early(at.at, policy.Batch, "a") {
			t.Errorf("%s: another flow is early", at.name)
		}
		b.pass(46 * time.Second)
		if n := b.events.len(); n != 0 {
			t.Errorf("%s: %d flows are left", at.name, n)
		}
	}
}

// A flow that has nobody booked has none invited: nobody of it can be early.
func TestStrangersAreNotInvited(t *testing.T) {
	b := newBook()
	b.invite(enquire(0, "a"), 40*time.Second)
	if b.early(0, policy.Standard, "a") || b.events.len() != 0 {
		t.Error("noted one who has no bookings")
	}
}

// A hundred thousand invitations take the room of 2*invitations at most.
func TestInvitationsAreBounded(t *testing.T) {
	b, r := newBook(), dice(3)
	e := enquire(0, "a")
	mustBook(t, b, e)
	for range 100_000 {
		b.invite(e, time.Duration(r.Int64N(int64(2*time.Minute))))
	}
	k := b.flows[policy.Standard]["a"]
	n, last := 0, time.Duration(-1)
	for _, s := range k.asked {
		if s.at <= last {
			t.Fatalf("%v after %v", s.at, last)
		}
		n, last = n+int(s.n), s.at
	}
	if n != 100_000 || len(k.asked) > 2*invitations {
		t.Errorf("%d of 100000, in %d", n, len(k.asked))
	}
}

// One who is let in early uses up what its flow has next: a booking, and
// without any an invitation.
func TestForgo(t *testing.T) {
	b := newBook()
	e := enquire(0, "a")
	first, second := mustBook(t, b, e), mustBook(t, b, e)
	b.invite(e, 40*time.Second)
	b.forgo(policy.Standard, "a")
	if s := b.stats[policy.Standard]; s != (Bookings{Outstanding: 1, Claimed: 1}) || b.all.total != 1 {
		t.Errorf("%+v, counted %d", s, b.all.total)
	}
	b.pass(second - ms)
	if _, ok := b.take(second-ms, policy.Standard, "a", true); ok {
		t.Errorf("the slot of %v is still there", first)
	}
	b.forgo(policy.Standard, "a")
	b.forgo(policy.Standard, "a")
	if s := b.stats[policy.Standard]; s != (Bookings{Claimed: 2}) || b.events.len() != 0 {
		t.Errorf("%+v, %d flows left", s, b.events.len())
	}
}

// A free seat is not for one who comes early, but for who is entitled to it,
// and where hardly any seat is in use; its flow has one booking less then.
func TestWhoMayComeEarly(t *testing.T) {
	for _, c := range []struct {
		name  string
		seats int64
		used  int
		group float64 // the share of the caller's tier; 0 = no tiers
		want  bool
	}{
		{"half in use", 8, 4, 0, false},
		{"one more would be beyond a quarter", 8, 2, 0, false},
		{"as good as idle", 8, 1, 0, true},
		{"a small pool, idle", 4, 0, 0, true},
		{"so small that idle means nothing", 3, 0, 0, false},
		{"half in use by another tier", 8, 4, 0.5, true},
	} {
		cfg := standardConfig(c.seats, 0)
		cfg.Booking = Booking{Share: 0.5, Grace: 5 * time.Second, Max: time.Minute}
		w := returning(policy.Standard, "a")
		if c.group > 0 {
			cfg.Shares.Groups = []Group{{Share: policy.Ratio(1 - c.group)}, {Share: policy.Ratio(c.group)}}
			w.Group = 1
		}
		l := New(cfg, nil)
		for range c.used {
			if o := l.Offer(at(0), waiter(policy.Standard, "b"), wide); !o.Granted {
				t.Fatalf("%s: %+v", c.name, o)
			}
		}
		booked := *w
		hint := l.Book(at(0), &booked)
		if hint <= 0 || l.Stats(at(0)).Bookings[policy.Standard].Outstanding != 1 {
			t.Fatalf("%s: not booked", c.name)
		}
		o := l.Offer(at(0), w, wide)
		left := l.Stats(at(0)).Bookings[policy.Standard].Outstanding
		switch {
		case c.want && (!o.Granted || left != 0):
			t.Errorf("%s: %+v, %d booked, want a seat for the booking", c.name, o, left)
		case !c.want && (o.Refusal != TenantFull || o.Hint < hint || left != 1):
			t.Errorf("%s: %+v, %d booked, want a refusal until %v", c.name, o, left, hint)
		}
		if o := l.Offer(at(0), waiter(policy.Standard, "a"), wide); !o.Granted && o.Refusal != Taken {
			t.Errorf("%s: a newcomer of the flow: %+v", c.name, o)
		}
	}
}

// One who comes back in its slot and finds no place is booked anew: as many are
// booked as are away.
func TestRefusedInItsSlot(t *testing.T) {
	l, _, b := booking(t)
	var hint time.Duration
	for range 2 {
		hint = mustRefuse(t, l, at(100*ms), waiter(policy.Standard, "a"), b, Full).Hint
	}
	first := 100*ms + hint - 100*ms
	before := l.Stats(at(first)).Bookings[policy.Standard]
	mustRefuse(t, l, at(first), returning(policy.Standard, "a"), b, Full)
	after := l.Stats(at(first)).Bookings[policy.Standard]
	if before != (Bookings{Outstanding: 1, Due: 1}) || after != (Bookings{Outstanding: 2, Claimed: 1}) {
		t.Errorf("%+v, then %+v", before, after)
	}
}
