package gpu

import (
	"context"
	"errors"
)

// Fault is why a reading, or a whole look, was left out. The set is closed,
// so that each kind can be counted.
type Fault uint8

// The faults. Those up to FaultEndpoints are of readings in a look that came,
// the others of looks that did not.
const (
	FaultOther     Fault = iota
	FaultBlank           // a sentinel that says "no value"
	FaultNumber          // not a number, or infinite
	FaultRange           // negative, or more than can be
	FaultDuplicate       // the same series again
	FaultCounter         // a running total where a present value is wanted
	FaultReset           // a running total that fell
	FaultEndpoints       // the file of endpoints cannot be read; the last good one stays

	FaultConnect  // no connection, or it broke
	FaultTimeout  // no whole answer in time
	FaultStatus   // refused, or an error
	FaultRedirect // sent elsewhere
	FaultType     // another kind of document (HTML, JSON)
	FaultSize     // too large
	FaultForm     // not well formed, or cut off
	FaultEmpty    // none of the wanted metrics
	NumFaults
)

// String is the fault as a metric's label has it.
func (f Fault) String() string {
	names := [NumFaults]string{
		"other", "blank", "number", "range", "duplicate", "counter", "reset", "endpoints",
		"connect", "timeout", "status", "redirect", "type", "size", "form", "empty",
	}
	return names[min(f, NumFaults-1)]
}

// Faults counts by kind.
type Faults [NumFaults]uint64

// Missed marks the error of a look with its fault.
func Missed(f Fault, err error) error { return &missed{f, err} }

type missed struct {
	fault Fault
	error
}

func (m *missed) Unwrap() error { return m.error }

// FaultOf is the fault of a look's error. One that ran out of time is a
// timeout whatever it was marked.
func FaultOf(err error) Fault {
	if errors.Is(err, context.DeadlineExceeded) {
		return FaultTimeout
	}
	var m *missed
	if errors.As(err, &m) {
		return m.fault
	}
	return FaultOther
}
