package protect

import (
	"iter"
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

// Runtime gives the runtime keys of s (RTDS) with their values: flat keys,
// whole numbers, as Envoy reads them. Drop and Health travel with endpoints.
func (s *Settings) Runtime() iter.Seq2[string, int64] {
	return func(yield func(string, int64) bool) {
		m := measureOf(s)
		for f := range drop {
			if m.n[f] == m.file(f) {
				continue
			}
			if !yield(f.key(s.Cluster), m.value(f)) {
				return
			}
		}
	}
}

// Health is an endpoint's health as EDS tells it.
type Health uint8

// The healths, each worse than the one before.
const (
	Healthy Health = iota
	Degraded
	Unhealthy
	Draining
)

// String is the name used in the timeline.
func (h Health) String() string {
	switch h {
	case Healthy:
		return "healthy"
	case Degraded:
		return "degraded"
	case Unhealthy:
		return "unhealthy"
	case Draining:
		return "draining"
	}
	return "unknown"
}

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
	Seen     string          // what was seen of Storm and Protect, with figures; "" = not told
	Share    float64         // connections / normal, 0..1; of meaning with Protect
	Running  int64           // requests under way there, in the Envoy that has most
	Hosts    int             // endpoints of the cluster; 0 = not known
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

// Change is one number of one cluster that is told anew, for the timeline.
type Change struct {
	At       time.Time
	Cluster  string
	Key      string // runtime key; "drop_overloads"; "health ADDRESS"
	From, To string // numbers; "file" = as in Envoy's own file
	Because  string // with figures
}
