package gpu

import (
	"fmt"
	"time"
)

// Health is how well a card is; the larger, the worse.
type Health uint8

// The healths. Only Faulty and Lost cost a pool seats.
const (
	Healthy  Health = iota
	Degraded        // slowed down by its hardware
	Faulty          // a fatal XID not long ago
	Lost            // its source answers without it
)

// String is the health as metrics and /debug have it.
func (h Health) String() string {
	switch h {
	case Healthy:
		return "healthy"
	case Degraded:
		return "degraded"
	case Faulty:
		return "faulty"
	case Lost:
		return "lost"
	}
	return "unknown"
}

// Out says that the card does not count as capacity.
func (h Health) Out() bool { return h >= Faulty }

// FatalXID names the XIDs after which a GPU is of no use until somebody
// resets it, drains the node or replaces the board, by NVIDIA's catalogue
// (docs.nvidia.com/deploy/xid-errors, "Analyzing Xid Errors with the Xid
// Catalog"): those whose immediate action is to reset the GPU or to restart
// the machine, and those that need a look at registers which telemetry does
// not have (48, 74). Every other code is a note: those of applications (13,
// 31, 43, 45, 68, 109), which leave the GPU healthy (NVIDIA's own
// k8s-device-plugin passes over the same six), those that record a repair (63,
// 92, 156), the ECC error that was contained (94: the process ends, the GPU
// works on), NVLink's 144 to 149, whose number alone does not tell the fatal
// ones, a change of the recovery action (154: it is also logged when there is
// none any more), and codes that are newer than this table.
func FatalXID(code int) (what string, fatal bool) {
	switch code {
	case 46:
		what = "GPU stopped processing"
	case 48:
		what = "double bit ECC error"
	case 62:
		what = "internal micro-controller halt"
	case 64:
		what = "page retirement or row remapping failed"
	case 74:
		what = "NVLink error"
	case 79:
		what = "GPU has fallen off the bus"
	case 95:
		what = "uncontained ECC error"
	case 110:
		what = "security fault"
	case 119:
		what = "GSP RPC timeout"
	case 120:
		what = "GSP error"
	case 136:
		what = "NVLink training failed"
	case 140:
		what = "unrecovered ECC error"
	case 143:
		what = "GPU cannot be initialized"
	case 150:
		what = "NVLink controller hung"
	case 155:
		what = "NVLink error found by software"
	case 158:
		what = "fatal timeout"
	}
	return what, what != ""
}

// goodLooks is how many looks in a row must find a card there and readable
// before it counts again after it was faulty or lost.
const goodLooks = 3

// CardState is one GPU or MIG instance as the gauge knows it.
type CardState struct {
	Card              // as its last look had it
	Source  string    // that tells of it
	Seen    time.Time // by its last look
	Health  Health
	Since   time.Time // of that health
	Reason  string    // "" while healthy
	Suspect string    // what its figures contradict; "" = nothing found
}

// entry is a card in the gauge's book. The gauge's lock guards it.
//
// Exporters show the last XID for ever (dcgm-exporter#500), so a code counts
// when it is new (news). What a card shows when it is seen first is old, unless
// its source tells when it occurred.
type entry struct {
	state CardState
	round uint64    // of its source's last look that had it
	looks uint64    // that had it
	good  int       // the last ones in a row that were readable
	xid   float64   // the last code; 0 = none
	told  bool      // of a code, 0 or not
	when  time.Time // that code occurred; zero = not known
	still bool      // that did not move with the looks
	fault time.Time // when the last new fatal XID occurred; zero = none
	what  string    // that was

	speaks bool // was readable once: of a board that never is, to be there is enough
}

// see takes what a look says of the card.
func (e *entry) see(c *Card, at time.Time, faultFor time.Duration) {
	if c.XID.OK {
		if occurred, isNew := e.news(c, at); isNew && at.Sub(occurred) < faultFor {
			if what, fatal := FatalXID(int(c.XID.V)); fatal {
				e.fault, e.good = occurred, 0
				e.what = fmt.Sprintf("XID %d: %s", int(c.XID.V), what)
			}
		}
		e.told, e.xid = true, c.XID.V
	}
	e.state.Card, e.state.Seen = *c, at
	e.state.Suspect = contradiction(c.Util, activity(c))
	e.looks++
	e.good++
	if speaks := readable(c); speaks {
		e.speaks = true
	} else if e.speaks {
		e.good = 0
	}
	e.judge(at, faultFor)
}

// sameXID is how far two looks may place one XID apart: the clocks of a node
// and of weir drift, and snapshots are long on their way.
const sameXID = 5 * time.Second

// news says when the XID of a look occurred, and whether that was not known
// before. A code that differs from the one before is new, and came after the
// look that had that. A code that is told first, or again, is new only where
// its time says so. A time that moves on from look to look is that of the
// looks, not of an XID, and says nothing.
func (e *entry) news(c *Card, at time.Time) (occurred time.Time, isNew bool) {
	if c.XID.V == 0 {
		e.when, e.still = time.Time{}, false
		return at, false
	}
	dated := !c.XIDAt.IsZero()
	occurred = at
	if dated && c.XIDAt.Before(at) {
		occurred = c.XIDAt
	}
	was, still := e.when, e.still
	switch {
	case c.XID.V != e.xid:
		isNew = dated || e.told || e.looks > 1
		if e.told && occurred.Before(e.state.Seen) {
			occurred = e.state.Seen
		}
		e.when, e.still = time.Time{}, false
		if isNew {
			e.when = occurred
		}
	case dated:
		e.when, e.still = occurred, occurred.Sub(was).Abs() <= at.Sub(e.state.Seen)/2
		isNew = was.IsZero() || still && occurred.Sub(was) > sameXID
	}
	return occurred, isNew
}

// judge finds the health of a card that is there.
func (e *entry) judge(at time.Time, faultFor time.Duration) {
	steady := e.good >= goodLooks
	if !e.fault.IsZero() && at.Sub(e.fault).Abs() >= faultFor && steady {
		e.fault = time.Time{}
	}
	switch slow := slowed(&e.state.Card); {
	case !e.fault.IsZero():
		e.become(Faulty, e.what, at)
	case e.state.Health == Lost && !steady:
		e.become(Lost, "is back, but not yet for long", at)
	case slow != "":
		e.become(Degraded, slow, at)
	default:
		e.become(Healthy, "", at)
	}
}

// miss notes a look without the card.
func (e *entry) miss(at time.Time) {
	e.good = 0
	e.become(Lost, "is not among its source's GPUs any more", at)
}

func (e *entry) become(h Health, why string, at time.Time) {
	if e.state.Since.IsZero() || h != e.state.Health {
		e.state.Since = at
	}
	e.state.Health, e.state.Reason = h, why
}

// readable says that a look told something of the card: one that has fallen
// off the bus may still be listed.
func readable(c *Card) bool {
	return c.Util.OK || c.Active.OK || c.SM.OK || c.MemoryUsed.OK || c.Power.OK || c.Temperature.OK
}

// activity is what profiling says of how busy a card is.
func activity(c *Card) Value {
	if c.SM.OK {
		return c.SM
	}
	return c.Active
}
