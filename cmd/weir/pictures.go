package main

import (
	"time"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/policy"
)

// queueView is /debug/queue: the desk in names that operators know.
type queueView struct {
	At        time.Time `json:"at"`
	Draining  bool      `json:"draining"`
	Waiting   int       `json:"waiting"`
	Running   int       `json:"running"`
	HeldBytes int64     `json:"held_bytes"`

	Awaited      int64 `json:"awaited_bodies"`
	AwaitedBytes int64 `json:"awaited_bytes"`

	Pools  []poolView `json:"pools"`
	Shadow []poolView `json:"shadow,omitempty"`
}

type poolView struct {
	Name        string                  `json:"name"`
	Variant     policy.Variant          `json:"variant"`
	Cluster     string                  `json:"cluster"`
	Length      int                     `json:"length"`
	Waiting     map[string]int          `json:"waiting"`
	Retrying    int                     `json:"retrying"`
	Running     map[string]int          `json:"running"`
	Seats       seatsView               `json:"seats"`
	SeatsUsed   seatsView               `json:"seats_used"`
	Tuner       tunerView               `json:"tuner"`
	Lane        laneView                `json:"lane"`
	Tiers       []shareView             `json:"tiers"`
	Bookings    map[string]bookingsView `json:"bookings"`
	Tenants     int                     `json:"tenants"`
	DrainRate   float64                 `json:"drain_rate"`
	Demand      float64                 `json:"demand"`
	Breaker     string                  `json:"breaker"`
	Failures    float64                 `json:"failure_ratio"`
	Telemetry   bool                    `json:"telemetry"`
	Pressure    float64                 `json:"pressure"`
	AgeSeconds  float64                 `json:"age_seconds"`
	Stale       bool                    `json:"stale"`
	OverForced  uint64                  `json:"seats_forced"`
	DegradedIn  uint64                  `json:"degraded_in"`
	SeatSeconds float64                 `json:"seat_seconds"`
	FirstToken  float64                 `json:"first_token_seconds"` // of late; 0 = not known
	Speeds      []speedView             `json:"speeds"`
}

type seatsView struct {
	Requests int64 `json:"requests"`
	Tokens   int64 `json:"tokens"`
}

// tunerView is how many seats there should be, and why (Q9).
type tunerView struct {
	Wanted int64  `json:"wanted"`
	Least  int64  `json:"least,omitempty"` // none = fixed by policy
	Most   int64  `json:"most,omitempty"`
	Late   bool   `json:"first_tokens_late"`
	Raised int64  `json:"raised"`
	Alarm  bool   `json:"alarm"`
	Alarms uint64 `json:"alarms"`
}

// shareView is whose seats are whose (P8, P9).
type shareView struct {
	Name       string    `json:"name,omitempty"`
	Guaranteed seatsView `json:"guaranteed"`
	Used       seatsView `json:"used"`
	Streaming  int64     `json:"streaming"`
	Waiting    int       `json:"waiting"`
}

type laneView struct {
	Guaranteed  seatsView `json:"guaranteed"`
	Used        seatsView `json:"used"`
	Waiting     int       `json:"waiting"`
	PastBreaker int       `json:"past_breaker"`
}

// bookingsView are the hints given to callers of a class (Q5).
type bookingsView struct {
	Outstanding int    `json:"outstanding"`
	Due         int    `json:"due"`
	Claimed     uint64 `json:"claimed"`
	Lapsed      uint64 `json:"lapsed"`
}

// speedView is what was learnt of a model (P4).
type speedView struct {
	Model       string  `json:"model"`
	FirstToken  float64 `json:"first_token_seconds"`
	PromptToken float64 `json:"prompt_token_seconds"`
	OutputToken float64 `json:"output_token_seconds"`
}

func queuePicture(s admission.Snapshot) queueView {
	v := queueView{At: s.At, Draining: s.Draining, Running: s.Tickets, HeldBytes: s.HeldBytes, Awaited: s.Awaited, AwaitedBytes: s.AwaitedBytes, Pools: poolViews(s.Pools), Shadow: poolViews(s.Shadow)}
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
			Tuner:      tunerView{p.Wanted, p.Least, p.Most, p.Late, p.Raised, p.Alarm, p.Alarms},
			Lane:       laneView{seatsView(p.Priority.Seats), seatsView(p.Priority.Used), p.Priority.Waiting, p.Lane},
			Tiers:      []shareView{},
			Bookings:   map[string]bookingsView{},
			FirstToken: p.Latency.Seconds(),
			Speeds:     []speedView{},
		}
		for c := range policy.Class(policy.NumClasses) {
			v.Waiting[c.String()], v.Running[c.String()] = p.Line.Waiting[c], p.Line.Running[c]
			v.Bookings[c.String()] = bookingsView(p.Line.Bookings[c])
		}
		for _, t := range p.Tiers {
			v.Tiers = append(v.Tiers, shareView{t.Name, seatsView(t.Seats), seatsView(t.Used), t.Streaming, t.Waiting})
		}
		for _, m := range p.Speeds {
			v.Speeds = append(v.Speeds, speedView{m.Model, m.FirstToken.Seconds(), m.PromptToken.Seconds(), m.OutputToken.Seconds()})
		}
		out = append(out, v)
	}
	return out
}
