package simulate

import (
	"strconv"
	"time"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/identity"
	"github.com/weirproxy/weir/internal/modelsim"
	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
)

// caller is one request with all its tries.
type caller struct {
	first    time.Duration // of its first send
	client   *Client
	identity *identity.Identity
	class    policy.Class
	colour   policy.Colour
	model    string
	embed    bool
	stream   bool
	priority bool
	deadline time.Duration
	prompt   int64   // tokens
	output   int64   // tokens that it will get
	maxOut   int64   // tokens that it says; 0 = none
	luck     float64 // -1..1: where its service time lies within the spread

	state   state
	tries   uint64
	sent    time.Duration // of this try
	seatAt  time.Duration // of this try
	firstAt time.Duration // first token of this try; negative = none yet
	request admission.Request
	plan    *admission.Plan
	end     *admission.End // of an answer that fails

	told    time.Duration // when the first refusal with a hint came
	hint    time.Duration // that hint; 0 = none yet
	atHint  bool          // this try comes at its hint or later
	tenant  *TenantResult // of those counted
	in      bool          // was admitted once
	judged  uint64        // the last try that was decided
	counted bool          // first sent after the warm-up
	burst   bool          // first sent in the burst

	holder *machine // whose pool's seat it holds; nil = none
	holds  seats

	machine *machine // that works on it; nil = none
	slot    int      // among those inside the machine
	seq     modelsim.Sequence
	placed  bool // has a place of a service
	begun   time.Duration
	takes   time.Duration
}

// state is where a caller is.
type state uint8

const (
	away state = iota // before its first send, between two tries, or for good
	inLine
	onSeat
)

// runs says that this try of the caller has a seat.
func (c *caller) runs(try uint64) bool { return c.state == onSeat && c.tries == try }

// comes puts a stream's next first send on the agenda.
func (w *world) comes(i int) error {
	t := w.streams[i]
	more, err := t.next()
	if !more {
		w.sending--
		return err
	}
	w.agenda.push(event{at: t.at, kind: sends, i: int32(i)})
	return nil
}

// send is a first send.
func (w *world) send(i int) error {
	c := w.streams[i].draw()
	err := w.comes(i)
	w.alive++
	c.counted = w.now >= 0
	c.burst = c.counted && w.scenario.InBurst(w.now)
	w.tally.sent(c)
	w.try(c)
	return err
}

// try is one try of a caller.
func (w *world) try(c *caller) {
	c.tries++
	c.sent, c.firstAt, c.end = w.now, -1, nil
	w.tally.tried(w, c)
	w.ask(c)
	if c.client.Kind == Impatient {
		w.agenda.push(event{at: w.now + c.client.Patience, kind: hangsUp, who: c, gen: c.tries})
	}
	if c.deadline > 0 {
		w.agenda.push(event{at: w.now + c.deadline, kind: tooLate, who: c, gen: c.tries})
	}
	switch outcome := w.decide(c); outcome {
	case admission.Refused:
		w.refused(c)
	case admission.Entered:
		w.seated(c)
	case admission.InTheLine:
		c.state = inLine
	}
	w.arm()
}

// ask makes the request of this try.
func (w *world) ask(c *caller) {
	e := w.rules
	r := &c.request
	*r = admission.Request{
		Received: w.clock(), Identity: c.identity, Policy: e.Effective, API: e.chat, Model: c.model,
		Class: c.class, Colour: c.colour, Stream: c.stream,
		Prompt: c.prompt * bytesPerToken, MaxOut: c.maxOut, Body: c.prompt*bytesPerToken + 200,
	}
	r.Priority = c.priority && (c.class == policy.Critical || c.colour == policy.Red)
	if c.embed {
		r.API = e.embed
	}
	r.Function = e.FunctionOf(r.API)
	if r.Model == "" && len(e.Policy.Models) > 0 {
		r.Model = e.Policy.Models[0].Name
	}
	if c.deadline > 0 {
		r.Deadline = w.clock().Add(c.deadline)
	}
	if c.client.Marks {
		r.Attempt = int(c.tries) - 1
	}
}

// nextID is the id of a try that has claims.
func (w *world) nextID() string {
	w.id++
	return strconv.FormatUint(w.id, 36)
}

// seated is a caller who got a seat.
func (w *world) seated(c *caller) {
	w.checkDecided(c)
	c.state, c.seatAt = onSeat, w.now
	w.checkGrant(c)
	m := w.machines[c.plan.Decision.Pool]
	if m == nil {
		c.end = &admission.End{Result: admission.ResultNoAnswer, Failed: true, Status: 503, GRPC: -1}
	} else {
		c.end = m.take(c)
	}
	if c.end != nil {
		w.tally.turnedBack(c)
		w.agenda.push(event{at: w.now + failTime, kind: fails, who: c, gen: c.tries})
		return
	}
	w.tally.admitted(w, c)
}

