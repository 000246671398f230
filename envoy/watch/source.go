package watch

import (
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/policy"
)

// Sink takes rows of one Envoy from a source and gives how many it did not
// count, and why. Safe for concurrent use.
type Sink func(source string, rows []Counters) (refused int, why Garbage)

// Source brings counters of Envoys to a Sink until it is closed. What it
// brings of one Envoy is absolute and in order of time. Safe for concurrent
// use.
type Source interface {
	// Name is the source's name in metrics and logs.
	Name() string
	// Configure takes a policy: whom to ask, how often, and which clusters.
	Configure(p *policy.Policy)
	// Stats are figures since the start.
	Stats() SourceStats
	// Close ends it, and waits for what it has under way.
	Close()
}

// SourceStats are figures of a source since its start.
type SourceStats struct {
	Name     string
	Messages uint64 // or answers
	Bytes    uint64
	Rows     uint64            // one of an Envoy and a cluster
	Garbage  map[string]uint64 // what could not be used, by kind (Garbage); a kind without any is absent
	Targets  []Target          // whom it asks; none where it is told
}

// Target is an admin address that is asked.
type Target struct {
	Node, URL string
	Looks     uint64
	Missed    map[string]uint64 // looks without a result, by Miss
	Err       string            // of the last look; "" = it was well
}

// tally counts for SourceStats. The zero value is ready; safe for concurrent
// use.
type tally struct {
	messages, bytes, rows atomic.Uint64
	garbage               [numGarbage]atomic.Uint64
}

func (t *tally) stats(name string) SourceStats {
	s := SourceStats{Name: name, Messages: t.messages.Load(), Bytes: t.bytes.Load(), Rows: t.rows.Load(), Garbage: map[string]uint64{}}
	for g := range numGarbage {
		if n := t.garbage[g].Load(); n > 0 {
			s.Garbage[g.String()] = n
		}
	}
	return s
}

// note counts a message that was read.
func (t *tally) note(bytes, rows int, garbage *[numGarbage]uint64) {
	t.messages.Add(1)
	t.bytes.Add(uint64(bytes))
	t.rows.Add(uint64(rows))
	for g, n := range garbage {
		if n > 0 {
			t.garbage[g].Add(n)
		}
	}
	*garbage = [numGarbage]uint64{}
}

// deliver hands rows to a sink.
func (t *tally) deliver(sink Sink, source string, rows []Counters) {
	if len(rows) == 0 {
		return
	}
	if n, why := sink(source, rows); n > 0 {
		t.garbage[why].Add(uint64(n))
	}
}

// seldom lets the same words into the log once a minute. Safe for concurrent
// use.
type seldom struct {
	log  *slog.Logger
	mu   sync.Mutex
	said map[string]time.Time
}

const (
	sayAgain  = time.Minute
	saidLimit = 256 // lines a minute
)

func newSeldom(log *slog.Logger) *seldom { return &seldom{log: log, said: make(map[string]time.Time)} }

// warn logs unless it did of this about within a minute.
func (s *seldom) warn(now time.Time, about, text string, args ...any) {
	s.mu.Lock()
	last, ok := s.said[about]
	say := !ok || now.Sub(last) >= sayAgain || now.Before(last)
	if say && !ok && len(s.said) >= saidLimit {
		maps.DeleteFunc(s.said, func(_ string, at time.Time) bool { return now.Sub(at) >= sayAgain || now.Before(at) })
		say = len(s.said) < saidLimit // a peer may make up as many names as it likes
	}
	if say {
		s.said[about] = now
	}
	s.mu.Unlock()
	if say {
		s.log.Warn(text, args...)
	}
}

// watchedClusters are the names of the policy's clusters.
func watchedClusters(p *policy.Policy) []string {
	clusters := p.ProtectedClusters()
	names := make([]string, len(clusters))
	for i := range clusters {
		names[i] = clusters[i].Name
	}
	return names
}

func set(names []string) map[string]struct{} {
	m := make(map[string]struct{}, len(names))
	for _, n := range names {
		m[n] = struct{}{}
	}
	return m
}
