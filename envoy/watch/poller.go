package watch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/internal/nopanic"
	"github.com/weirproxy/weir/policy"
)

// SourceAdmin is the name of Poller.
const SourceAdmin = "admin"

// maxAnswer is the largest answer that is read: 10,000 clusters by 18
// statistics of long names.
const maxAnswer = 32 << 20

// maxHeader bounds what stands before an answer; keepPage is the largest
// buffer that is kept from one look to the next where fewer bytes came.
const (
	maxHeader = 64 << 10
	keepPage  = 1 << 20
)

// The schedule of a target: each look is up to jitterShare of a period away
// from its place, so that many weirs do not ask in step. A look may last a
// period, at least leastDeadline. After misses in a row the gap doubles, up to
// mostBackOff.
const (
	jitterShare   = 0.05
	leastDeadline = time.Second
	mostDeadline  = 5 * time.Second
	mostBackOff   = 10 * time.Second
)

// Miss says why a look at an admin address gave nothing.
type Miss string

// The misses.
const (
	MissConnect Miss = "connect" // no connection, or it broke
	MissTimeout Miss = "timeout"
	MissDenied  Miss = "denied" // 403: admin.allow_paths lacks /stats
	MissStatus  Miss = "status" // another status than 200
	MissSize    Miss = "size"   // beyond 32 MiB
	MissEmpty   Miss = "empty"  // no statistic of a watched cluster
)

// missed is a look without a result.
type missed struct {
	why Miss
	err error
}

func (m *missed) Error() string { return m.err.Error() }
func (m *missed) Unwrap() error { return m.err }

// Poller reads the admin addresses of the policy:
//
//	/stats?filter=^cluster\.(a|b)\.(upstream_cx_active|...)$&usedonly&format=text
//
// as text, a line for each statistic, which is a third of the same as JSON.
// Each target has its own goroutine: one that hangs delays no other.
type Poller struct {
	sink  Sink
	log   *slog.Logger
	seed  uint64
	conf  atomic.Pointer[pollConf]
	tally tally

	// Tests put others in.
	limit     int64 // bytes of an answer
	transport func(t policy.EnvoyAdmin) (base string, rt http.RoundTripper)

	mu      sync.Mutex
	closed  bool
	started uint64
	targets map[pollKey]*pollTarget
	work    sync.WaitGroup
}

type pollConf struct {
	watched map[string]struct{}
	query   string
}

type pollKey struct {
	policy.EnvoyAdmin
	every time.Duration
}

// pollTarget is a target with its goroutine.
type pollTarget struct {
	key    pollKey
	cancel context.CancelFunc
	base   string
	client *http.Client

	mu     sync.Mutex // of what follows
	looks  uint64
	missed map[string]uint64
	err    string
}

// NewPoller makes a poller without targets; Configure brings them. log hears
// of the first miss of a row and of its end; seed makes phases and jitter.
func NewPoller(sink Sink, log *slog.Logger, seed uint64) *Poller {
	p := &Poller{sink: sink, log: log, seed: seed, limit: maxAnswer, transport: adminTransport, targets: make(map[pollKey]*pollTarget)}
	p.conf.Store(&pollConf{})
	return p
}

// Name is SourceAdmin.
func (p *Poller) Name() string { return SourceAdmin }

// Configure takes a policy: targets that are new start, those that are gone
// end, the rest goes on.
func (p *Poller) Configure(pol *policy.Policy) {
	names := watchedClusters(pol)
	p.conf.Store(&pollConf{watched: set(names), query: "/stats?usedonly&format=text&filter=" + url.QueryEscape(filter(names, regexp.QuoteMeta))})
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	wanted := make(map[pollKey]bool)
	for _, a := range pol.Envoy.Watch.Admin {
		key := pollKey{a, pol.Envoy.Watch.Every}
		wanted[key] = true
		if p.targets[key] == nil {
			p.start(key)
		}
	}
	for key, t := range p.targets {
		if !wanted[key] {
			t.cancel()
			delete(p.targets, key)
		}
	}
}

func (p *Poller) start(key pollKey) {
	ctx, cancel := context.WithCancel(context.Background())
	base, rt := p.transport(key.EnvoyAdmin)
	t := &pollTarget{key: key, cancel: cancel, base: base, missed: make(map[string]uint64), client: client(rt)}
	p.targets[key] = t
	p.started++
	rng := rand.New(rand.NewPCG(p.seed, p.started))
	p.work.Go(func() { p.poll(ctx, t, rng) })
}

