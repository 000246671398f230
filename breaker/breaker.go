package breaker

import "time"

// State of the machine (B1).
type State uint8

// The states. Soft and Hard are the two open levels.
const (
	Closed State = iota
	Soft         // open at the soft level: class 2 shed, class 1 degraded
	Hard         // open at the hard level: all 503
	HalfOpen
)

// Verdict is what the breaker says of one request.
type Verdict struct {
	Action     Action
	Probe      bool // half-open: this request decides
	State      State
	RetryAfter time.Duration // until the breaker may admit; 0 if admitted
}

// Action on a request.
type Action uint8

// The actions.
const (
	Admit Action = iota
	Degrade
	Shed
)
