package quota

import (
	"time"

	"github.com/weirproxy/weir/policy"
)

// Tally makes one verdict out of what a store finds at each limit of a
// request's claims. The zero value is ready: no limits, allowed.
type Tally struct {
	verdict Verdict
	refused bool
	share   float64
}

// Refuses reports whether a limit refuses an amount on top of what is used.
// An amount of zero asks for nothing and is never refused.
func Refuses(l policy.Limit, amount, used int64) bool {
	return amount > 0 && used > Count(l.Max)-amount
}

// Fit notes a limit with room for the amount. Of all of them the verdict
// names the tightest: the one that is nearest to its maximum, in proportion,
// once the amount is taken.
func (t *Tally) Fit(rule string, l policy.Limit, amount, used int64) {
	if t.refused || amount <= 0 {
		return
	}
	share := (float64(used) + float64(amount)) / float64(Count(l.Max))
	if t.verdict.Rule == "" || share > t.share {
		t.share = share
		t.verdict.Rule, t.verdict.Limit, t.verdict.Used = rule, l, used
	}
}

// Refuse notes a limit without room and how long the claim has to wait for
// it; 0 is unknown (concurrency). The verdict names a limit that can never be
// met before others, else the one with the longest wait: when several limits
// refuse, the claim fits once the last of them has room.
func (t *Tally) Refuse(rule string, l policy.Limit, amount, used int64, wait time.Duration) {
	never := amount > Count(l.Max)
	if never {
		wait = 0
	}
	if t.refused && (t.verdict.Never || (!never && wait <= t.verdict.RetryAfter)) {
		return
	}
	t.refused = true
	t.verdict = Verdict{Rule: rule, Limit: l, Used: used, RetryAfter: wait, Never: never}
}

// Verdict is the sum.
func (t *Tally) Verdict() Verdict {
	t.verdict.Allowed = !t.refused
	return t.verdict
}
