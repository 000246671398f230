package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/identity"
	"github.com/weirproxy/weir/internal/admin"
)

// handView answers an action: what was done, and the breaker afterwards.
type handView struct {
	Action  string      `json:"action"`
	Before  string      `json:"before"`
	After   string      `json:"after"`
	Breaker breakerView `json:"breaker"`
}

// act does what an operator asks, and writes down who asked, what, and what it
// changed: to the timeline and, whatever the log's level is, to the log.
func (s *street) act(ctx context.Context, audit *slog.Logger, a admin.Action) (any, error) {
	now := time.Now()
	by := a.Who
	if a.Reason != "" {
		by += ": " + a.Reason
	}
	before, err := s.find(now, &a)
	if err != nil {
		return nil, err
	}
	if !s.do(now, &a, by) {
		return nil, &admin.ActionError{Code: http.StatusConflict, Text: fmt.Sprintf("the breaker of %s %s is switched off in the policy, or there is no room for it", kindWord(a.Tenant), a.Breaker)}
	}
	b := s.machine(&a)
	v := breaker.View{Name: a.Breaker, Kind: breaker.Tenant, Release: 1}
	out := handView{Action: a.Do, Before: before}
	if b != nil {
		v = b.View(now)
		out.Breaker = viewOf(now, &v, b)
	}
	cluster := ""
	if !a.Tenant {
		cluster = clusterOf(s.o.Policy(), a.Breaker)
	}
	out.Breaker.Cluster = cluster
	out.After = stateWord(&v)
	s.timeline.add(entry{
		At: now, What: entryHand, Breaker: a.Breaker, Kind: kindWord(a.Tenant), Cluster: cluster, Key: a.Do,
		From: out.Before, To: out.After, Because: a.Reason, By: a.Who, OpenMS: a.For.Milliseconds(),
	})
	audit.LogAttrs(ctx, slog.LevelInfo, "breaker action", slog.Bool("audit", true), slog.String("who", a.Who), slog.String("action", a.Do),
		slog.String("breaker", a.Breaker), slog.String("kind", kindWord(a.Tenant)), slog.String("level", a.Level), slog.String("for", forWord(a.For)),
		slog.String("before", out.Before), slog.String("after", out.After), slog.String("reason", a.Reason))
	return out, nil
}

// find gives the state before an action; an error names what is known.
func (s *street) find(now time.Time, a *admin.Action) (before string, err error) {
	if b := s.machine(a); b != nil {
		v := b.View(now)
		return stateWord(&v), nil
	}
	if a.Tenant && a.Do != "reset" { // a tenant's is made when it is needed
		if err := identity.CheckTenant(a.Breaker); err != nil {
			return "", &admin.ActionError{Code: http.StatusBadRequest, Text: "no tenant can be called so: " + err.Error()}
		}
		return breaker.Closed.String(), nil
	}
	e := &admin.ActionError{Code: http.StatusNotFound, Known: []string{}}
	if a.Tenant {
		for _, v := range s.o.Desk.Tenants().Troubled(now) {
			e.Known = append(e.Known, v.Name)
		}
		e.Known = e.Known[:min(len(e.Known), 100)]
		e.Text = fmt.Sprintf("tenant %q has no breaker", a.Breaker)
		return "", e
	}
	for _, b := range s.o.Desk.Breakers(now) {
		e.Known = append(e.Known, b.Pool)
	}
	slices.Sort(e.Known)
	e.Text = fmt.Sprintf("there is no pool %q; the breakers are %s", a.Breaker, strings.Join(e.Known, ", "))
	return "", e
}

// machine is the breaker that an action is about; nil = there is none.
func (s *street) machine(a *admin.Action) *breaker.Breaker {
	if a.Tenant {
		return s.o.Desk.Tenants().Get(a.Breaker)
	}
	return s.o.Desk.Breaker(a.Breaker)
}

// do is the action; false = the breaker is switched off.
func (s *street) do(now time.Time, a *admin.Action, by string) bool {
	level := breaker.Hard
	if a.Level == "soft" {
		level = breaker.Soft
	}
	until := time.Time{}
	if a.For > 0 {
		until = now.Add(a.For)
	}
	b := s.machine(a)
	switch {
	case a.Tenant && a.Do == "trip":
		return s.o.Desk.Tenants().Trip(now, a.Breaker, level, a.For, by)
	case a.Tenant && a.Do == "hold":
		return s.o.Desk.Tenants().Hold(now, a.Breaker, until, by)
	case b == nil: // a reload took it away just now
		return false
	case a.Do == "trip":
		return b.Trip(now, level, a.For, by)
	case a.Do == "hold":
		return b.Hold(now, until, by)
	}
	b.Reset(now, by)
	return true
}

// stateWord is a state as audit and timeline tell it.
func stateWord(v *breaker.View) string {
	if v.Held {
		return v.State.String() + ", held"
	}
	return v.State.String()
}

func kindWord(tenant bool) string {
	if tenant {
		return "tenant"
	}
	return "pool"
}

// forWord is "" where no time was given.
func forWord(d time.Duration) string {
	if d <= 0 {
		return ""
	}
	return d.String()
}
