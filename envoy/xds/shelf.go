package xds

import (
	"fmt"
	"maps"
	"sync"

	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
)

// shelf is one type's resources for one group of nodes. Nodes that refused a
// resource read from a cache of their own, in which the last content that
// nobody refused stands in its place.
//
// Until it is filled it answers nobody: an empty answer would take back what
// an Envoy still has from an earlier life of ours.
type shelf struct {
	typeURL, prefix string

	mu      sync.Mutex
	filled  bool
	parked  map[*watch]struct{}
	common  store
	items   map[string]*item
	soon    map[string]bool             // names that will be there
	refused map[*node]map[string]string // hash of what a node did not take, by name
	noted   int                         // entries of refused
	private map[*node]*private
	made    uint64 // numbers private caches, whose versions must differ
}

// store is a cache and what its versions begin with.
type store struct {
	*cachev3.LinearCache
	prefix string
}

// item is one resource.
type item struct {
	res     types.Resource
	hash    string // as delta tells it; made when needed
	refused bool   // by somebody
	good    *item  // the last content that nobody refused
}

// private is the cache of a node that refused something.
type private struct {
	cache store
	shown map[string]*item
}

func newShelf(typeURL, prefix string) *shelf {
	return &shelf{
		typeURL: typeURL, prefix: prefix,
		parked:  make(map[*watch]struct{}),
		common:  newCache(typeURL, prefix),
		items:   make(map[string]*item),
		refused: make(map[*node]map[string]string),
		private: make(map[*node]*private),
	}
}

func newCache(typeURL, prefix string) store {
	return store{cachev3.NewLinearCache(typeURL, cachev3.WithVersionPrefix(prefix)), prefix}
}

func (i *item) version() string {
	if i.hash == "" {
		if raw, err := cachev3.MarshalResource(i.res); err == nil {
			i.hash = cachev3.HashResource(raw)
		}
	}
	return i.hash
}

// put changes resources, takes some away, and lets those who wait for the
// first content go.
func (s *shelf) put(changed map[string]types.Resource, removed []string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, res := range changed {
		next := &item{res: res}
		if was := s.items[name]; was != nil {
			next.good = was
			if was.refused {
				next.good = was.good
			}
			was.good = nil // two are kept, not a chain
		}
		s.items[name] = next
	}
	for _, name := range removed {
		delete(s.items, name)
	}
	var err error
	if len(changed)+len(removed) > 0 {
		err = s.common.UpdateResources(changed, removed)
		for n, p := range s.private {
			if e := s.refresh(n, p, changed, removed); e != nil {
				err = e
			}
		}
	}
	s.filled = true
	for w := range s.parked {
		if e := w.open(s.common); e != nil {
			err = e
		}
	}
	clear(s.parked)
	return err
}

func (s *shelf) refresh(n *node, p *private, changed map[string]types.Resource, removed []string) error {
	update := make(map[string]types.Resource)
	for name := range changed {
		if show := s.pick(n, name); show != p.shown[name] {
			p.shown[name], update[name] = show, show.res
		}
	}
	for _, name := range removed {
		delete(p.shown, name)
	}
	if len(update)+len(removed) == 0 {
		return nil
	}
	return p.cache.UpdateResources(update, removed)
}

// pick is what a node gets of a resource: where it refused what is there, the
// last good one, if there is one that it did not refuse either.
func (s *shelf) pick(n *node, name string) *item {
	i := s.items[name]
	refused := s.refused[n][name]
	if refused != "" && i.good != nil && i.version() == refused && i.good.version() != refused {
		return i.good
	}
	return i
}

