package main

import (
	"fmt"
	"time"

	"github.com/weirproxy/weir/breaker"
)

// breakersView is /debug/breakers.
type breakersView struct {
	At       time.Time     `json:"at"`
	Replica  string        `json:"replica"`
	Bus      string        `json:"bus"` // up, away, off
	Heard    *float64      `json:"bus_age_seconds,omitempty"`
	Breakers []breakerView `json:"breakers"`
	Known    int           `json:"tenants_known"`
	Tenants  []breakerView `json:"tenants"` // those that are not closed, or held; the first 1000 by name
}

// breakerView is one breaker. Seconds and shares are decimal numbers.
type breakerView struct {
	Name    string     `json:"name"`
	Kind    string     `json:"kind"`
	Cluster string     `json:"cluster,omitempty"`
	State   string     `json:"state"`
	Level   string     `json:"level,omitempty"`
	Since   *time.Time `json:"since,omitempty"` // none = closed from the start
	Left    float64    `json:"open_left_seconds,omitempty"`
	Release float64    `json:"release"`
	Cause   string     `json:"cause,omitempty"` // of the latest transition
	By      string     `json:"by,omitempty"`

	Requests    int     `json:"requests"` // in the window
	Failures    int     `json:"failures"`
	Ratio       float64 `json:"failure_ratio"`
	MinRequests int     `json:"min_requests"`
	Soft        float64 `json:"soft"` // thresholds in force (B4)
	Hard        float64 `json:"hard"`

	Held      *heldView      `json:"held,omitempty"`
	Elsewhere *elsewhereView `json:"elsewhere,omitempty"`
	Next      nextView       `json:"next"`
}

type heldView struct {
	Until *time.Time `json:"until,omitempty"` // none = until it is reset
	By    string     `json:"by"`
}

// elsewhereView is what other replicas say (B3).
type elsewhereView struct {
	State string     `json:"state"`
	Votes int        `json:"votes"`
	Open  int        `json:"open"`
	Sheds bool       `json:"sheds_batch"`
	Words []wordView `json:"words"`
}

type wordView struct {
	Replica  string    `json:"replica"`
	State    string    `json:"state"`
	Level    string    `json:"level,omitempty"`
	Requests int       `json:"requests"`
	Failures int       `json:"failures"`
	Since    time.Time `json:"since"` // by its own clock
	TTL      float64   `json:"ttl_seconds"`
}

// nextView is what can happen next, and when.
type nextView struct {
	To   string   `json:"to"`
	In   *float64 `json:"in_seconds,omitempty"` // none = when it comes to that
	When string   `json:"when"`
}

// listedTenants bounds the list of tenants.
const listedTenants = 1000

// breakers is the picture of all breakers.
func (s *street) breakers(now time.Time) any {
	v := breakersView{At: now, Replica: s.o.Replica, Bus: "off", Known: s.o.Desk.Tenants().Known(), Breakers: []breakerView{}, Tenants: []breakerView{}}
	if s.speaker != nil {
		up, age, _ := s.speaker.state(now)
		v.Bus = "away"
		if up {
			v.Bus = "up"
		}
		seconds := age.Seconds()
		v.Heard = &seconds
	}
	for _, b := range s.o.Desk.Breakers(now) {
		br := s.o.Desk.Breaker(b.Pool)
		if br == nil {
			continue // a reload took it away just now
		}
		one := viewOf(now, &b.View, br)
		one.Cluster = b.Cluster
		one.Elsewhere = &elsewhereView{b.Ruling.Elsewhere.String(), b.Ruling.Votes, b.Ruling.Open, b.Sheds, s.words(now, b.Pool, b.View.Kind)}
		v.Breakers = append(v.Breakers, one)
	}
	troubled := s.o.Desk.Tenants().Troubled(now)
	for i := range troubled[:min(len(troubled), listedTenants)] {
		if br := s.o.Desk.Tenants().Get(troubled[i].Name); br != nil {
			v.Tenants = append(v.Tenants, viewOf(now, &troubled[i], br))
		}
	}
	return v
}

func (s *street) words(now time.Time, name string, kind breaker.Kind) []wordView {
	out := []wordView{}
	for _, o := range s.o.Council.Words(now, name, kind) {
		w := wordView{o.Replica, o.State.String(), "", o.Requests, o.Failures, o.Since, o.TTL.Seconds()}
		if o.State != breaker.Closed {
			w.Level = o.Level.String()
		}
		out = append(out, w)
	}
	return out
}

func viewOf(now time.Time, v *breaker.View, b *breaker.Breaker) breakerView {
	out := breakerView{
		Name: v.Name, Kind: v.Kind.String(), State: v.State.String(), Left: v.Left.Seconds(), Release: v.Release, By: v.By,
		Requests: v.Requests, Failures: v.Failures, Ratio: v.Ratio,
	}
	out.Soft, out.Hard, out.MinRequests = b.Limits(now)
	if v.State != breaker.Closed {
		out.Level = v.Level.String()
	}
	if v.Cause != 0 {
		out.Cause = v.Cause.String()
	}
	if !v.Since.IsZero() {
		out.Since = &v.Since
	}
	if v.Held {
		out.Held = &heldView{By: v.HeldBy}
		if !v.HeldUntil.IsZero() {
			out.Held.Until = &v.HeldUntil
		}
	}
	out.Next = next(now, v, &out)
	return out
}

// next says the transition that is possible next.
func next(now time.Time, v *breaker.View, out *breakerView) nextView {
	in := func(d time.Duration) *float64 { s := max(0, d.Seconds()); return &s }
	switch {
	case v.Held && v.HeldUntil.IsZero():
		return nextView{To: v.State.String(), When: "held until it is reset or tripped"}
	case v.Held:
		return nextView{To: v.State.String(), In: in(v.HeldUntil.Sub(now)), When: "the hold is over; then it goes on from there"}
	case v.State == breaker.Closed:
		return nextView{To: "soft", When: fmt.Sprintf("%.0f %% of at least %d ends fail; hard from %.0f %%", 100*out.Soft, out.MinRequests, 100*out.Hard)}
	case v.State == breaker.HalfOpen:
		return nextView{To: "closed", When: fmt.Sprintf("the steps of the release went well; %s again when a probe fails", v.Level)}
	}
	return nextView{To: "half_open", In: in(v.Left), When: "its open time is over"}
}
