package main

import (
	"time"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/policy"
)

// queueView is /debug/queue: the desk in names that operators know.
type queueView struct {
	At        time.Time  `json:"at"`
	Draining  bool       `json:"draining"`
	Waiting   int        `json:"waiting"`
	Running   int        `json:"running"`
	HeldBytes int64      `json:"held_bytes"`
	Pools     []poolView `json:"pools"`
	Shadow    []poolView `json:"shadow,omitempty"`
}

type poolView struct {
	Name        string         `json:"name"`
	Variant     policy.Variant `json:"variant"`
	Cluster     string         `json:"cluster"`
	Length      int            `json:"length"`
	Waiting     map[string]int `json:"waiting"`
	Retrying    int            `json:"retrying"`
	Running     map[string]int `json:"running"`
	Seats       seatsView      `json:"seats"`
	SeatsUsed   seatsView      `json:"seats_used"`
	Tenants     int            `json:"tenants"`
	DrainRate   float64        `json:"drain_rate"`
	Demand      float64        `json:"demand"`
	Breaker     string         `json:"breaker"`
	Failures    float64        `json:"failure_ratio"`
	Telemetry   bool           `json:"telemetry"`
	Pressure    float64        `json:"pressure"`
	AgeSeconds  float64        `json:"age_seconds"`
	Stale       bool           `json:"stale"`
	OverForced  uint64         `json:"seats_forced"`
	DegradedIn  uint64         `json:"degraded_in"`
	SeatSeconds float64        `json:"seat_seconds"`
}

type seatsView struct {
	Requests int64 `json:"requests"`
	Tokens   int64 `json:"tokens"`
}

func queuePicture(s admission.Snapshot) queueView {
	v := queueView{At: s.At, Draining: s.Draining, Running: s.Tickets, HeldBytes: s.HeldBytes, Pools: poolViews(s.Pools), Shadow: poolViews(s.Shadow)}
	for i := range s.Pools {
		for _, n := range s.Pools[i].Line.Waiting {
			v.Waiting += n
		}
		v.Waiting += s.Pools[i].Line.Retrying
	}
	return v
}

func poolViews(pools []admission.PoolStats) []poolView {
	out := make([]poolView, 0, len(pools))
	for i := range pools {
		p := &pools[i]
		v := poolView{
			Name: p.Name, Variant: p.Variant, Cluster: p.Cluster, Length: p.Length, Retrying: p.Line.Retrying,
			Waiting: map[string]int{}, Running: map[string]int{}, Seats: seatsView(p.Line.SeatsTotal), SeatsUsed: seatsView(p.Line.SeatsUsed),
			Tenants: p.Line.Tenants, DrainRate: p.Line.DrainRate, Demand: p.Demand, Breaker: p.Breaker.State.String(),
			Failures: p.Breaker.Ratio, Telemetry: p.Telemetry, Pressure: p.Pressure, AgeSeconds: p.Age.Seconds(), Stale: p.Stale,
			OverForced: p.Overdue, DegradedIn: p.Degraded, SeatSeconds: p.SeatTime.Seconds(),
		}
		for c := range policy.Class(policy.NumClasses) {
			v.Waiting[c.String()], v.Running[c.String()] = p.Line.Waiting[c], p.Line.Running[c]
		}
		out = append(out, v)
	}
	return out
}
