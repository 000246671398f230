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
// together, from being taken for that. While nothing failed a success costs one
// atomic load. Safe for concurrent use; the zero value is no outage.
type outage struct {
	n           atomic.Int64
	since, last atomic.Int64 // of the first and the latest, from base of the streaks
}

// strike adds a failure at an instant.
func (o *outage) strike(at, quiet time.Duration) {
	if n := o.n.Add(1); n == 1 || at-time.Duration(o.last.Load()) > quiet {
		o.since.Store(int64(at))
		o.n.Store(1)
	}
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
	return o.n.Load() >= 2*int64(c.Storm) && last-since >= c.Base && at-last <= remembered(c)
}
