package main

import (
	"maps"
	"slices"
	"time"

	"github.com/weirproxy/weir/envoy/protect"
	"github.com/weirproxy/weir/envoy/watch"
	"github.com/weirproxy/weir/envoy/xds"
)

// envoysView is /debug/envoys.
type envoysView struct {
	At       time.Time     `json:"at"`
	XDS      *xdsView      `json:"xds,omitempty"` // none = weir is no control plane
	Watched  []watchedView `json:"watched"`
	Sources  []feedView    `json:"sources"`
	Clusters []clusterView `json:"clusters"`
}

// xdsView is the control plane (B10).
type xdsView struct {
	Nodes       []nodeView  `json:"nodes"`
	Unknown     []unknown   `json:"unknown"`     // names asked for that the policy does not have
	Unclaimed   []string    `json:"unclaimed"`   // clusters whose endpoints nobody asks for
	Unsupported []string    `json:"unsupported"` // nodes of releases that are not tested
	Inherited   []string    `json:"inherited"`   // clusters whose numbers are those of the state on disk
	Pushes      uint64      `json:"pushes"`
	State       xdsDiskView `json:"state"`
}

type unknown struct {
	Node string `json:"node"`
	Type string `json:"type"`
	Name string `json:"name"`
}

type xdsDiskView struct {
	Restored *time.Time `json:"restored,omitempty"` // when the state was saved that this process began with
	Refused  string     `json:"refused,omitempty"`  // why it was not taken
	Saved    *time.Time `json:"saved,omitempty"`
	Error    string     `json:"error,omitempty"` // of the last writing
}

type nodeView struct {
	ID        string     `json:"id"`
	Cluster   string     `json:"cluster,omitempty"`
	Group     string     `json:"group,omitempty"`
	Peer      string     `json:"peer"`
	Release   string     `json:"release,omitempty"`
	Supported bool       `json:"supported"`
	Since     time.Time  `json:"since"`
	Streams   int        `json:"streams"`
	Types     []typeView `json:"types"`
	Nacks     uint64     `json:"nacks"`
	LastNack  *nackView  `json:"last_nack,omitempty"`
}

type typeView struct {
	Type  string   `json:"type"`
	Delta bool     `json:"delta"`
	ADS   bool     `json:"ads"`
	Names []string `json:"names"`
	Sent  string   `json:"sent,omitempty"`
	Acked string   `json:"acked,omitempty"`
	Lag   float64  `json:"lag_seconds"`
}

type nackView struct {
	At      time.Time `json:"at"`
	Type    string    `json:"type"`
	Version string    `json:"version"`
	Names   []string  `json:"names"`
	Text    string    `json:"text"`
}

// watchedView is an Envoy whose counters are heard (B7, B8).
type watchedView struct {
	Node     string    `json:"node"`
	Source   string    `json:"source"`
	First    time.Time `json:"first"`
	Heard    time.Time `json:"heard"`
	Age      float64   `json:"age_seconds"`
	Period   float64   `json:"period_seconds"`
	Silent   bool      `json:"silent"`
	Clusters int       `json:"clusters"`
	Missing  []string  `json:"missing,omitempty"` // clusters of the policy that it never told of
	Restarts uint64    `json:"restarts"`
}

// feedView is a way by which counters come.
type feedView struct {
	Name     string            `json:"name"`
	Messages uint64            `json:"messages"`
	Rows     uint64            `json:"rows"`
	Garbage  map[string]uint64 `json:"garbage"`
	Targets  []targetView      `json:"targets,omitempty"`
}

type targetView struct {
	Node   string            `json:"node"`
	URL    string            `json:"url"`
	Looks  uint64            `json:"looks"`
	Missed map[string]uint64 `json:"missed"`
	Error  string            `json:"error,omitempty"`
}

// clusterView is what is known of a cluster, and what Envoys are told of it.
type clusterView struct {
	Name      string            `json:"name"`
	Reading   *readingView      `json:"reading,omitempty"` // none = no Envoy told of it
	Endpoints []pointView       `json:"endpoints,omitempty"`
	Unread    []int             `json:"unread_priorities,omitempty"`
	Told      map[string]int64  `json:"told,omitempty"` // runtime keys; none = as in Envoy's own file
	Drop      int64             `json:"drop_overloads,omitempty"`
	Health    map[string]string `json:"health,omitempty"`
	Because   []reasonView      `json:"because,omitempty"`
}

type reasonView struct {
	Rule string `json:"rule"`
	Text string `json:"text"`
}

type pointView struct {
	Address  string `json:"address"`
	Priority int    `json:"priority"`
	Region   string `json:"region,omitempty"`
	Zone     string `json:"zone,omitempty"`
	Health   string `json:"health"`
}

