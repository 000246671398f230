// Package simulate plays a scenario (arrivals, clients, engines, failures) in
// virtual time against the very cores that serve real traffic, and says what
// became of every request.
//
// It holds no rule of weir's own: a request is decided by admission.Core
// (Plan, Enter, Advance, Done), its claims by quota/memstore, its pressure by
// gpu.Gauge; only the clock (an event heap), the clients and the engines are
// played. Each run is determined by the scenario and its seed.
//
// Invariants, checked in every run: seats out never exceed the seats, no
// request waits beyond its limit, every request is decided exactly once and
// with a reason.
package simulate
