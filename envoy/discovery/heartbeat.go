package discovery

import (
	"context"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Heartbeats tell a region that died from one that is quiet (G2). A cluster
// with one region has none: there is nowhere else to go, and Envoy's own
// health checks choose among its hosts.
const (
	missedBeats = 3 // in a row, and a host is degraded
	beatsAtOnce = 64
	longestBeat = time.Second // of one connect
)

// beats counts the heartbeats that each host of a cluster missed in a row. The
// zero value has heard nothing, and believes everybody well. Not safe for
// concurrent use.
type beats struct {
	missed map[netip.AddrPort]int
}

// note takes a round: the hosts that were asked, and those that answered.
// Others are forgotten.
func (b *beats) note(answered map[netip.AddrPort]bool) {
	next := make(map[netip.AddrPort]int, len(answered))
	for a, ok := range answered {
		if !ok {
			next[a] = min(b.missed[a]+1, missedBeats)
		}
	}
	b.missed = next
}

// silent reports whether a host missed too many.
func (b *beats) silent(a netip.AddrPort) bool { return b.missed[a] >= missedBeats }

// judge gives the hosts with what heartbeats say: who is silent is degraded,
// not unhealthy, so that Envoy may still use it when nothing else is left.
// Where all are silent it is more likely that this machine is cut off than
// that all of them died: then nothing is said. The list is not changed.
func (b *beats) judge(list []Endpoint) []Endpoint {
	all := true
	for i := range list {
		all = all && b.silent(list[i].Address)
	}
	if all || len(b.missed) == 0 {
		return list
	}
	out := slices.Clone(list)
	for i := range out {
		if b.silent(out[i].Address) {
			out[i].Health = max(out[i].Health, Degraded)
		}
	}
	return out
}

// connect is one heartbeat: a TCP connection that comes about.
func connect(ctx context.Context, a netip.AddrPort) error {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", a.String())
	if err != nil {
		return err
	}
	return c.Close()
}

// beat asks all hosts, again and again, until the context ends.
func (c *Cluster) beat(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		c.round(ctx, min(every, longestBeat))
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// round asks each host once.
func (c *Cluster) round(ctx context.Context, limit time.Duration) {
	var group sync.WaitGroup
	var mu sync.Mutex
	answered := make(map[netip.AddrPort]bool)
	gate := make(chan struct{}, beatsAtOnce)
	for _, e := range c.View().Endpoints {
		gate <- struct{}{}
		group.Go(func() {
			defer func() { <-gate }()
			within, stop := context.WithTimeout(ctx, limit)
			defer stop()
			err := c.connect(within, e.Address)
			mu.Lock()
			defer mu.Unlock()
			answered[e.Address] = err == nil
		})
	}
	group.Wait()
	if ctx.Err() == nil && c.heard(answered) {
		c.changed()
	}
}

// heard takes a round and reports whether the view changed.
func (c *Cluster) heard(answered map[netip.AddrPort]bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := maps.Clone(c.beats.missed)
	c.beats.note(answered)
	if maps.Equal(before, c.beats.missed) || slices.Equal(c.beats.judge(c.ledger.view.Endpoints), c.View().Endpoints) {
		return false
	}
	c.judged++
	c.publish()
	return true
}
