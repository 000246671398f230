package xds

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"

	"github.com/weirproxy/weir/envoy/discovery"
	"github.com/weirproxy/weir/envoy/protect"
	"github.com/weirproxy/weir/policy"
)

// Snapshot is all that Envoys should have, at an instant. It is complete: a
// cluster that Endpoints does not have is no longer served by EDS (Envoys keep
// the hosts that they have), one that Clusters does not have is removed by
// CDS. The maps and slices must not change afterwards.
type Snapshot struct {
	Settings  []protect.Settings        // of the clusters that weir protects
	Endpoints map[string]discovery.View // of the clusters whose endpoints weir serves
	Clusters  []policy.Cluster          // for CDS, and for endpoints.return
	// Settled says that Settings come from evidence, not from a start: what was
	// inherited from the state on disk ends now.
	Settled bool
}

// book holds what every cluster should have. Pure, not safe for concurrent
// use.
type book struct {
	instance string // no two processes have the same
	cds      func(*policy.Cluster) *clusterv3.Cluster

	owned    []policy.Cluster // of the last set, whose clusters are made
	records  map[string]*record
	graceEnd time.Time // what is inherited ends then
	pushes   uint64    // numbers the seqs of this instance
}

// record is one cluster.
type record struct {
	name      string
	runtime   map[string]int64 // flat keys
	inherited bool             // runtime, drop are from the state on disk

	served    bool // by EDS
	view      discovery.View
	before    []discovery.Endpoint // what was told, of the state on disk too: for priorities not read yet
	health    map[string]protect.Health
	drop      int64
	seq       string
	outages   []outage
	out       []bool
	resource  *endpointv3.ClusterLoadAssignment
	cluster   *policy.Cluster // of the last CDS resource
	clusterRe *clusterv3.Cluster
}

// changes are what a step made different: names of clusters by type.
type changes struct {
	runtime   bool
	endpoints []string // also those that are no longer served
	clusters  []string
	// withheld are the clusters whose hosts are not known yet. Nothing is said
	// of them: an empty list would take away what an Envoy has.
	withheld []string
}

func (c *changes) any() bool { return c.runtime || len(c.endpoints)+len(c.clusters) > 0 }

func newBook(instance string, cds func(*policy.Cluster) *clusterv3.Cluster) *book {
	return &book{instance: instance, cds: cds, records: make(map[string]*record)}
}

func (b *book) record(name string) *record {
	r := b.records[name]
	if r == nil {
		r = &record{name: name}
		b.records[name] = r
	}
	return r
}

// set takes a snapshot. A cluster whose settings Envoy would take silently
// for something else keeps what it has; the error names it.
func (b *book) set(now time.Time, s *Snapshot) (changes, error) {
	var c changes
	var errs []error
	if s.Settled {
		b.graceEnd = now
	}
	told := make(map[string]*protect.Settings, len(s.Settings))
	for i := range s.Settings {
		told[s.Settings[i].Cluster] = &s.Settings[i]
	}
	hold := make(map[string]time.Duration, len(s.Clusters))
	for i := range s.Clusters {
		if e := s.Clusters[i].Endpoints; e != nil {
			hold[s.Clusters[i].Name] = e.Return
		}
	}
	drops := make(map[string]bool)
	for name := range told {
		b.record(name)
	}
	for name := range s.Endpoints {
		b.record(name)
	}
	for name, r := range b.records {
		before := r.drop
		if err := b.settle(now, r, told[name], &c); err != nil {
			errs = append(errs, err)
		}
		drops[name] = before != r.drop
	}
	for name, r := range b.records {
		view, served := s.Endpoints[name]
		wait, said := hold[name]
		if !said {
			wait = 30 * time.Second
		}
		if served && !sameView(view, r.view) {
			if err := lawfulView(name, &view); err != nil {
				errs = append(errs, err)
				if r.resource == nil {
					c.withheld = append(c.withheld, name)
					continue
				}
				view = r.view
			}
		}
		b.place(now, r, view, served, told[name], drops[name], wait, &c)
	}
	b.own(s.Clusters, &c)
	maps.DeleteFunc(b.records, func(_ string, r *record) bool {
		return !r.served && r.clusterRe == nil && len(r.runtime) == 0 && r.drop == 0
	})
	slices.Sort(c.endpoints)
	slices.Sort(c.clusters)
	slices.Sort(c.withheld)
	return c, errors.Join(errs...)
}

