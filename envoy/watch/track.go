package watch

import (
	"math"
	"time"
)

// An Envoy is silent when it was not heard for patiencePeriods of its usual
// periods, and at least leastPatience; it then counts no more. Its counters
// are remembered for memory, so that a gap loses nothing.
const (
	firstPeriod     = 5 * time.Second // Envoy's default stats_flush_interval
	patiencePeriods = 3
	leastPatience   = 3 * time.Second
	mostPeriod      = time.Minute
	memory          = 10 * time.Minute
	samePeriod      = 90 * time.Millisecond // samples closer than this are one flush in parts
)

// Normal is the mean while it is new, then forgets with learnTime. The load of
// now is a mean over about loadTime.
const (
	learntAfter = 30 * time.Second
	learnTime   = 5 * time.Minute
	loadTime    = 2 * time.Second
)

// node is one Envoy.
type node struct {
	name     string
	first    time.Duration // heard
	last     time.Duration
	period   time.Duration
	restarts uint64
	tracks   map[string]*track // by cluster
}

// hear learns the Envoy's period.
func (n *node) hear(at time.Duration) {
	gap := at - n.last
	if gap < samePeriod {
		return
	}
	if n.last > n.first || n.period != firstPeriod {
		gap = min(gap, 2*n.period)
		n.period += (gap - n.period) / 4
	} else {
		n.period = gap
	}
	n.period = min(n.period, mostPeriod)
	n.last = at
}

func (n *node) patience() time.Duration { return max(leastPatience, patiencePeriods*n.period) }

// track is one Envoy's view of one cluster.
type track struct {
	node     *node
	cluster  *cluster
	at       time.Duration
	last     Counters
	draining int64 // connections told to go that are still there, as far as can be known
	silent   bool
	health   bool // it ever told of healthy hosts: its statistics have them

	learnt  time.Duration // of observation, at most learnTime
	normal  float64       // live connections
	usual   float64       // requests under way or waiting
	load    float64       // the same, lately
	waiting float64       // requests that wait, lately
}

// live are the connections that new requests may use.
func (k *track) live() int64 { return max(0, k.last.ActiveConnections-k.draining) }

// take makes counters the last ones.
func (k *track) take(c *Counters, at time.Duration) {
	node, cluster := k.node.name, k.cluster.name // not the caller's buffers
	k.last, k.at, k.silent = *c, max(at, k.at), false
	k.last.Node, k.last.Cluster = node, cluster
	k.health = k.health || c.Healthy > 0
}

// busy are the requests under way or waiting.
func (k *track) busy() float64 {
	return float64(max(0, k.last.ActiveRequests) + max(0, k.last.Pending))
}

// since takes the counters of now and gives what happened since the last.
func (k *track) since(now *Counters) counts {
	old := &k.last
	var d counts
	if now.Connections < old.Connections || now.Requests < old.Requests {
		// Another process: all of its counts are new, and the old one's
		// connections went with it.
		d.closed = float64(old.ActiveConnections)
		k.draining = 0
		k.node.restarts++
		old = new(Counters)
	}
	d.goaways = grown(old.CloseNotify, now.CloseNotify)
	d.failed = grown(old.ConnectFail, now.ConnectFail)
	gone := max(0, grown(old.Destroyed, now.Destroyed)-d.failed)
	d.closed += gone
	d.opened = grown(old.Connections, now.Connections)
	d.resets = grown(old.Resets, now.Resets)
	d.retries = grown(old.Retries, now.Retries)
	d.requests = grown(old.Requests, now.Requests)
	d.errors = grown(old.Errors, now.Errors)
	d.cut = grown(old.DestroyActive, now.DestroyActive)
	// A connection that breaks takes all of its streams with it, each of which
	// is counted as ejected; of HTTP/1.1 it is counted alone.
	d.lost = d.resets + max(grown(old.Ejected, now.Ejected), d.cut)

	k.draining = min(max(0, k.draining+int64(d.goaways)-int64(gone)), max(0, now.ActiveConnections))
	return d
}

// grown is how far a counter rose. One that fell alone was forgotten and
// counts from nothing again.
func grown(old, now int64) float64 {
	if now < old {
		return float64(max(0, now))
	}
	return float64(now - old)
}

// learn moves what is usual towards what is, over the time since the last
// sample; in trouble only what is lately moves.
func (k *track) learn(gap time.Duration, trouble bool) {
	now := k.busy()
	step := 1 - math.Exp(-float64(gap)/float64(loadTime))
	k.load += (now - k.load) * step
	k.waiting += (float64(max(0, k.last.Pending)) - k.waiting) * step
	if trouble {
		return
	}
	gap = min(gap, 2*patiencePeriods*time.Second)
	k.learnt = min(k.learnt+gap, learnTime)
	share := min(1, float64(gap)/float64(max(k.learnt, 1)))
	k.normal += (float64(k.live()) - k.normal) * share
	k.usual += (now - k.usual) * share
}

// knows tells whether normal may be compared with.
func (k *track) knows() bool { return k.learnt >= learntAfter }
