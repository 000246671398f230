package dcgm

import (
	"strconv"
	"time"

	"github.com/weirproxy/weir/gpu"
)

// stalePeriods of sampling without a new time stamp make a value frozen, but
// not less than staleFloor: samples come late on a busy machine.
const (
	stalePeriods = 3
	staleFloor   = 5 * time.Second
)

// toldFor is how long an outage that was logged is not logged again.
const toldFor = 10 * time.Minute

// entity is one GPU or MIG instance and what is remembered of its fields from
// one look to the next. Its methods take now.
type entity struct {
	id     uint // DCGM's
	card   gpu.Card
	fields []field
	memory []memory // of each field
	stale  time.Duration
}

// memory is what is remembered of one field.
type memory struct {
	stamp   int64     // of DCGM, last seen
	moved   time.Time // when the stamp was first seen here; zero = never
	refused bool      // the watch was
	why     missing   // of the last look
}

func newEntity(id uint, card gpu.Card, fields []field, every time.Duration) *entity {
	return &entity{id: id, card: card, fields: fields, memory: make([]memory, len(fields)),
		stale: max(stalePeriods*every, staleFloor)}
}

// take makes a card of one answer: values in the order of the fields; one
// that is not there is missing. mig says that the GPU has instances.
func (e *entity) take(now time.Time, values []raw, mig bool) gpu.Card {
	card := e.card
	if card.ID == "" {
		card.ID = card.Host + "/" + card.Index
	}
	for i := range e.fields {
		f, m := &e.fields[i], &e.memory[i]
		v := raw{status: -14}
		if i < len(values) {
			v = values[i]
		}
		x, why := f.read(v)
		m.why = m.check(now, why, v.stamp, f.steady, e.stale)
		to := f.to(&card)
		if m.why == present && !to.OK {
			*to = gpu.Some(x)
			if f.when != nil && x != 0 && v.stamp > 0 {
				*f.when(&card) = time.UnixMicro(v.stamp)
			}
		}
	}
	if mig {
		card.Util = gpu.Value{}
	}
	return card
}

// check is why, unless the time stamp stood still for too long.
func (m *memory) check(now time.Time, why missing, stamp int64, steady bool, stale time.Duration) missing {
	if why != present {
		if m.refused {
			return unwatched
		}
		return why
	}
	if m.moved.IsZero() || stamp != m.stamp {
		m.stamp, m.moved = stamp, now
	}
	if !steady && now.Sub(m.moved) > stale {
		return frozen
	}
	return present
}

// outage is a field that is missing for one reason.
type outage struct {
	field uint16
	why   missing
}

// outages of the last look, each at most once in toldFor, on whatever card it
// was seen first.
func (e *entity) outages(now time.Time, told map[outage]time.Time, tell func(f *field, why missing)) {
	for i := range e.fields {
		f, why := &e.fields[i], e.memory[i].why
		last, ok := told[outage{f.id, why}]
		if why == present || ok && now.Sub(last) < toldFor {
			continue
		}
		told[outage{f.id, why}] = now
		tell(f, why)
	}
}

// name of the card, for the log.
func (e *entity) name() string {
	if e.card.Instance == "" {
		return "GPU " + e.card.Index
	}
	return "GPU " + e.card.Index + " instance " + strconv.Quote(e.card.Instance)
}

// ailing reports whether a field is missing that watching anew may bring back.
// Fields of events are blank until the first event.
func (e *entity) ailing() bool {
	for i, m := range e.memory {
		if !e.fields[i].steady && m.why.passing() {
			return true
		}
	}
	return false
}

// renewal decides when a watch is made anew: once its values were blank for
// wait, and then after pauses that double up to maxRenew.
type renewal struct {
	since time.Time // blank since; zero = not blank
	next  time.Time
	pause time.Duration
}

// due reports whether now is the time. ailing is whether anything is blank.
func (r *renewal) due(now time.Time, ailing bool, wait time.Duration) bool {
	switch {
	case !ailing:
		*r = renewal{}
		return false
	case r.since.IsZero():
		r.since, r.pause, r.next = now, wait, now.Add(wait)
	}
	if now.Before(r.next) {
		return false
	}
	r.pause = min(max(2*r.pause, time.Second), maxRenew)
	r.next = now.Add(r.pause)
	return true
}
