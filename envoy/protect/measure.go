package protect

import (
	"fmt"
	"maps"
	"math"
	"strconv"
)

// field is a number of Settings.
type field int

// The numbers. Those before drop have runtime keys.
const (
	maxConnections field = iota
	maxPending
	maxRequests
	maxRetries
	budgetPercent
	minRetries
	maintenance
	drop
	fields
)

// key is the runtime key, or the word for the timeline.
func (f field) key(cluster string) string {
	threshold := "circuit_breakers." + cluster + ".default."
	switch f {
	case maxConnections:
		return threshold + "max_connections"
	case maxPending:
		return threshold + "max_pending_requests"
	case maxRequests:
		return threshold + "max_requests"
	case maxRetries:
		return threshold + "max_retries"
	case budgetPercent:
		return threshold + "retry_budget.budget_percent"
	case minRetries:
		return threshold + "retry_budget.min_retry_concurrency"
	case maintenance:
		return "upstream.maintenance_mode." + cluster
	}
	return "drop_overloads"
}

// measure is Settings so that in every number lower is tighter: shares that
// are dropped are negative.
type measure struct {
	n      [fields]int64
	health map[string]Health
}

// file is the number that stands for "as in Envoy's own file".
func (measure) file(f field) int64 {
	if f >= maintenance {
		return 0
	}
	return math.MaxInt64
}

// value is the number as Envoy is told it.
func (m measure) value(f field) int64 {
	if f >= maintenance {
		return -m.n[f]
	}
	return m.n[f]
}

// word is the number for the timeline.
func (m measure) word(f field) string {
	switch {
	case m.n[f] == m.file(f):
		return "file"
	case f >= maintenance:
		return strconv.FormatInt(-m.n[f], 10) + " %"
	}
	return strconv.FormatInt(m.n[f], 10)
}

func measureOf(s *Settings) measure {
	m := measure{health: s.Health}
	for f, p := range [...]*int64{s.MaxConnections, s.MaxPending, s.MaxRequests, s.MaxRetries, s.BudgetPercent, s.MinRetries} {
		m.n[f] = math.MaxInt64
		if p != nil {
			m.n[f] = *p
		}
	}
	m.n[maintenance], m.n[drop] = -s.Maintenance, -s.Drop
	return m
}

// settings is the way back.
func (m measure) settings(cluster string) Settings {
	at := func(f field) *int64 {
		if m.n[f] == math.MaxInt64 {
			return nil
		}
		return &m.n[f]
	}
	return Settings{
		Cluster:        cluster,
		MaxConnections: at(maxConnections), MaxPending: at(maxPending), MaxRequests: at(maxRequests),
		MaxRetries: at(maxRetries), BudgetPercent: at(budgetPercent), MinRetries: at(minRetries),
		Maintenance: -m.n[maintenance], Drop: -m.n[drop],
		Health: m.health,
	}
}

func (m measure) equal(o measure) bool {
	return m.n == o.n && maps.Equal(m.health, o.health)
}

// tighter reports whether m is tighter than o in some number.
func (m measure) tighter(o measure) bool {
	for f := range fields {
		if m.n[f] < o.n[f] {
			return true
		}
	}
	for host, h := range m.health {
		if h > o.health[host] {
			return true
		}
	}
	return false
}

// tightest is the tighter of both in every number.
func (m measure) tightest(o measure) measure {
	for f := range fields {
		m.n[f] = min(m.n[f], o.n[f])
	}
	if len(o.health) == 0 {
		return m
	}
	health := make(map[string]Health, len(m.health)+len(o.health))
	maps.Copy(health, m.health)
	for host, h := range o.health {
		health[host] = max(health[host], h)
	}
	m.health = health
	return m
}

// loosest is the looser of both in every number.
func (m measure) loosest(o measure) measure {
	for f := range fields {
		m.n[f] = max(m.n[f], o.n[f])
	}
	health := m.health
	m.health = nil
	for host, h := range health {
		if h = min(h, o.health[host]); h == Healthy {
			continue
		}
		if m.health == nil {
			m.health = make(map[string]Health, len(health))
		}
		m.health[host] = h
	}
	return m
}

// differences calls fn with each number that differs, in words.
func (m measure) differences(o measure, cluster string, fn func(key, from, to string)) {
	for f := range fields {
		if m.n[f] != o.n[f] {
			fn(f.key(cluster), m.word(f), o.word(f))
		}
	}
	if maps.Equal(m.health, o.health) {
		return
	}
	for _, host := range union(m.health, o.health) {
		if from, to := m.health[host], o.health[host]; from != to {
			fn("health "+host, fmt.Sprint(from), fmt.Sprint(to))
		}
	}
}