type readingView struct {
	At          time.Time `json:"at"`
	Envoys      int       `json:"envoys"`
	Connections int64     `json:"connections"`
	Live        int64     `json:"live"`
	Normal      float64   `json:"normal"`
	Share       float64   `json:"share"`
	GoAways     int64     `json:"goaways"`
	GoAwayRate  float64   `json:"goaways_per_second"`
	GoAwayShare float64   `json:"goaway_share"`
	Resets      float64   `json:"resets_per_second"`
	Failures    float64   `json:"connect_failures_per_second"`
	Errors      float64   `json:"errors_per_second"`
	Retries     float64   `json:"retries_per_second"`
	Requests    float64   `json:"requests_per_second"`
	Running     int64     `json:"active_requests"`
	Pending     int64     `json:"pending"`
	Members     int64     `json:"members"`
	Healthy     int64     `json:"healthy"`
	Storm       bool      `json:"storm"`
	Protect     bool      `json:"protect"`
	Calm        bool      `json:"calm"`
	Because     string    `json:"because,omitempty"`
}

// envoys is the picture of all Envoys.
func (s *street) envoys(now time.Time) any {
	v := envoysView{At: now, Watched: []watchedView{}, Sources: []feedView{}, Clusters: s.clusters()}
	if s.xds != nil {
		v.XDS = xdsPicture(s.xds.Nodes(), s.xds.Stats())
	}
	stats := s.watch.Stats()
	for _, e := range stats.Envoys {
		v.Watched = append(v.Watched, watchedView{
			e.Node, e.Source, e.First, e.Heard, max(0, now.Sub(e.Heard).Seconds()), e.Period.Seconds(), e.Silent, e.Clusters, e.Missing, e.Restarts,
		})
	}
	for _, f := range stats.Sources {
		one := feedView{Name: f.Name, Messages: f.Messages, Rows: f.Rows, Garbage: f.Garbage}
		for _, t := range f.Targets {
			one.Targets = append(one.Targets, targetView{t.Node, t.URL, t.Looks, t.Missed, t.Err})
		}
		v.Sources = append(v.Sources, one)
	}
	return v
}

func xdsPicture(nodes []xds.Node, stats xds.Stats) *xdsView {
	v := &xdsView{
		Nodes: []nodeView{}, Unknown: []unknown{}, Unclaimed: stats.Unclaimed, Unsupported: stats.Unsupported, Inherited: stats.Inherited,
		Pushes: stats.Pushes, State: xdsDiskView{moment(stats.Disk.Restored), stats.Disk.Refused, moment(stats.Disk.Saved), stats.Disk.Error},
	}
	for _, u := range stats.Unknown {
		v.Unknown = append(v.Unknown, unknown(u))
	}
	for i := range nodes {
		n := &nodes[i]
		one := nodeView{
			ID: n.ID, Cluster: n.Cluster, Group: n.Group, Peer: n.Peer, Release: n.Release, Supported: n.Supported, Since: n.Since,
			Streams: n.Streams, Types: []typeView{}, Nacks: n.Nacks,
		}
		if l := n.LastNack; l != nil {
			one.LastNack = &nackView{l.At, l.Type, l.Version, l.Names, l.Text}
		}
		for _, t := range n.Types {
			one.Types = append(one.Types, typeView{t.Name, t.Delta, t.ADS, t.Names, t.Sent, t.Acked, t.Lag.Seconds()})
		}
		v.Nodes = append(v.Nodes, one)
	}
	return v
}

// moment is nil for never.
func moment(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func (s *street) clusters() []clusterView {
	readings, views, told := s.watch.Readings(), s.points.views(), *s.told.Load()
	out := []clusterView{}
	for _, c := range s.o.Policy().ProtectedClusters() {
		v := clusterView{Name: c.Name}
		if r, ok := readings.Of(c.Name); ok {
			v.Reading = readingPicture(&r)
		}
		view := views[c.Name]
		v.Unread = view.Unread
		settings := told[c.Name]
		for _, e := range view.Endpoints {
			h := max(protect.Health(e.Health), settings.Health[e.Address.String()])
			v.Endpoints = append(v.Endpoints, pointView{e.Address.String(), e.Priority, e.Region, e.Zone, h.String()})
		}
		if keys := maps.Collect(settings.Runtime()); len(keys) > 0 {
			v.Told = keys
		}
		v.Drop = settings.Drop
		for _, address := range slices.Sorted(maps.Keys(settings.Health)) {
			if v.Health == nil {
				v.Health = map[string]string{}
			}
			v.Health[address] = settings.Health[address].String()
		}
		for _, r := range settings.Because {
			v.Because = append(v.Because, reasonView(r))
		}
		out = append(out, v)
	}
	return out
}

func readingPicture(r *watch.Reading) *readingView {
	return &readingView{
		r.At, r.Envoys, r.Connections, r.Live, r.Normal, r.Share, r.GoAways, r.GoAwaysPerSecond, r.GoAwayShare, r.ResetsPerSecond,
		r.FailuresPerSecond, r.ErrorsPerSecond, r.RetriesPerSecond, r.RequestsPerSecond, r.ActiveRequests, r.Pending, r.Members, r.Healthy,
		r.Storm, r.Protect, r.Calm, r.Because,
	}
}
