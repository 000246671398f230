package breaker

import (
	"time"

	"github.com/weirproxy/weir/policy"
)

// Voice decides when a replica speaks of its breakers (B3): at once when the
// state or the level has changed, else each Renew. Of a tenant it speaks only
// while its breaker is not closed, once when it is closed again, and while
// others say that it is open. Not safe for concurrent use.
type Voice struct {
	replica string
	cascade policy.Cascade
	seq     uint64
	said    map[topic]said
}

type said struct {
	state, level State
	at           time.Time
}

// NewVoice makes the voice of a replica whose life begins at now. Its words
// are newer than those of an earlier life that began at least a millisecond
// earlier and said at most a thousand words a second; behind a clock that was
// set back they count once the old ones are over.
func NewVoice(replica string, now time.Time, c policy.Cascade) *Voice {
	return &Voice{
		replica: replica, cascade: c,
		seq: min(uint64(max(now.UnixMicro(), 1)), MaxSeq/2), said: make(map[topic]said),
	}
}

// Configure changes the times.
func (v *Voice) Configure(c policy.Cascade) { v.cascade = c }

// Say is what is to be said at now of a breaker that looks so; false =
// nothing. contested says that others say it is open (Ruling.Open > 0).
func (v *Voice) Say(now time.Time, view View, contested bool) (Opinion, bool) {
	t := topic{view.Kind == Tenant, view.Name}
	last, spoken := v.said[t]
	quiet := t.tenant && view.State == Closed && !contested
	switch {
	case quiet && !spoken:
		return Opinion{}, false
	case quiet && last.state == Closed:
		delete(v.said, t)
		return Opinion{}, false
	case spoken && last.state == view.State && last.level == view.Level && !v.due(now, last.at):
		return Opinion{}, false
	}
	v.said[t] = said{view.State, view.Level, now}
	v.seq++
	return view.Opinion(v.replica, v.seq, v.ttl()), true
}

// due reports whether a word is to be renewed.
func (v *Voice) due(now, last time.Time) bool {
	renew := v.cascade.Renew
	if renew <= 0 {
		renew = v.ttl() / 3
	}
	return now.Sub(last) >= renew || now.Before(last)
}

func (v *Voice) ttl() time.Duration {
	if v.cascade.TTL <= 0 {
		return 15 * time.Second
	}
	return min(v.cascade.TTL, MaxTTL)
}

// Unsaid makes the next Say of a breaker speak again: its last word was not
// delivered.
func (v *Voice) Unsaid(o Opinion) {
	const nothing = HalfOpen + 1 // no state: whatever the next one is, it is news
	v.said[topic{o.Kind == Tenant, o.Breaker}] = said{state: nothing}
}
