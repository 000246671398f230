package simulate

import (
	"context"
	"fmt"
	"time"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
)

// checks hold a run to what must always be true. What is not is a defect of
// weir or of the simulator, whatever the scenario.
type checks struct {
	tries   uint64
	decided uint64
	faults  []string
	more    int // faults that are not listed

	at    time.Duration // instant of the last turn of a pool
	turn  int           // turns at that instant
	stuck bool
}

// maxFaults are listed; one defect tends to show many times.
const maxFaults = 20

func (k *checks) fault(format string, args ...any) {
	if len(k.faults) == maxFaults {
		k.more++
		return
	}
	k.faults = append(k.faults, fmt.Sprintf(format, args...))
}

func (k *checks) list() []string {
	if k.more > 0 {
		return append(k.faults, fmt.Sprintf("and %d more", k.more))
	}
	return k.faults
}

// maxTurns is how often pools may want to be advanced at one instant.
const maxTurns = 100_000

// turns reports whether a pool may be advanced; false once pools want it
// without end.
func (k *checks) turns(w *world, i int) bool {
	if w.now != k.at {
		k.at, k.turn = w.now, 0
	}
	if k.turn++; k.turn < maxTurns {
		return true
	}
	if !k.stuck {
		k.fault("%v: pool %s wants to be advanced without end", w.now, w.lines[i].name)
		k.stuck = true
	}
	return false
}

// checkDecided holds that a try is decided once, with a reason that fits, and
// that nobody waits beyond a limit.
func (w *world) checkDecided(c *caller) {
	k, p := &w.checks, c.plan
	d := &p.Decision
	if c.judged == c.tries {
		k.fault("%v: a try was decided twice (%s)", w.now, d.Reason)
	}
	c.judged = c.tries
	k.decided++
	row := d.Reason.Row()
	if admits := row.Action == admission.Admit || row.Action == admission.Degrade; row.Name == "" || admits == p.Refused() {
		k.fault("%v: reason %q does not fit the outcome", w.now, d.Reason)
	}
	waited := w.now - c.sent
	limit := c.request.Policy.Longest(p.Class)
	if n := c.request.Policy.NonStreaming; n != nil && !c.stream {
		limit = max(limit, n.MaxWait)
	}
	if waited > limit {
		k.fault("%v: class %s waited %v, its limit is %v (%s)", w.now, p.Class, waited, limit, d.Reason)
	}
	if c.deadline > 0 && waited > c.deadline {
		k.fault("%v: waited %v, its own deadline is %v (%s)", w.now, waited, c.deadline, d.Reason)
	}
}

// seats are those that callers hold at a machine.
type seats struct {
	requests int64
	tokens   int64
}

// beyond says that more is out than there is.
func (s seats) beyond(total policy.Seats) bool {
	return s.requests > total.Requests || total.Tokens > 0 && s.tokens > total.Tokens
}

// checkGrant holds that a seat is given only where there is one. After a pool
// shrank more may be out; then none may be given.
func (w *world) checkGrant(c *caller) {
	m := w.machines[c.plan.Decision.Pool]
	if m == nil || c.request.Policy.ModeOf(c.class) != policy.Enforce {
		return
	}
	total, fixed := w.seatsOf(m.name)
	c.holds = seats{1, c.plan.Input + c.plan.Output}
	c.holder = m
	if total.Tokens > 0 {
		c.holds.tokens = min(c.holds.tokens, total.Tokens)
	}
	m.out.requests++
	m.out.tokens += c.holds.tokens
	if !fixed || m.out.beyond(total) {
		total = w.seatsNow(m.name)
	}
	if m.out.beyond(total) {
		w.checks.fault("%v: pool %s gave out %d seats of %d tokens, it has %d of %d",
			w.now, m.name, m.out.requests, m.out.tokens, total.Requests, total.Tokens)
	}
}

// checkEnd notes a seat that came back.
func (w *world) checkEnd(c *caller) {
	if c.holder != nil {
		c.holder.out.requests--
		c.holder.out.tokens -= c.holds.tokens
		c.holder = nil
	}
}

// seatsOf are the seats that the policy gives a pool; fixed says that the line
// has as many, but for what its watchdog adds.
func (w *world) seatsOf(name string) (total policy.Seats, fixed bool) {
	pool, _ := w.rules.Policy.Pool(name)
	if pool == nil {
		return policy.Seats{}, true
	}
	n, total := int64(max(w.rules.Policy.Server.Replicas, 1)), pool.Seats
	total.Requests = max(total.Requests/n, 1)
	if total.Tokens > 0 {
		total.Tokens = max(total.Tokens/n, 1)
	}
	return total, pool.Adaptive == nil
}

// seatsNow are the seats that a pool has by the word of its line.
func (w *world) seatsNow(name string) policy.Seats {
	for _, s := range w.core.Stats(w.clock()) {
		if s.Name == name {
			return s.Line.SeatsTotal
		}
	}
	return policy.Seats{}
}

// checkEmpty holds that a run leaves nothing behind.
func (w *world) checkEmpty() {
	k := &w.checks
	if w.alive != 0 {
		k.fault("%d callers are neither served nor gone", w.alive)
	}
	if k.tries != k.decided {
		k.fault("%d tries, %d decisions", k.tries, k.decided)
	}
	for _, s := range w.core.Stats(w.clock()) {
		if l := &s.Line; l.SeatsUsed != (policy.Seats{}) || l.Waiting != [policy.NumClasses]int{} || l.Retrying != 0 || l.HeldBytes != 0 || s.Over != 0 {
			k.fault("pool %s: seats %+v, waiting %v, retrying %d, %d bytes, over %d are left", s.Name, l.SeatsUsed, l.Waiting, l.Retrying, l.HeldBytes, s.Over)
		}
	}
	for _, m := range w.order {
		if n := len(m.inside); n != 0 || m.running() != 0 {
			k.fault("machine %s: %d requests are left, %d of them running", m.name, n, m.running())
		}
	}
	w.checkLedger()
}

// checkLedger holds that nobody who is gone counts as waiting or running.
func (w *world) checkLedger() {
	tenants := []string{quota.Shared}
	for _, t := range w.streams {
		tenants = append(tenants, t.senders.names[:min(len(t.senders.names), 1000)]...)
	}
	for _, tenant := range tenants {
		counters, err := w.store.Usage(context.Background(), w.wall(), tenant)
		if err != nil {
			w.checks.fault("the ledger of %s: %v", tenant, err)
		}
		for _, n := range counters {
			if n.Limit.Unit == policy.Concurrency && n.Used != 0 {
				w.checks.fault("%s counts %d requests at a time for %s", n.Rule, n.Used, tenant)
			}
		}
	}
}