// settle takes a cluster's numbers; nil withdraws them.
func (b *book) settle(now time.Time, r *record, s *protect.Settings, c *changes) error {
	runtime, drop := map[string]int64(nil), int64(0)
	if s != nil {
		if err := lawful(s); err != nil {
			return err
		}
		runtime, drop = maps.Collect(s.Runtime()), s.Drop
	}
	if r.inherited && len(runtime) == 0 && drop == 0 && now.Before(b.graceEnd) {
		return nil
	}
	r.inherited = false
	if !maps.Equal(runtime, r.runtime) {
		r.runtime, c.runtime = runtime, true
	}
	r.drop = drop
	return nil
}

// lawful checks what Envoy would not: it takes a value that it does not like
// for one that is not there.
func lawful(s *protect.Settings) error {
	if !utf8.ValidString(s.Cluster) {
		return fmt.Errorf("cluster %q: its name must be UTF-8", s.Cluster)
	}
	for address, h := range s.Health {
		if h > protect.Draining {
			return fmt.Errorf("cluster %s: health of %s must be from %d to %d (got %d)", s.Cluster, address, protect.Healthy, protect.Draining, h)
		}
	}
	for key, v := range s.Runtime() {
		if v < 0 || v > math.MaxUint32 {
			return fmt.Errorf("%s must be from 0 to %d (got %d)", key, uint32(math.MaxUint32), v)
		}
	}
	for _, f := range []struct {
		name string
		v    int64
	}{{"maintenance", s.Maintenance}, {"drop", s.Drop}} {
		if f.v < 0 || f.v > 100 {
			return fmt.Errorf("cluster %s: %s must be from 0 to 100 percent (got %d)", s.Cluster, f.name, f.v)
		}
	}
	return nil
}

// maxPriority is Envoy's.
const maxPriority = 127

// lawfulView checks endpoints: one that cannot be told would keep all others
// from being told.
func lawfulView(name string, v *discovery.View) error {
	if !utf8.ValidString(name) {
		return fmt.Errorf("cluster %q: its name must be UTF-8", name)
	}
	for i := range v.Endpoints {
		switch e := &v.Endpoints[i]; {
		case !e.Address.IsValid() || e.Address.Port() == 0:
			return fmt.Errorf("cluster %s: endpoint %v must be ip:port", name, e.Address)
		case e.Priority < 0 || e.Priority > maxPriority:
			return fmt.Errorf("cluster %s: endpoint %v: priority must be from 0 to %d (got %d)", name, e.Address, maxPriority, e.Priority)
		case !utf8.ValidString(e.Region) || !utf8.ValidString(e.Zone):
			return fmt.Errorf("cluster %s: endpoint %v: region and zone must be UTF-8 (got %q, %q)", name, e.Address, e.Region, e.Zone)
		case e.Health > discovery.Draining:
			return fmt.Errorf("cluster %s: endpoint %v: health must be from %d to %d (got %d)", name, e.Address, discovery.Healthy, discovery.Draining, e.Health)
		}
	}
	return nil
}

