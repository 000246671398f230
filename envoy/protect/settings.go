// Package protect decides what Envoy should be told: a pure function from
// breaker states, what is watched, and policy to one desired Settings for each
// cluster (B10), with hysteresis and a bound on the rate of changes.
package protect

import (
	"time"

	"github.com/weirproxy/weir/breaker"
)

// Settings are the numbers that one cluster should have in Envoy now. The
// zero value of a number is "as in Envoy's own file"; weir then pushes
// nothing for it. Settings are immutable.
type Settings struct {
	Cluster string

	MaxConnections, MaxPending, MaxRequests *int64 // circuit_breakers.<c>.default.*
	MaxRetries                              *int64
	BudgetPercent, MinRetries               *int64 // retry_budget: both 0 stop retries

	Maintenance int64 // upstream.maintenance_mode.<c>, 0..100 %
	Drop        int64 // EDS drop_overloads, 0..100 %

	Health map[string]Health // by endpoint address; what is absent is healthy

	Because []Reason // why it differs from the file, most important first; empty = it does not
}

// Health is an endpoint's health as EDS tells it.
type Health uint8

// The healths.
const (
	Healthy Health = iota
	Degraded
	Unhealthy
	Draining
)

// Reason is one part of the explanation.
type Reason struct {
	Rule string // mechanism id: B7, B8, B10
	Text string // with figures
}

// Input is what one cluster looks like at an instant.
type Input struct {
	Cluster  string
	Breakers []State         // of the pools behind it
	Storm    bool            // B7
	Protect  bool            // B8
	Share    float64         // connections / normal, 0..1; of meaning with Protect
	Running  int64           // requests that Envoy has under way there
	Unwell   map[string]bool // endpoints that the gauge thinks unwell
	At       time.Time
}

// State is one pool's breaker.
type State struct {
	Pool    string
	State   breaker.State
	Level   breaker.State
	Release float64   // share admitted, 0..1
	Held    bool      // by hand
	Since   time.Time // of the state
}