// client follows no redirect.
func client(rt http.RoundTripper) *http.Client {
	return &http.Client{Transport: rt, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// adminTransport dials an admin address.
func adminTransport(t policy.EnvoyAdmin) (string, http.RoundTripper) {
	rt := &http.Transport{MaxIdleConnsPerHost: 1, DisableCompression: true, MaxResponseHeaderBytes: maxHeader}
	path, unix := strings.CutPrefix(t.URL, "unix:")
	if !unix {
		return strings.TrimSuffix(t.URL, "/"), rt
	}
	rt.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}
	return "http://envoy", rt
}

// Stats are figures since the start; those of a target since it was last
// configured.
func (p *Poller) Stats() SourceStats {
	s := p.tally.stats(SourceAdmin)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.targets {
		s.Targets = append(s.Targets, t.stats())
	}
	sortTargets(s.Targets)
	return s
}

func (t *pollTarget) stats() Target {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := Target{Node: t.key.Node, URL: t.key.URL, Looks: t.looks, Missed: make(map[string]uint64, len(t.missed)), Err: t.err}
	for k, n := range t.missed {
		out.Missed[k] = n
	}
	return out
}

// Close ends all targets and waits for them.
func (p *Poller) Close() {
	p.mu.Lock()
	p.closed = true
	for key, t := range p.targets {
		t.cancel()
		delete(p.targets, key)
	}
	p.mu.Unlock()
	p.work.Wait()
}

// poll looks at one target until ctx ends.
func (p *Poller) poll(ctx context.Context, t *pollTarget, rng *rand.Rand) {
	defer t.client.CloseIdleConnections()
	every := t.key.every
	timer := time.NewTimer(time.Duration(rng.Float64() * float64(every)))
	defer timer.Stop()
	tab := newTable(nil)
	var page bytes.Buffer
	due, misses := time.Now(), 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		err := p.look(ctx, t, tab, &page)
		if ctx.Err() != nil {
			return
		}
		misses = p.note(t, err, misses)
		now := time.Now()
		gap := backOff(every, misses)
		if due = due.Add(gap); due.Before(now) || due.Sub(now) > 2*gap {
			due = now.Add(gap)
		}
		jitter := time.Duration((2*rng.Float64() - 1) * jitterShare * float64(gap))
		timer.Reset(max(0, due.Add(jitter).Sub(now)))
	}
}

// backOff is the gap after so many misses in a row.
func backOff(every time.Duration, misses int) time.Duration {
	gap := every
	for i := 1; i < misses && gap < mostBackOff; i++ {
		gap = min(2*gap, mostBackOff)
	}
	return max(gap, every)
}

// note counts a look and logs the ends of a row of misses.
func (p *Poller) note(t *pollTarget, err error, misses int) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.looks++
	if err == nil {
		if misses > 0 {
			p.log.Info("Envoy's admin address answers again", "node", t.key.Node, "url", t.key.URL, "misses", misses)
		}
		t.err = ""
		return 0
	}
	why := MissConnect
	if m, ok := errors.AsType[*missed](err); ok {
		why = m.why
	}
	t.missed[string(why)]++
	if misses == 0 || t.err != err.Error() && why == MissDenied {
		p.log.Warn("Envoy's statistics cannot be read", "node", t.key.Node, "url", t.key.URL, "miss", string(why), "error", err)
	}
	t.err = err.Error()
	return misses + 1
}

// look reads a target once.
func (p *Poller) look(ctx context.Context, t *pollTarget, tab *table, page *bytes.Buffer) (err error) {
	defer nopanic.Catch(&err)
	defer func() {
		if page.Cap() > keepPage && page.Len() < page.Cap()/4 || err != nil && page.Cap() > keepPage {
			*page = bytes.Buffer{}
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, min(max(t.key.every, leastDeadline), mostDeadline))
	defer cancel()
	conf := p.conf.Load()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, t.base+conf.query, http.NoBody)
	if err != nil {
		return &missed{MissConnect, err}
	}
	resp, err := t.client.Do(req)
	if err != nil {
		return broke(err)
	}
	at := time.Now()
	defer resp.Body.Close()
	page.Reset()
	if resp.StatusCode == http.StatusSwitchingProtocols { // its body ends with no context
		return &missed{MissStatus, errors.New("status 101")}
	}
	_, err = page.ReadFrom(io.LimitReader(resp.Body, p.limit+1))
	body := page.Bytes()
	switch {
	case err != nil:
		return broke(err)
	case resp.StatusCode == http.StatusForbidden:
		return &missed{MissDenied, fmt.Errorf("403 %.100q: the path is not in Envoy's admin.allow_paths; add {prefix: /stats} there", body)}
	case resp.StatusCode != http.StatusOK:
		return &missed{MissStatus, fmt.Errorf("status %d %.100q", resp.StatusCode, body)}
	case int64(len(body)) > p.limit:
		return &missed{MissSize, fmt.Errorf("the answer is larger than %d KiB", p.limit>>10)}
	}
	tab.watch(conf.watched)
	tab.begin(true)
	var garbage [numGarbage]uint64
	readText(body, tab, &garbage)
	rows := tab.end(t.key.Node, at)
	p.tally.note(len(body), len(rows), &garbage)
	p.tally.deliver(p.sink, SourceAdmin, rows)
	if len(rows) == 0 {
		return &missed{MissEmpty, errors.New("it has no statistic of a watched cluster: has it none of them, or does its stats_matcher leave them out?")}
	}
	return nil
}

// broke says why a request failed.
func broke(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return &missed{MissTimeout, err}
	}
	return &missed{MissConnect, err}
}