// refuse notes what a node did not take. It reports whether there is a better
// content for it.
func (s *shelf) refuse(n *node, hashes map[string]string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	better := false
	for name, hash := range hashes {
		if i := s.items[name]; i != nil && i.version() == hash {
			i.refused = true
			if !s.note(n, name, hash) {
				continue
			}
			better = better || i.good != nil && i.good.version() != hash
		}
	}
	if !better || s.private[n] != nil {
		if p := s.private[n]; p != nil {
			changed := make(map[string]types.Resource, len(hashes))
			for name := range hashes {
				if s.items[name] != nil {
					changed[name] = nil
				}
			}
			_ = s.refresh(n, p, changed, nil) // its error is that of marshalling what was marshalled before
		}
		return better
	}
	if (len(s.private)+1)*len(s.items) > maxPrivate {
		return false // it keeps what it has until the next content
	}
	s.made++
	p := &private{cache: newCache(s.typeURL, fmt.Sprintf("%sq%d.", s.prefix, s.made)), shown: make(map[string]*item, len(s.items))}
	all := make(map[string]types.Resource, len(s.items))
	for name := range s.items {
		p.shown[name] = s.pick(n, name)
		all[name] = p.shown[name].res
	}
	p.cache.SetResources(all)
	s.private[n] = p
	return true
}

// note remembers a refusal, as far as there is room.
func (s *shelf) note(n *node, name, hash string) bool {
	m := s.refused[n]
	if _, had := m[name]; !had {
		if s.noted == maxPrivate {
			return false
		}
		s.noted++
	}
	if m == nil {
		m = make(map[string]string)
		s.refused[n] = m
	}
	m[name] = hash
	return true
}

// forget ends a node's cache of its own.
func (s *shelf) forget(n *node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.private, n)
	s.noted -= len(s.refused[n])
	delete(s.refused, n)
}

// cacheFor is where a node reads. A private cache that differs from the
// common one in nothing is given up.
func (s *shelf) cacheFor(n *node) store {
	p := s.private[n]
	if p == nil {
		return s.common
	}
	if maps.Equal(p.shown, s.items) {
		delete(s.private, n)
		return s.common
	}
	return p.cache
}

// watch opens a watch, now or when there is something to answer. The function
// ends it.
func (s *shelf) watch(n *node, w *watch) (func(), error) {
	s.mu.Lock()
	if !s.filled {
		s.parked[w] = struct{}{}
		s.mu.Unlock()
		return func() {
			s.mu.Lock()
			delete(s.parked, w)
			s.mu.Unlock()
			w.end()
		}, nil
	}
	c := s.cacheFor(n)
	s.mu.Unlock()
	return w.end, w.open(c)
}

// lacks reports whether a resource is known not to be there.
func (s *shelf) lacks(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.filled && s.items[name] == nil && !s.soon[name]
}

// expect says which names will be there though they are not yet.
func (s *shelf) expect(names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.soon = make(map[string]bool, len(names))
	for _, name := range names {
		s.soon[name] = true
	}
}

// watch is one open request. It can be asked again with some resources
// forgotten, so that they are sent once more.
type watch struct {
	start func(c store, forgotten map[string]bool) (func(), error)

	mu    sync.Mutex
	over  bool
	cache store
	stop  func()
}

func (w *watch) open(c store) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		return nil
	}
	var err error
	w.cache = c
	w.stop, err = w.start(c, nil)
	return err
}

func (w *watch) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	if w.stop != nil {
		w.stop()
		w.stop = nil
	}
}

// again sends resources that the client has once more.
func (w *watch) again(names map[string]bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over || w.cache.LinearCache == nil {
		return nil
	}
	if w.stop != nil {
		w.stop()
	}
	var err error
	w.stop, err = w.start(w.cache, names)
	return err
}

// forgetful is a subscription whose client is taken not to have some
// resources.
type forgetful struct {
	cachev3.Subscription
	returned map[string]string
}

func forget(sub cachev3.Subscription, names map[string]bool) cachev3.Subscription {
	if len(names) == 0 {
		return sub
	}
	r := maps.Clone(sub.ReturnedResources())
	maps.DeleteFunc(r, func(name, _ string) bool { return names[name] })
	return forgetful{sub, r}
}

// ReturnedResources is what the client has, less what is forgotten.
func (f forgetful) ReturnedResources() map[string]string { return f.returned }
