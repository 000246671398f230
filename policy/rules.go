package policy

import (
	"cmp"
	"time"
)

// ClassPolicy is one of the three classes (P1, P3).
type ClassPolicy struct {
	Class    Class
	Weight   int           // 3, 2, 1
	MaxWait  time.Duration // 200ms, 500ms, 1s
	OnExpiry Expiry
	Variant  Variant // V1
	Mode     Mode    // shadow by class; default the policy's

	modeSet    bool // Mode is the class's own
	degradeSet bool // OnExpiry is degrade because the file says so
}

// Expiry is what follows when MaxWait ends (P3).
type Expiry uint8

// ExpireDrop = 503; ExpireDegrade = a free seat of the next pool down, else
// 429; ExpireRetry = still held, served from spare seats only, then 429.
const (
	ExpireDrop Expiry = iota
	ExpireDegrade
	ExpireRetry
	ExpireReject // P7: 429; not in the file
)

// Tier weighs tenants inside a class (P2).
type Tier struct {
	Name   string
	Weight float64 // default 1
	Share  Ratio   // P9: of a pool's seats, guaranteed to the tier as a group; gold 20 %, silver 60 %, bronze 20 %, others 0
}

// TenantRule overrides what the token claims; the first match wins.
type TenantRule struct {
	Match  Match
	Tier   string
	Class  *Class // caps the class; nil = the token's
	Models []string
	Block  bool // refuse every call
}

// Match selects requests; every non-empty field must match. "*" matches any
// non-empty value, a trailing * is a prefix glob.
type Match struct {
	Tenant, Tier, User, Key, Model, Function string
	Class                                    *Class
}

// QuotaRule is one counter family (T7): match selects, by names the counter;
// every matching rule binds.
type QuotaRule struct {
	Name   string
	ID     string // under which usage is counted; "" = Name. One that stays lets the usage of a renamed rule stay
	Match  Match
	By     []string // tenant, key, user, model, function, class; empty = one counter for all
	Limits []Limit
}

// CountedAs is the name under which the rule's usage is counted.
func (q *QuotaRule) CountedAs() string { return cmp.Or(q.ID, q.Name) }

// Limit is one bound of a rule. Per is 0 for Concurrency.
type Limit struct {
	Unit Unit
	Max  int64
	Per  time.Duration
}

// Unit is what a limit counts (T7).
type Unit uint8

// The units of this release; Tokens counts input plus output.
const (
	Requests Unit = iota
	Tokens
	InputTokens
	OutputTokens
	Concurrency
)
