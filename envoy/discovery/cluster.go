package discovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/internal/nopanic"
	"github.com/weirproxy/weir/policy"
)

// Options are what a Cluster needs from outside.
type Options struct {
	// Resolve looks a name up; nil is net.DefaultResolver. Its context ends
	// after the source's interval, at most 5 s.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
	// Changed is called, from Run's goroutines, after each change of the view;
	// nil is nobody. It must not block.
	Changed func()
	// Connect is one heartbeat of a host; nil is a TCP connection that comes
	// about. Its context ends after the interval, at most 1 s.
	Connect func(ctx context.Context, host netip.AddrPort) error
}

// Problem is a source whose last reading failed.
type Problem struct {
	Set    int    // its place in the policy's priorities
	Source string // "file NAME", "dns NAME", "slices NAME"
	Err    error
	Since  time.Time // of the first failure in a row
}

// Cluster follows the sources of one cluster's endpoints. Safe for concurrent
// use.
type Cluster struct {
	sources []source
	changed func()
	view    atomic.Pointer[View]
	failed  atomic.Uint64
	every   time.Duration // of heartbeats; 0 = none
	connect func(ctx context.Context, host netip.AddrPort) error

	mu       sync.Mutex
	ledger   *ledger
	beats    beats
	judged   uint64 // changes by heartbeats
	problems map[int]Problem
}

// source is what one set is read from.
type source struct {
	set  policy.EndpointSet
	name string
	read func(context.Context) ([]Endpoint, error)
}

