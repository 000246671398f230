package policy

import "sync/atomic"

// Holder is the place where the policy in force is kept. Readers and the
// writer need no lock; a request asks once and keeps its answer. The zero
// value holds nil.
type Holder struct{ current atomic.Pointer[Policy] }

// NewHolder makes a holder with a policy in force.
func NewHolder(p *Policy) *Holder {
	h := &Holder{}
	h.current.Store(p)
	return h
}

// Current is the policy in force.
func (h *Holder) Current() *Policy { return h.current.Load() }

// Swap puts a new policy in force and returns the one before.
func (h *Holder) Swap(p *Policy) *Policy { return h.current.Swap(p) }
