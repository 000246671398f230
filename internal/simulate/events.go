package simulate

import "time"

// event is something that happens at an instant of the run. Events of one
// instant happen in the order in which they were made.
type event struct {
	at   time.Duration
	seq  uint64
	who  *caller // of a caller's events
	gen  uint64  // of those that can be overtaken: counts only while its maker still says so
	i    int32   // which stream, pool, machine or list entry
	j    int32   // which source of a machine
	kind kind
}

// kind is what an event does.
type kind uint8

const (
	sends      kind = iota // a stream's next first send
	returns                // a caller comes back
	hangsUp                // a caller's patience with this try ends
	tooLate                // a caller's own deadline for this try ends
	due                    // a pool wants to be advanced
	stepEnds               // a batch's step
	firstToken             // of a service
	placeEnds              // a service is through with a caller
	fails                  // an answer that is an error
	looks                  // a sensor looks
	sees                   // what it saw reaches weir
	befalls                // a failure begins
	passes                 // a failure ends
	reloads                // a policy is swapped
	clockSteps             // the wall clock is set
	ticks                  // a second is over
)

// agenda is a binary heap of events by instant.
type agenda struct {
	list []event
	seq  uint64
}

func (a *agenda) push(e event) {
	a.seq++
	e.seq = a.seq
	a.list = append(a.list, e)
	i := len(a.list) - 1
	for i > 0 {
		up := (i - 1) / 2
		if !e.before(&a.list[up]) {
			break
		}
		a.list[i] = a.list[up]
		i = up
	}
	a.list[i] = e
}

func (a *agenda) pop() (event, bool) {
	if len(a.list) == 0 {
		return event{}, false
	}
	first := a.list[0]
	n := len(a.list) - 1
	e := a.list[n]
	a.list[n] = event{}
	a.list = a.list[:n]
	if n == 0 {
		return first, true
	}
	i := 0
	for {
		down := 2*i + 1
		if down >= n {
			break
		}
		if down+1 < n && a.list[down+1].before(&a.list[down]) {
			down++
		}
		if !a.list[down].before(&e) {
			break
		}
		a.list[i] = a.list[down]
		i = down
	}
	a.list[i] = e
	return first, true
}

func (e *event) before(o *event) bool {
	return e.at < o.at || e.at == o.at && e.seq < o.seq
}
