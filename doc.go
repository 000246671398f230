// Package weir is the floor plan of a Go sidecar that protects LLM inference
// behind Envoy. Envoy carries the bytes; weir decides for every request:
// admit, queue, degrade, 429 or 503.
//
// A request walks through the house like this:
//
//	envoy → authz → extproc → admission (quota, breaker, queue, gpu) → extproc → envoy
//
// Beside that walk, a loop closes over the street: breakers and what Envoys
// count become numbers and endpoints for Envoys, and words for other replicas:
//
//	envoy → watch → breaker ⇄ bus; breaker, watch, gpu → protect → xds → envoy
//
// The rooms, from the ground up (imports point downwards only; arch_test.go
// holds the table of arrows with a reason for each):
//
//	storey 0  policy     the house rules: weir.yaml → an immutable snapshot
//	storey 1  identity   who is asking: the record, scopes, parameter limits
//	          quota      the ledger: windows, reserve and settle (T1, T7, T8)
//	          breaker    the fuse box: closed, soft, hard, half-open; words of replicas (B1-B7)
//	          queue      the waiting room: fair order, deadlines, shares, hints, seats (P1-P9, Q1-Q9)
//	          gpu        the gauge: samples → smoothing → pressure (Q2, Q3, Q8)
//	storey 2  admission  the desk: Plan, Reserve, Enter; the reason table
//	storey 3  authz      the front door: tokens and keys; ext_authz Check
//	          extproc    the hallway: the ext_proc stream, bodies, usage meter, rendering
//	          envoy      the street: the Envoy sections that fit a policy; what Envoys count (watch),
//	                     what each cluster should be told (protect), where endpoints are (discovery),
//	                     the control plane that tells it (xds), what is wrong with a bootstrap (lint)
//	          internal   the basement: metrics and traces, reload, admin, the buses on which replicas
//	                     speak of their breakers (redisbus, etcdbus), the practice pool
//	                     (modelsim), the simulator that plays it and the cores in virtual time
//	          cmd/weir   the keys: flags, wiring, signals
//
// cmd/weir-gpu-agent is a hut of its own, on GPU nodes: it holds the libraries
// that can end a process (gpu/dcgm, gpu/nvml) and tells gpu/agent what it sees.
//
// Everything that decides is a core: a state machine whose methods take now
// and return what follows. No goroutine, timer, channel, log or metric lives
// inside. A shell gives a core its clock, its goroutines and its wire.
//
// Where to look for a rule:
//
//	status, reason, sentence for the client   admission/reasontable.go (one table)
//	who waits, who goes first, for how long   queue/
//	what is charged when                      quota/, admission
//	how full a pool is, and by whose word     gpu/, docs/telemetry.md; /debug/gpu of a running weir
//	what a policy does to a load              weir simulate: internal/simulate, examples/scenarios
//	an id such as Q2                          docs/mechanisms.md
//	a number, its unit, its meaning           docs/policy.md; policy/rooms.go, rules.go, traffic.go, identity.go
//	its key and bounds, its default           policy/table_*.go, policy/defaults.go
//	what happens when something dies          docs/failures.md
//	what Envoy has to be told                 examples/envoy/, weir envoy snippet, weir envoy cluster
//	when a breaker opens, who believes whom   breaker/; /debug/breakers, weir breaker list
//	a storm of GOAWAYs that opens it (B7)     seen in envoy/watch, carried by cmd/weir/streetstorm.go
//	answers broken off, first bytes too late  admission/losses.go, firstbyte.go (B6)
//	what Envoys are told while weir runs      envoy/protect, envoy/xds; /debug/envoys, /debug/timeline
//	who makes breakers' time pass, and wires  cmd/weir/street*.go
package weir
