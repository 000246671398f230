package watch

import (
	"maps"
	"slices"
	"time"

	"github.com/weirproxy/weir/policy"
)

// MaxEnvoys is how many Envoys are counted at most; the samples of more are
// refused.
const MaxEnvoys = 1024

// backwards is how far time may seem to go back without a step of the clock:
// callers that overtake each other.
const backwards = time.Second

// oldest is how long a sample may have been under way; of an older one the
// clock was another's.
const oldest = time.Minute

// Core is the pure part: samples in, judgement out. The zero value is not
// usable; not safe for concurrent use.
type Core struct {
	policy   policy.Watch
	epoch    time.Time
	shift    time.Duration // what steps of the clock come to
	now      time.Duration // since epoch; never goes back
	wall     time.Time     // of the newest call
	nodes    map[string]*node
	clusters map[string]*cluster
	watched  map[string]struct{} // nil: all
}

// NewCore makes a core for the named clusters; nil watches every cluster that
// is told, for tests and tools that bound their input themselves.
func NewCore(p policy.Watch, clusters []string, now time.Time) *Core {
	c := &Core{epoch: now, wall: now, nodes: make(map[string]*node), clusters: make(map[string]*cluster)}
	c.Configure(p, clusters)
	return c
}

// Configure takes a new policy. What is known of clusters that are still
// watched stays; a longer window fills from now on.
func (c *Core) Configure(p policy.Watch, clusters []string) {
	c.policy = p
	c.watched = nil
	if clusters != nil {
		c.watched = make(map[string]struct{}, len(clusters))
		for _, name := range clusters {
			c.watched[name] = struct{}{}
		}
	}
	for name, k := range c.clusters {
		if !c.watches(name) {
			c.drop(k)
			continue
		}
		k.keep(p.GoAway.Window)
	}
}

func (c *Core) watches(cluster string) bool {
	_, ok := c.watched[cluster]
	return ok || c.watched == nil
}

// drop forgets a cluster.
func (c *Core) drop(k *cluster) {
	for _, t := range k.tracks {
		delete(t.node.tracks, k.name)
	}
	delete(c.clusters, k.name)
}

// instant is now since the epoch, which never goes back: where the clock
// stepped back, time goes on from where it was.
func (c *Core) instant(now time.Time) time.Duration {
	t := now.Sub(c.epoch) + c.shift
	if t < c.now-backwards {
		c.shift += c.now - t
	}
	c.now, c.wall = max(t, c.now), now
	return c.now
}

func ticks(t time.Duration) int64 { return int64((t + tick/2) / tick) }

// Observe takes what Envoys told: rows whose At is now or a little earlier. It
// gives how many rows it refused, of more Envoys than MaxEnvoys; rows of
// clusters that are not watched are no business of ours and not refused.
func (c *Core) Observe(now time.Time, rows []Counters) (refused int) {
	t := c.instant(now)
	var n *node
	for i := range rows {
		row := &rows[i]
		if !c.watches(row.Cluster) {
			continue
		}
		at := row.At.Sub(c.epoch) + c.shift
		if at > t || at < t-oldest {
			at = t
		}
		if n == nil || n.name != row.Node {
			if n = c.node(row.Node, at); n == nil {
				refused++
				continue
			}
			n.hear(at)
		}
		c.observe(n, row, at)
	}
	return refused
}

func (c *Core) node(name string, at time.Duration) *node {
	if n, ok := c.nodes[name]; ok {
		return n
	}
	if len(c.nodes) >= MaxEnvoys {
		return nil
	}
	n := &node{name: name, first: at, last: at, period: firstPeriod, tracks: make(map[string]*track)}
	c.nodes[name] = n
	return n
}

