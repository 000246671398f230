package redisstore

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirproxy/weir/internal/redisclient"
	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
)

// Reason is why Redis did not decide: a closed list, for metrics.
type Reason uint8

// The reasons. All but ReasonError are outages: the store stays away from
// Redis until a probe succeeds. ReasonError is about one key (a foreign value
// under our name makes a script fail) and concerns the one decision, except at
// the start.
const (
	ReasonTimeout     Reason = iota // no answer in time
	ReasonConnection                // refused, reset, closed, unknown host
	ReasonPool                      // no free connection in time
	ReasonReadOnly                  // a replica, or too few of them
	ReasonClusterDown               // CLUSTERDOWN, TRYAGAIN, too many redirects
	ReasonLoading                   // LOADING
	ReasonMasterDown                // MASTERDOWN
	ReasonBusy                      // BUSY: a script runs too long
	ReasonOOM                       // OOM, MISCONF: writes are refused
	ReasonAuth                      // NOAUTH, WRONGPASS, NOPERM, a right denied inside a script
	ReasonError                     // a script failed
	ReasonProtocol                  // any other answer: of no form that was asked for
	reasons
)

var reasonNames = [reasons]string{
	"timeout", "connection", "pool", "readonly", "clusterdown", "loading",
	"masterdown", "busy", "oom", "auth", "error", "protocol",
}

// String is the metric label.
func (r Reason) String() string {
	if r < reasons {
		return reasonNames[r]
	}
	return "unknown"
}

// words are looked for anywhere in an error that Redis answered, because
// proxies put words of their own before them.
var words = []struct {
	word   string
	reason Reason
}{
	{"READONLY", ReasonReadOnly}, {"NOREPLICAS", ReasonReadOnly},
	{"CLUSTERDOWN", ReasonClusterDown}, {"TRYAGAIN", ReasonClusterDown}, {"MOVED", ReasonClusterDown}, {"ASK", ReasonClusterDown},
	{"LOADING", ReasonLoading}, {"MASTERDOWN", ReasonMasterDown}, {"BUSY", ReasonBusy},
	{"OOM", ReasonOOM}, {"MISCONF", ReasonOOM},
	{"NOAUTH", ReasonAuth}, {"WRONGPASS", ReasonAuth}, {"NOPERM", ReasonAuth},
	{"can't run this command", ReasonAuth}, {"can't access at least one of the", ReasonAuth}, {"invalid password", ReasonAuth}, {"without any password", ReasonAuth},
	{"non local key", ReasonClusterDown}, {"the cluster is down", ReasonClusterDown},
	{"max number of clients", ReasonConnection}, {"UNBLOCKED", ReasonConnection},
}

// classify sorts an error into a reason.
func classify(err error) Reason {
	var answer redis.Error
	var network net.Error
	var denied *redisclient.RightsError
	switch {
	case errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted):
		return ReasonPool
	case errors.As(err, &denied):
		return ReasonAuth
	case errors.Is(err, errReply), errors.Is(err, redis.Nil), errors.Is(err, redisclient.ErrProtocol):
		return ReasonProtocol
	case errors.As(err, &answer):
		return classifyAnswer(answer.Error())
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return ReasonTimeout
	}
	return ReasonConnection
}

// classifyAnswer looks at the first words only: what follows may be a key.
func classifyAnswer(text string) Reason {
	head := text[:min(len(text), 64)]
	for _, w := range words {
		if strings.Contains(head, w.word) {
			return w.reason
		}
	}
	// A script's error is wrapped in ours: the word may come later. No key has
	// a space in it.
	for _, w := range words {
		if strings.Contains(text, "-"+w.word+" ") || strings.Contains(text, ": "+w.word+" ") ||
			strings.Contains(w.word, " ") && strings.Contains(text, w.word) {
			return w.reason
		}
	}
	if strings.Contains(text, "WRONGTYPE") || strings.Contains(text, "script") {
		return ReasonError
	}
	return ReasonProtocol
}

// outage is the state of being away from Redis.
type outage struct {
	reason Reason
	since  time.Time
	tag    string      // the slot that missed: the probe writes there
	named  atomic.Bool // the rights that are missing are in the log
}

// miss notes that Redis did not answer as it should.
func (s *Store) miss(err error, tag string) Reason {
	reason := classify(err)
	if reason != ReasonError {
		s.away(reason, err, tag)
	}
	return reason
}

// away begins an outage, if none is.
func (s *Store) away(reason Reason, err error, tag string) {
	o := &outage{reason: reason, since: time.Now(), tag: tag}
	var denied *redisclient.RightsError
	o.named.Store(errors.As(err, &denied))
	if s.outage.CompareAndSwap(nil, o) {
		s.count.outages.Add(1)
		s.options.Log.Warn("redis is away: quotas are decided from the local share", "reason", reason.String(), "error", err)
		s.kick()
	}
}

// kick wakes the background work.
func (s *Store) kick() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// decide answers without Redis, from this replica's share. inDoubt says that
// Redis was asked and may have taken something all the same.
func (s *Store) decide(now time.Time, id string, claims []quota.Claim, groups []group, reason Reason, inDoubt bool) (quota.Verdict, error) {
	s.count.local[reason].Add(1)
	shares := s.share(claims)
	for i := range shares {
		s.seed(&shares[i])
	}
	v, err := s.local.Reserve(context.Background(), now, id, shares)
	v.Local = true
	switch {
	case err == nil && v.Allowed:
		if !s.journal.grantedLocally(id, now, claims, inDoubt) {
			s.count.dropped.Add(1)
		}
		s.hold(now, id, groups, claims)
		s.kick()
	case inDoubt:
		s.journal.giveBack(id, now, claims)
		s.kick()
	}
	if v.Never && !never(claims) {
		v.Never = false // it is larger than the share, but not than the limit
	}
	return v, err
}

func never(claims []quota.Claim) bool {
	for _, c := range claims {
		for _, l := range c.Limits {
			if c.Amount.Of(l.Unit) > quota.Count(l.Max) {
				return true
			}
		}
	}
	return false
}

// share makes claims on this replica's part of every limit.
func (s *Store) share(claims []quota.Claim) []quota.Claim {
	n := 0
	for i := range claims {
		n += len(claims[i].Limits)
	}
	limits := make([]policy.Limit, 0, n)
	shares := make([]quota.Claim, len(claims))
	for i, c := range claims {
		from := len(limits)
		for _, l := range c.Limits {
			if l.Max > 0 {
				l.Max = max(l.Max/int64(s.options.Replicas), 1)
			}
			limits = append(limits, l)
		}
		c.Limits = limits[from:len(limits):len(limits)]
		shares[i] = c
	}
	return shares
}

// seed raises the local counters of a claim to this replica's part of the
// last known usage, once for each time it became known.
func (s *Store) seed(share *quota.Claim) {
	var moves quota.Moves
	if m := s.moving.Load(); m != nil {
		moves = m.moves
	}
	at, used := s.known.take(share, moves)
	if used == nil {
		return
	}
	replicas := int64(s.options.Replicas)
	for i := range used {
		used[i] = (used[i] + replicas - 1) / replicas
	}
	s.local.Raise(at, *share, used)
}
