// Package admission is the desk: one question, one answer. It brings the
// rooms together (quota, breaker, queue, gauge) and says of every request
// whether it runs now, waits, runs at a lower precision, or is refused, and
// with what words.
//
// Core is the part that decides: a state machine without clock, goroutine,
// timer or store. Desk is the shell that gives a core its time, its store and
// its waiting callers. A request is decided in three calls, because a core
// cannot wait for a store:
//
//	plan := core.Plan(now, request)                      // tenant, pool, breaker, the claims to make
//	verdict := store.Reserve(ctx, now, id, plan.Claims)  // takes all or nothing (T8)
//	outcome := core.Enter(now, plan, verdict)            // admitted, waiting, refused
//
// Mechanisms: V1 and V2 (which precision, at what rate), P1-P4 and P6-P9
// (class, order, expiry, run time, shares, lane), Q1, Q5-Q7 and Q9 (length,
// refusals, hints, seats), T7 and T8 (claims, settlement), B1, B2 and B6
// (breaker), O4 (shadow, pass).
//
// Invariants: every admitted request gives its seat back exactly once; every
// reservation is settled exactly once; a request is decided exactly once,
// with a reason of the closed list; at most the lane's seats run past an open
// breaker, and none of them decides it; degrading never goes up in precision and
// never queues at expiry; one pool's lock is never held while another's is
// taken, and no lock is shared by all requests.
package admission