func (c *Core) observe(n *node, row *Counters, at time.Duration) {
	k, ok := n.tracks[row.Cluster]
	if !ok {
		n.join(c.cluster(row.Cluster), row, at)
		return
	}
	cluster := k.cluster
	d := k.since(row)
	if d != (counts{}) {
		cluster.put(ticks(k.at), max(ticks(at), ticks(k.at)+1), &d)
		cluster.lost += max(0, d.lost-d.retries)
	}
	gap := max(0, at-k.at)
	k.take(row, at)
	k.learn(gap, cluster.trouble)
}

func (c *Core) cluster(name string) *cluster {
	k, ok := c.clusters[name]
	if !ok {
		k = newCluster(name, c.policy.GoAway.Window)
		k.advance(ticks(c.now))
		c.clusters[name] = k
	}
	return k
}

// join begins a track: what was counted before is not known to be new.
func (n *node) join(k *cluster, row *Counters, at time.Duration) {
	t := &track{node: n, cluster: k, load: float64(row.ActiveRequests + row.Pending), waiting: float64(row.Pending)}
	t.take(row, at)
	n.tracks[k.name] = t
	k.tracks = append(k.tracks, t)
}

// Step brings everything to now and judges: what is known of each cluster, in
// order of names, and what began or ended since the last Step. It wants to be
// called a few times a second.
func (c *Core) Step(now time.Time) (*Readings, []Event) {
	t := c.instant(now)
	out := &Readings{At: now, list: make([]Reading, 0, len(c.clusters))}
	var events []Event
	for _, name := range slices.Sorted(maps.Keys(c.clusters)) {
		k := c.clusters[name]
		c.retire(k, t)
		if len(k.tracks) == 0 && !k.judged() {
			delete(c.clusters, name)
			continue
		}
		out.list = append(out.list, Reading{Cluster: name, At: now})
		events = k.judge(&c.policy, t, &out.list[len(out.list)-1], events)
	}
	return out, events
}

// retire takes Envoys that are silent out of the sums, and forgets those that
// were for long.
func (c *Core) retire(k *cluster, t time.Duration) {
	kept := k.tracks[:0]
	for _, tr := range k.tracks {
		quiet := t - tr.at
		if !tr.silent && quiet > tr.node.patience() {
			tr.silent = true
			k.put(ticks(t)-1, ticks(t), &counts{closed: float64(tr.live())})
		}
		if quiet <= memory {
			kept = append(kept, tr)
			continue
		}
		delete(tr.node.tracks, k.name)
		if len(tr.node.tracks) == 0 {
			delete(c.nodes, tr.node.name)
		}
	}
	clear(k.tracks[len(kept):])
	k.tracks = kept
}

// hears tells whether an Envoy was heard lately.
func (c *Core) hears(node string, now time.Time) bool {
	n, ok := c.nodes[node]
	return ok && c.instant(now)-n.last <= n.patience()
}

// Envoy is one Envoy as the core knows it.
type Envoy struct {
	Node     string
	Source   string        // which brought its newest sample; "" from a bare Core
	First    time.Time     // heard
	Heard    time.Time     // last
	Period   time.Duration // between its samples
	Silent   bool          // not heard for some periods: it counts no more
	Clusters int           // of the watched ones, that it told of
	Missing  []string      // watched clusters that it never told of: a name in the policy that this Envoy does not have
	Restarts uint64        // counters that began anew, by cluster
}

// Envoys are those that are remembered, by node.
func (c *Core) Envoys() []Envoy {
	var out []Envoy
	for _, name := range slices.Sorted(maps.Keys(c.nodes)) {
		n := c.nodes[name]
		quiet := c.now - n.last
		e := Envoy{Node: name, First: c.wall.Add(n.first - c.now), Heard: c.wall.Add(-quiet), Period: n.period, Silent: quiet > n.patience(), Clusters: len(n.tracks), Restarts: n.restarts}
		for watched := range c.watched {
			if _, ok := n.tracks[watched]; !ok {
				e.Missing = append(e.Missing, watched)
			}
		}
		slices.Sort(e.Missing)
		out = append(out, e)
	}
	return out
}
