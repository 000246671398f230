package breaker

import (
	"sync"
	"time"
)

// Kind is the profile that a breaker runs by (B1).
type Kind uint8

// The kinds.
const (
	HTTP Kind = iota
	GRPC
	Tenant
)

// String is the name used in metrics and logs.
func (k Kind) String() string {
	switch k {
	case HTTP:
		return "http"
	case GRPC:
		return "grpc"
	case Tenant:
		return "tenant"
	}
	return "unknown"
}

// Cause says why a breaker changed its state.
type Cause uint8

// The causes.
const (
	ByRatio   Cause = iota + 1 // failures in the window
	ByTime                     // the open time is over
	ByProbes                   // the probes went well
	ByProbe                    // a probe failed
	ByGoAway                   // B7: a storm of GOAWAYs
	ByHand                     // an operator: trip, reset or hold
	ByPolicy                   // switched off in the policy
	ByOverrun                  // T2: a tenant far over its quota
	ByRestore                  // taken over from a peer or an earlier life
)

// String is the name used in metrics and logs.
func (c Cause) String() string {
	names := [...]string{"", "ratio", "open_time_over", "probes_good", "probe_failed", "goaway", "hand", "policy", "overrun", "restore"}
	if int(c) < len(names) {
		return names[c]
	}
	return "unknown"
}

// Transition is one change of state with the figures that caused it. A hold
// (Held) is journaled too, from the state to itself.
type Transition struct {
	Seq      uint64 // in the journal, from 1
	Breaker  string // name of the pool, or of the tenant
	Kind     Kind
	From, To State
	At       time.Time
	Cause    Cause

	// Requests and Failures are those in the window at that time; with ByProbe
	// and ByProbes those of the probes since half-open.
	Requests int
	Failures int

	Limit float64       // the threshold that was reached, with ByRatio; else 0
	Open  time.Duration // how long it stays open; 0 unless To is Soft or Hard
	Held  time.Duration // with a hold: for how long; negative = until it is reset; else 0
	By    string        // who, with ByHand; what was seen, with ByGoAway and ByOverrun; from whom, with ByRestore
}

// Journal keeps the latest transitions of many breakers in order. The zero
// value keeps 1024. Safe for concurrent use; it is touched only when a
// breaker changes its state.
type Journal struct {
	Max int // kept; 0 = 1024

	mu      sync.Mutex
	last    uint64
	kept    []Transition
	changed chan struct{} // closed by the next Add; nil = nobody asked
}

// Add appends a transition and numbers it.
func (j *Journal) Add(t Transition) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.last++
	t.Seq = j.last
	if len(j.kept) >= 2*j.most() { // now and then, not each time
		j.kept = append(j.kept[:0], j.kept[len(j.kept)-j.most()+1:]...)
	}
	j.kept = append(j.kept, t)
	if j.changed != nil {
		close(j.changed)
		j.changed = nil
	}
}

func (j *Journal) most() int {
	if j.Max > 0 {
		return j.Max
	}
	return 1024
}

// Since gives the transitions after seq that are still kept, oldest first, and
// a channel that is closed by the next one.
func (j *Journal) Since(seq uint64) ([]Transition, <-chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.changed == nil {
		j.changed = make(chan struct{})
	}
	i, oldest := len(j.kept), max(0, len(j.kept)-j.most())
	for i > oldest && j.kept[i-1].Seq > seq {
		i--
	}
	return append([]Transition(nil), j.kept[i:]...), j.changed
}
