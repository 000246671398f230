package extproc

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/admission"
)

// testDesk is a desk with a scripted word: each Submit gets the next verdict,
// the last one for ever. It counts what must come out even.
type testDesk struct {
	mu       sync.Mutex
	script   []verdict
	precheck *admission.Decision
	visits   []*testVisit
	ends     []admission.End
	refused  []admission.Decision
	seats    int // tickets not ended
	waiting  int // visits not settled
	doubles  int // a second Done
	longest  time.Duration
}

// verdict is what the desk says; wait holds the request until settle.
type verdict struct {
	wait   bool
	reason admission.Reason
	edit   func(*admission.Decision)

	pushback admission.Pushback // that Failing gives
}

func newTestDesk(script ...verdict) *testDesk {
	if script == nil {
		script = []verdict{{}}
	}
	return &testDesk{script: script, longest: 500 * time.Millisecond}
}

func (d *testDesk) Precheck(time.Time, *admission.Request) (admission.Decision, bool) {
	if d.precheck == nil {
		return admission.Decision{}, false
	}
	return *d.precheck, true
}

func (d *testDesk) Await(now time.Time, r *admission.Request, _ int64) (*admission.Awaited, admission.Decision, bool) {
	dec, refused := d.Precheck(now, r)
	return nil, dec, refused
}

func (d *testDesk) Refused(r *admission.Request, dec *admission.Decision) {
	_ = r.Identity.Tenant + r.API.Path + r.Policy.ID() // none of them is nil
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refused = append(d.refused, *dec)
}

func (d *testDesk) Submit(_ context.Context, r *admission.Request) Visit {
	d.mu.Lock()
	defer d.mu.Unlock()
	v := &testVisit{desk: d, request: r, verdict: d.script[0]}
	if len(d.script) > 1 {
		d.script = d.script[1:]
	}
	d.visits = append(d.visits, v)
	d.waiting++
	if !v.verdict.wait {
		v.settleLocked()
	}
	return v
}

// last is the newest visit.
func (d *testDesk) last() *testVisit {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.visits) == 0 {
		return nil
	}
	return d.visits[len(d.visits)-1]
}

// even checks that nothing is held and nothing was ended twice; it returns
// the ends.
func (d *testDesk) even(t testing.TB) []admission.End {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.seats != 0 || d.waiting != 0 || d.doubles != 0 {
		t.Errorf("%d seats taken, %d waiting, %d ended twice; want none", d.seats, d.waiting, d.doubles)
	}
	return d.ends
}

type testVisit struct {
	desk    *testDesk
	request *admission.Request
	verdict verdict
	notify  func()
	settled bool
	left    bool
	taken   bool
	ended   bool
	began   []time.Time // what Answering heard
	failing []bool      // what Failing heard
}

// settleLocked makes the decision stand; a grant takes the seat now.
func (v *testVisit) settleLocked() {
	if v.settled || v.left {
		return
	}
	v.settled = true
	v.desk.waiting--
	if v.verdict.reason.Admits() {
		v.desk.seats++
	}
	if v.notify != nil {
		v.notify()
	}
}

func (v *testVisit) settle(r admission.Reason) {
	v.desk.mu.Lock()
	defer v.desk.mu.Unlock()
	if !v.settled {
		v.verdict.reason = r
	}
	v.settleLocked()
}

func (v *testVisit) Waiting() bool {
	v.desk.mu.Lock()
	defer v.desk.mu.Unlock()
	return !v.settled && !v.left
}

func (v *testVisit) Longest() time.Duration { return v.desk.longest }

func (v *testVisit) Notify(f func()) {
	v.desk.mu.Lock()
	defer v.desk.mu.Unlock()
	if v.notify = f; v.settled {
		f()
	}
}

func (v *testVisit) Result() (Ticket, admission.Decision) {
	v.desk.mu.Lock()
	defer v.desk.mu.Unlock()
	if v.left {
		return nil, admission.Decide(admission.ClientGone, "")
	}
	v.taken = true
	d := admission.Decide(v.verdict.reason, "")
	if !v.verdict.reason.Admits() {
		return nil, d
	}
	d.Pool, d.Variant, d.Policy = "chat-dyn", "fp16-dyn", v.request.Policy.ID()
	if v.verdict.edit != nil {
		v.verdict.edit(&d)
	}
	return v, d
}

func (v *testVisit) Leave() {
	v.desk.mu.Lock()
	defer v.desk.mu.Unlock()
	if v.left || v.taken {
		return
	}
	v.left = true
	if !v.settled {
		v.desk.waiting--
	} else if v.verdict.reason.Admits() {
		v.desk.seats--
	}
}

// The visit is its own ticket.
func (v *testVisit) Done(e admission.End) bool {
	v.desk.mu.Lock()
	defer v.desk.mu.Unlock()
	if v.ended {
		v.desk.doubles++
		return false
	}
	v.ended = true
	v.desk.seats--
	v.desk.ends = append(v.desk.ends, e)
	return true
}

func (v *testVisit) Answering(now time.Time) {
	v.desk.mu.Lock()
	defer v.desk.mu.Unlock()
	v.began = append(v.began, now)
}

func (v *testVisit) Failing(_ time.Time, counts bool) admission.Pushback {
	v.desk.mu.Lock()
	defer v.desk.mu.Unlock()
	v.failing = append(v.failing, counts)
	return v.verdict.pushback
}

func (v *testVisit) Estimate() (input, output int64) { return 100, 512 }
