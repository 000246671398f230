// Package simulate plays a scenario (arrivals, clients, engines, failures) in
// virtual time against the very cores that serve real traffic, and says what
// became of every request.
//
// It holds no rule of weir's own: a request is decided by admission.Core
// (Plan, Enter, Advance, Done), its claims by quota/memstore, its pressure by
// gpu.Gauge; only the clock (an event heap), the clients and the engines are
// played. Each run is determined by the scenario and its seed.
//
// Engines are a batch (modelsim.Batch, the machine of the real-time simulator)
// or a service of places, which without a queue loses by Erlang's B formula.
// What a request needs is drawn from dice of its own, so that every policy
// meets the same requests at the same instants.
//
// Invariants, checked in every run: a seat is only given where one is free, no
// request waits beyond its limit, every try is decided exactly once and with
// a reason, nothing is left at the end.
//
// A run keeps who is alive, the waits and latencies of the requests that are
// judged (16 bytes each) and a sample a second.
package simulate
