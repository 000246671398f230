package main

import (
	"context"
	"strings"
	"time"

	"github.com/weirproxy/weir/envoy/discovery"
	"github.com/weirproxy/weir/envoy/protect"
	"github.com/weirproxy/weir/envoy/xds"
	"github.com/weirproxy/weir/policy"
)

// protection is the duty of what Envoys are told.
func (s *street) protection(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.kick:
		case <-timer.C:
		}
		now := time.Now()
		wait := protectEvery
		if next := s.protect(now); !next.IsZero() {
			wait = min(wait, max(next.Sub(now), time.Millisecond))
		}
		timer.Reset(wait)
	}
}

// protect decides what every cluster is told, tells it, and gives the instant
// at which it wants to be called again.
func (s *street) protect(now time.Time) (next time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.o.Policy()
	views := s.points.views()
	settings, changes, next := s.keeper.Step(now, s.inputs(now, p, views), p)
	told := make(map[string]protect.Settings, len(settings))
	for i := range settings {
		told[settings[i].Cluster] = settings[i]
	}
	s.told.Store(&told)
	if err := s.xds.Set(now, &xds.Snapshot{Settings: settings, Endpoints: views, Clusters: p.ProtectedClusters()}); err != nil {
		s.log.Error("some settings cannot be told to Envoys", "error", err)
	}
	s.tell(changes)
	return next
}

// tell notes what is told anew; the changes of a cluster stand together.
func (s *street) tell(changes []protect.Change) {
	for i := range changes {
		s.timeline.add(pushEntry(&changes[i]))
		s.o.Metrics.ProtectionChanged(changes[i].Key)
	}
	for len(changes) > 0 {
		c, n := &changes[0], 0
		var told []string
		for ; n < len(changes) && changes[n].Cluster == c.Cluster; n++ {
			told = append(told, changes[n].Key+" "+changes[n].From+" -> "+changes[n].To)
		}
		s.log.Info("Envoys are told", "cluster", c.Cluster, "what", told[:min(len(told), 10)], "numbers", n, "because", c.Because)
		changes = changes[n:]
	}
}

// inputs are what every cluster looks like now.
func (s *street) inputs(now time.Time, p *policy.Policy, views map[string]discovery.View) []protect.Input {
	byCluster := map[string]*protect.Input{}
	of := func(cluster string) *protect.Input {
		in := byCluster[cluster]
		if in == nil {
			in = &protect.Input{Cluster: cluster, At: now, Share: 1}
			byCluster[cluster] = in
		}
		return in
	}
	for _, b := range s.o.Desk.Breakers(now) {
		in, v := of(b.Cluster), &b.View
		in.Breakers = append(in.Breakers, protect.State{Pool: b.Pool, State: v.State, Level: v.Level, Release: v.Release, Held: v.Held, Since: v.Since})
		for _, address := range s.o.Unwell(b.Pool, now) {
			if in.Unwell == nil {
				in.Unwell = map[string]bool{}
			}
			in.Unwell[address] = true
		}
	}
	for _, r := range s.watch.Readings().All() {
		in := of(r.Cluster)
		in.Storm, in.Protect, in.Seen, in.Share = r.Storm, r.Protect, r.Because, r.Share
		in.Running, in.Hosts = r.ActiveRequests, int(r.Members)
	}
	for name, v := range views {
		if n := len(v.Endpoints); n > 0 {
			of(name).Hosts = n
		}
	}
	out := make([]protect.Input, 0, len(byCluster))
	for _, in := range byCluster {
		out = append(out, *in)
	}
	return out
}

// nodes is the duty of telling who came, went, and refused.
func (s *street) nodes(ctx context.Context) {
	tick := time.NewTicker(nodesEvery)
	defer tick.Stop()
	known := map[string]xds.Node{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		s.points.complain()
		now := time.Now()
		there := map[string]xds.Node{}
		for _, n := range s.xds.Nodes() {
			key := strings.Join([]string{n.ID, n.Cluster, n.Group, n.SANs}, "\x00")
			there[key] = n
			s.compare(known[key], n)
		}
		for key, n := range known {
			if _, is := there[key]; !is {
				s.timeline.add(entry{At: now, What: entryNode, Node: n.ID, Key: "left", From: n.Release})
			}
		}
		known = there
	}
}

// compare tells what is new of a node; was is the zero Node of one that was not
// there.
func (s *street) compare(was, n xds.Node) {
	if !n.Since.Equal(was.Since) {
		because := ""
		if !n.Supported {
			because = "its release is not one that weir was tested with"
		}
		s.timeline.add(entry{At: n.Since, What: entryNode, Node: n.ID, Key: "came", To: n.Release, Because: because})
	}
	if l := n.LastNack; l != nil && (was.LastNack == nil || l.At.After(was.LastNack.At)) {
		e := entry{At: l.At, What: entryNack, Node: n.ID, Key: l.Type, From: l.Version, Because: l.Text}
		if l.Type == "rtds" || len(l.Names) == 0 { // its name is the layer's
			s.timeline.add(e)
			return
		}
		for _, e.Cluster = range l.Names[:min(len(l.Names), 10)] {
			s.timeline.add(e)
		}
	}
}
