package main

import (
	"fmt"
	"sync"
	"time"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/envoy/protect"
	"github.com/weirproxy/weir/envoy/watch"
	"github.com/weirproxy/weir/internal/admin"
)

// timelineSize is how many entries are kept.
const timelineSize = 4096

// What an entry of the timeline is about.
const (
	entryTransition = "transition" // of a breaker; also a hold
	entryWatch      = "watch"      // a storm, protect mode, pings
	entryPush       = "push"       // a number that a cluster is told anew
	entryNack       = "nack"       // an Envoy refused what it was sent
	entryNode       = "node"       // an Envoy came or went
	entryHand       = "hand"       // what an operator did
	entryBus        = "bus"        // the way to other replicas
)

// entry is one thing that happened. What does not apply is left out.
type entry struct {
	Seq     uint64    `json:"seq"`
	At      time.Time `json:"at"`
	What    string    `json:"what"`
	Breaker string    `json:"breaker,omitempty"`
	Kind    string    `json:"kind,omitempty"` // of the breaker
	Cluster string    `json:"cluster,omitempty"`
	Node    string    `json:"node,omitempty"`
	Key     string    `json:"key,omitempty"` // the number, the event, the type, the action
	From    string    `json:"from,omitempty"`
	To      string    `json:"to,omitempty"`
	Because string    `json:"because,omitempty"`
	By      string    `json:"by,omitempty"` // who

	Requests int     `json:"requests,omitempty"`
	Failures int     `json:"failures,omitempty"`
	Limit    float64 `json:"limit,omitempty"`
	OpenMS   int64   `json:"open_ms,omitempty"`
}

// timeline keeps the latest entries in the order in which they came to it. The
// zero value is empty; safe for concurrent use.
type timeline struct {
	mu   sync.Mutex
	last uint64
	kept []entry
}

func (l *timeline) add(entries ...entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range entries {
		l.last++
		entries[i].Seq = l.last
		if len(l.kept) >= 2*timelineSize { // now and then, not each time
			l.kept = append(l.kept[:0], l.kept[len(l.kept)-timelineSize+1:]...)
		}
		l.kept = append(l.kept, entries[i])
	}
}

// timelineView is /debug/timeline. A reader asks for what came since Last; if
// First is more than one above what it had, it missed some.
type timelineView struct {
	First   uint64  `json:"first"` // the oldest that is kept; 0 = none
	Last    uint64  `json:"last"`  // the newest
	Entries []entry `json:"entries"`
}

func (l *timeline) view(q admin.TimelineQuery) timelineView {
	l.mu.Lock()
	defer l.mu.Unlock()
	kept := l.kept[max(0, len(l.kept)-timelineSize):]
	v := timelineView{Last: l.last, Entries: []entry{}}
	for i := range kept {
		e := &kept[i]
		if i == 0 {
			v.First = e.Seq
		}
		if e.Seq > q.Since && (q.Breaker == "" || e.Breaker == q.Breaker) && (q.Cluster == "" || e.Cluster == q.Cluster) {
			v.Entries = append(v.Entries, *e)
		}
	}
	return v
}

// transitionEntry tells a transition; cluster is that of the pool, "" of a
// tenant.
func transitionEntry(t *breaker.Transition, cluster string) entry {
	return entry{
		At: t.At, What: entryTransition, Breaker: t.Breaker, Kind: t.Kind.String(), Cluster: cluster, Key: t.Cause.String(),
		From: t.From.String(), To: t.To.String(), Because: becauseOf(t), By: t.By,
		Requests: t.Requests, Failures: t.Failures, Limit: t.Limit, OpenMS: t.Open.Milliseconds(),
	}
}

// becauseOf says a transition's cause in one sentence with its figures.
func becauseOf(t *breaker.Transition) string {
	switch t.Cause {
	case breaker.ByRatio:
		return fmt.Sprintf("%d of %d ends failed, %.0f %% and more are too many", t.Failures, t.Requests, 100*t.Limit)
	case breaker.ByTime:
		return "its open time is over"
	case breaker.ByProbes:
		return fmt.Sprintf("%d probes went well", t.Requests)
	case breaker.ByProbe:
		return "a probe failed"
	case breaker.ByGoAway:
		return "a storm of GOAWAYs: " + t.By
	case breaker.ByHand:
		switch {
		case t.Held < 0:
			return "held by hand until it is reset: " + t.By
		case t.Held > 0:
			return fmt.Sprintf("held by hand for %v: %s", t.Held, t.By)
		}
		return "by hand: " + t.By
	case breaker.ByPolicy:
		return "the policy switched it off"
	case breaker.ByOverrun:
		return "far over its quota: " + t.By
	case breaker.ByRestore:
		return "taken over from " + t.By
	}
	return t.Cause.String()
}

func watchEntry(e *watch.Event) entry {
	return entry{At: e.At, What: entryWatch, Cluster: e.Cluster, Key: e.What.String(), Because: e.Because}
}

func pushEntry(c *protect.Change) entry {
	return entry{At: c.At, What: entryPush, Cluster: c.Cluster, Key: c.Key, From: c.From, To: c.To, Because: c.Because}
}