// first is a caller's first token.
func (w *world) first(c *caller) {
	c.firstAt = w.now
	w.core.First(w.clock(), c.plan)
}

// answered is a whole answer.
func (w *world) answered(c *caller) {
	e := admission.End{
		Result: admission.ResultOK, Status: 200, GRPC: -1, Learn: true,
		Usage: admission.Usage{Known: true, InputKnown: true, Input: c.prompt, Output: c.output},
	}
	if e.FirstByte = w.now - c.seatAt; c.stream && c.firstAt >= 0 {
		e.FirstByte = c.firstAt - c.seatAt
	}
	w.end(c, &e)
	w.tally.answered(w, c)
	w.gone(c)
}

// failed is an answer that is an error.
func (w *world) failed(c *caller) {
	e := c.end
	w.end(c, e)
	if e.Result == admission.ResultCaller {
		w.lose(c)
		return
	}
	w.again(c, 0)
}

// broken is an answer that breaks off, or one that held its seat too long.
// Who has read a part of it does not ask again.
func (w *world) broken(c *caller, e *admission.End) {
	read := c.stream && c.firstAt >= 0
	w.end(c, e)
	if read {
		w.lose(c)
		return
	}
	w.again(c, 0)
}

// end frees the caller's seat.
func (w *world) end(c *caller, e *admission.End) {
	if m := c.machine; m != nil {
		if made := m.leave(c); e.Result != admission.ResultOK {
			e.Usage.Output = made
		}
	}
	c.state = away
	w.checkEnd(c)
	final, decided := w.core.Done(w.clock(), c.plan, e)
	w.settle(c.plan, final)
	w.deliver(decided)
	w.arm()
}

// hangUp is the end of a caller's patience with a try.
func (w *world) hangUp(c *caller, try uint64) {
	if c.tries != try || c.state == away {
		return
	}
	if c.state == onSeat {
		w.cutShort(c)
		return
	}
	if !w.core.Cancel(w.clock(), c.plan) {
		w.checks.fault("a caller who waits could not leave")
	}
	w.settle(c.plan, quota.Amount{Requests: 1})
	w.checkDecided(c)
	c.state = away
	w.tally.refused(c, 0)
	w.arm()
	w.lose(c)
}

// cutShort is a caller who leaves its seat before the answer is whole.
func (w *world) cutShort(c *caller) {
	w.end(c, &admission.End{Result: admission.ResultCaller, GRPC: -1})
	w.tally.hungUp(w, c)
	w.lose(c)
}

// refused is a try that got no seat.
func (w *world) refused(c *caller) {
	w.checkDecided(c)
	c.state = away
	d := &c.plan.Decision
	w.tally.refused(c, d.RetryAfter)
	if d.RetryAfter > 0 && c.hint == 0 {
		c.told, c.hint = w.now, d.RetryAfter
	}
	if d.Action == admission.Deny || d.Action == admission.Challenge {
		w.lose(c)
		return
	}
	w.again(c, d.RetryAfter)
}

// again lets a caller come back, or give up, as its habit is. hint is what it
// was told; 0 = nothing.
func (w *world) again(c *caller, hint time.Duration) {
	pause, comes := w.pause(c, hint)
	k := c.client
	if !comes || int(c.tries) >= k.Tries || w.now+pause-c.first > k.Patience {
		w.lose(c)
		return
	}
	c.atHint = hint > 0 && pause >= hint
	c.plan = nil // of many who are away, the most of what they would hold
	w.agenda.push(event{at: w.now + pause, kind: returns, who: c})
}

// hop is the least time of an early caller between two tries: without it, one
// who is told less each time would never get past an instant.
const hop = time.Millisecond

// pause is how long a caller stays away; false = for good.
func (w *world) pause(c *caller, hint time.Duration) (time.Duration, bool) {
	k := c.client
	switch k.Kind {
	case Obedient:
		early := k.Early
		if early <= 0 || early >= 1 {
			return hint, hint > 0
		}
		return max(hop, time.Duration(early*float64(hint))), hint > 0
	case Backoff:
		full := k.Every << min(c.tries-1, 20)
		return max(full/2+time.Duration(w.rng.Float64()*float64(full/2)), hint), true
	case Stubborn:
		return k.Every, true
	}
	return 0, false
}

// lose is a request that is not served.
func (w *world) lose(c *caller) {
	w.tally.lost(w, c)
	w.gone(c)
}

func (w *world) gone(c *caller) {
	w.alive--
	c.plan = nil
}