// New makes the follower of a cluster's endpoints. Static hosts are known at
// once; the others when Run, or Read, has read them.
func New(e *policy.Endpoints, o Options) (*Cluster, error) {
	sets := make([]set, len(e.Priorities))
	for i := range sets {
		sets[i] = set{priority: e.Priority(i), region: e.Priorities[i].Region, subset: SubsetOf(e.Priorities[i].Subset)}
	}
	c := &Cluster{changed: o.Changed, connect: o.Connect, ledger: newLedger(sets), problems: make(map[int]Problem)}
	if slices.ContainsFunc(sets, func(s set) bool { return s.priority != sets[0].priority }) {
		c.every = e.Heartbeat
	}
	if c.connect == nil {
		c.connect = connect
	}
	if c.changed == nil {
		c.changed = func() {}
	}
	if o.Resolve == nil {
		o.Resolve = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	for i := range e.Priorities {
		s, err := newSource(&e.Priorities[i], o)
		if err != nil {
			return nil, fmt.Errorf("priorities[%d]: %w", i, err)
		}
		c.sources = append(c.sources, s)
		if s.read == nil {
			list, err := static(s.set.Static)
			if err != nil {
				return nil, fmt.Errorf("priorities[%d]: %w", i, err)
			}
			c.ledger.put(i, list)
		}
	}
	c.publish()
	return c, nil
}

func newSource(set *policy.EndpointSet, o Options) (source, error) {
	s := source{set: *set}
	switch {
	case set.File != "":
		s.name = "file " + set.File
		s.read = func(ctx context.Context) ([]Endpoint, error) {
			return fromFile(ctx, set.File, func(data []byte) ([]Endpoint, error) { return parseList(set.File, data) })
		}
	case set.Slices != "":
		s.name = "slices " + set.Slices
		s.read = func(ctx context.Context) ([]Endpoint, error) {
			return fromFile(ctx, set.Slices, func(data []byte) ([]Endpoint, error) { return parseSlices(set.Slices, data, set.Port) })
		}
	case set.DNS != "":
		host, text, err := net.SplitHostPort(set.DNS)
		port, err2 := strconv.ParseUint(text, 10, 16)
		if err != nil || err2 != nil || port == 0 {
			return s, fmt.Errorf("dns must be host:port (got %q)", set.DNS)
		}
		s.name = "dns " + set.DNS
		s.read = func(ctx context.Context) ([]Endpoint, error) { return lookup(ctx, o.Resolve, host, uint16(port)) }
	}
	return s, nil
}

func static(hosts []string) ([]Endpoint, error) {
	list := make([]Endpoint, 0, len(hosts))
	for _, h := range hosts {
		a, err := netip.ParseAddrPort(h)
		if err != nil {
			return nil, fmt.Errorf("static must be ip:port (got %q)", h)
		}
		list = append(list, Endpoint{Address: plain(a)})
	}
	return list, nil
}

// lookup takes each address once. An answer without addresses is a failure.
func lookup(ctx context.Context, resolve func(context.Context, string) ([]netip.Addr, error), host string, port uint16) ([]Endpoint, error) {
	ips, err := resolve(ctx, host)
	if err != nil {
		return nil, err
	}
	var list []Endpoint
	seen := make(map[netip.Addr]bool, len(ips))
	for _, ip := range ips {
		if ip = ip.Unmap().WithZone(""); ip.IsValid() && !seen[ip] {
			seen[ip] = true
			list = append(list, Endpoint{Address: netip.AddrPortFrom(ip, port)})
		}
	}
	switch {
	case len(list) == 0:
		return nil, fmt.Errorf("%s has no address", host)
	case len(list) > maxEndpoints:
		return nil, fmt.Errorf("%s has %d addresses, more than %d", host, len(list), maxEndpoints)
	}
	return list, nil
}

// Run reads each source at once and then at its interval, and asks hosts for
// heartbeats, until the context ends. It has no goroutine left when it returns.
// Call it once.
func (c *Cluster) Run(ctx context.Context) {
	var group sync.WaitGroup
	if c.every > 0 {
		group.Go(func() { c.beat(ctx, c.every) })
	}
	for i := range c.sources {
		if c.sources[i].read != nil {
			group.Go(func() { c.poll(ctx, i) })
		}
	}
	group.Wait()
}

func (c *Cluster) poll(ctx context.Context, set int) {
	every := cmp.Or(c.sources[set].set.Every, 5*time.Second)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		within, stop := context.WithTimeout(ctx, min(every, 5*time.Second))
		c.readOne(within, set)
		stop()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Read reads all sources once, one after the other, such as before serving
// begins.
func (c *Cluster) Read(ctx context.Context) {
	for i := range c.sources {
		if c.sources[i].read != nil {
			c.readOne(ctx, i)
		}
	}
}

func (c *Cluster) readOne(ctx context.Context, set int) {
	s := &c.sources[set]
	list, err := s.once(ctx)
	if c.take(ctx, set, s, list, err) {
		c.changed()
	}
}

// once reads a source once.
func (s *source) once(ctx context.Context) (list []Endpoint, err error) {
	defer nopanic.Catch(&err)
	return s.read(ctx)
}

func (c *Cluster) take(ctx context.Context, set int, s *source, list []Endpoint, err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		if errors.Is(ctx.Err(), context.Canceled) {
			return false // we stopped it
		}
		c.failed.Add(1)
		was, again := c.problems[set]
		if !again {
			was = Problem{Set: set, Source: s.name, Since: time.Now()}
		}
		was.Err = err
		c.problems[set] = was
		return false
	}
	delete(c.problems, set)
	if !c.ledger.put(set, list) {
		return false
	}
	c.publish()
	return true
}

func (c *Cluster) publish() {
	v := c.ledger.view
	v.Version += c.judged
	v.Endpoints = c.beats.judge(v.Endpoints)
	c.view.Store(&v)
}

// View is what is known now.
func (c *Cluster) View() View { return *c.view.Load() }

// Failures counts readings that failed.
func (c *Cluster) Failures() uint64 { return c.failed.Load() }

// Problems are the sources whose last reading failed, in their order. Their last
// good list stays in the view.
func (c *Cluster) Problems() []Problem {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]Problem, 0, len(c.problems))
	for _, p := range c.problems {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b Problem) int { return a.Set - b.Set })
	return out
}