// place takes a cluster's endpoints.
func (b *book) place(now time.Time, r *record, view discovery.View, served bool, s *protect.Settings, dropped bool, hold time.Duration, c *changes) {
	if !served {
		if r.served {
			r.served, r.view, r.before, r.health, r.outages, r.out, r.resource = false, discovery.View{}, nil, nil, nil, nil, nil
			c.endpoints = append(c.endpoints, r.name)
		}
		return
	}
	var health map[string]protect.Health
	if s != nil {
		health = s.Health
	}
	if view.Version == 0 || len(view.Unread) > 0 {
		r.before = r.merge(r.view)
	}
	a := assignment{cluster: r.name, endpoints: r.merge(view), health: health, drop: r.drop, seq: r.seq}
	if r.resource == nil && len(a.endpoints) == 0 && (view.Version == 0 || len(view.Unread) > 0) {
		c.withheld = append(c.withheld, r.name)
		return
	}
	for _, e := range a.endpoints {
		for len(r.outages) <= e.Priority {
			r.outages = append(r.outages, outage{})
		}
	}
	a.out = regions(now, &a, r.outages, hold)
	if r.resource != nil && !dropped && maps.Equal(health, r.health) && slices.Equal(a.out, r.out) && sameView(view, r.view) {
		return
	}
	if dropped {
		b.pushes++
		r.seq = b.instance + "." + strconv.FormatUint(b.pushes, 10)
		a.seq = r.seq
	}
	r.served, r.view, r.health, r.out = true, view, health, a.out
	if len(view.Unread) == 0 && view.Version > 0 {
		r.before = nil
	}
	was := r.resource
	r.resource = a.build()
	if was == nil || !sameProto(was, r.resource) {
		c.endpoints = append(c.endpoints, r.name)
	}
}

// merge adds the hosts that were told before of priorities whose source was
// not read yet, by a new process or after a new policy.
func (r *record) merge(view discovery.View) []discovery.Endpoint {
	if len(r.before) == 0 || len(view.Unread) == 0 && view.Version > 0 {
		return view.Endpoints
	}
	all := slices.Clone(view.Endpoints)
	for _, e := range r.before {
		known := slices.ContainsFunc(view.Endpoints, func(o discovery.Endpoint) bool { return o.Address == e.Address })
		if !known && (view.Version == 0 && len(view.Unread) == 0 || slices.Contains(view.Unread, e.Priority)) {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, discovery.Order)
	return all
}

func sameView(a, b discovery.View) bool {
	if a.Version == b.Version && len(a.Endpoints) == len(b.Endpoints) && (len(a.Endpoints) == 0 || &a.Endpoints[0] == &b.Endpoints[0]) {
		return slices.Equal(a.Unread, b.Unread)
	}
	return slices.Equal(a.Endpoints, b.Endpoints) && slices.Equal(a.Unread, b.Unread)
}

// layer is the RTDS content of those clusters that admit lets through.
func (b *book) layer(admit func(string) bool) map[string]int64 {
	out := make(map[string]int64)
	for name, r := range b.records {
		if admit(name) {
			maps.Copy(out, r.runtime)
		}
	}
	return out
}

// expire withdraws what was inherited and nobody renewed. It names the
// clusters, in order.
func (b *book) expire(now time.Time) (changes, []string) {
	var c changes
	var gone []string
	if b.graceEnd.IsZero() || now.Before(b.graceEnd) {
		return c, nil
	}
	b.graceEnd = time.Time{}
	for name, r := range b.records {
		if !r.inherited {
			continue
		}
		gone = append(gone, name)
		dropped := r.drop != 0
		c.runtime = c.runtime || len(r.runtime) > 0
		r.inherited, r.runtime, r.drop = false, nil, 0
		if dropped && r.served {
			b.rebuild(r)
			c.endpoints = append(c.endpoints, name)
		}
	}
	slices.Sort(gone)
	slices.Sort(c.endpoints)
	return c, gone
}

// rebuild makes the EDS resource again with a new seq.
func (b *book) rebuild(r *record) {
	b.pushes++
	r.seq = b.instance + "." + strconv.FormatUint(b.pushes, 10)
	a := assignment{cluster: r.name, endpoints: r.merge(r.view), health: r.health, out: r.out, drop: r.drop, seq: r.seq}
	r.resource = a.build()
}

// inherited names the clusters whose overrides are those of the state on disk.
func (b *book) inherited() []string {
	var out []string
	for name, r := range b.records {
		if r.inherited {
			out = append(out, name)
		}
	}
	slices.SortFunc(out, strings.Compare)
	return out
}
