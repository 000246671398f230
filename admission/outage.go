package admission

import (
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/policy"
)

// outage is the failures in a row of one pool, over all tenants (B9). Where many
// tenants call a pool that is away, each would be told ten times to wait before
// its own streak is a storm, and the pool would get all of it. A pool whose
// ends all failed, twice as many as make a tenant's storm and for no less than
// the base of the back-off, is away: nobody is to try again before somebody had a
// success. The time keeps the calls of one lost connection, which fail
// together, from being taken for that. Where the breaker opens before so many
// have failed, those that it refuses count with them, if half a tenant's storm
// failed in a row: a pool that fails now and then does not get that far. While
// nothing failed a success costs one atomic load. Safe for concurrent use; the
// zero value is no outage.
type outage struct {
	n, refused  atomic.Int64
	since, last atomic.Int64 // of the first and the latest, from base of the streaks
}

// strike adds a failure at an instant.
func (o *outage) strike(at, quiet time.Duration) {
	if n := o.n.Add(1); n == 1 || at-time.Duration(o.last.Load()) > quiet {
		o.since.Store(int64(at))
		o.n.Store(1)
		o.refused.Store(0)
	}
	o.last.Store(int64(at))
}

// refuse adds a refusal of the pool's open breaker.
func (o *outage) refuse(at time.Duration) {
	if o.n.Load() == 0 {
		return
	}
	o.refused.Add(1)
	o.last.Store(int64(at))
}

// end is a success.
func (o *outage) end() {
	if o.n.Load() != 0 {
		o.n.Store(0)
	}
}

// is reports whether the pool is away.
func (o *outage) is(at time.Duration, c *policy.RetryControl) bool {
	since, last := time.Duration(o.since.Load()), time.Duration(o.last.Load())
	failed, storm := o.n.Load(), int64(c.Storm)
	if 2*failed >= storm {
		failed += o.refused.Load()
	}
	return failed >= 2*storm && last-since >= c.Base && at-last <= remembered(c)
}
