package main

import (
	"bytes"
	"context"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/breaker/membus"
	"github.com/weirproxy/weir/internal/admin"
	"github.com/weirproxy/weir/internal/telemetry"
	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota/memstore"
)

// streetPolicy has two pools of one cluster, and a gRPC one of another.
const streetPolicy = `version: 1
identity: {from: metadata}
models: [{name: m, pools: [chat, small, infer]}]
pools:
  - {name: chat, variant: fp16, envoy: {cluster: c}, seats: {requests: 40}}
  - {name: small, variant: int8, envoy: {cluster: c, subset: {pool: small}}, seats: {requests: 40}}
  - {name: infer, variant: fp16, envoy: {cluster: g}, protocol: grpc, seats: {requests: 40}}
breaker: {tenant: {enabled: true}}
`

// readPolicy reads a policy's text.
func readPolicy(t testing.TB, text string) *policy.Policy {
	t.Helper()
	file := filepath.Join(t.TempDir(), "weir.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := policy.LoadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// lines is a log for tests.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), text)
}

// replica is a street with its desk.
type replica struct {
	*street
	t      testing.TB
	desk   *admission.Desk
	bus    *membus.Bus // nil = another one, or none
	holder *policy.Holder
	log    *lines
	spans  []breaker.Transition
	unwell map[string][]string
	mu     sync.Mutex // of spans and unwell
}

// newReplica makes and starts one; board nil = no bus.
func newReplica(t testing.TB, name string, p *policy.Policy, board *membus.Board) *replica {
	t.Helper()
	if board == nil {
		return newReplicaOn(t, name, p, nil)
	}
	bus := board.Join()
	r := newReplicaOn(t, name, p, bus)
	r.bus = bus
	return r
}

func newReplicaOn(t testing.TB, name string, p *policy.Policy, bus breaker.Bus) *replica {
	t.Helper()
	now := time.Now()
	r := &replica{t: t, holder: policy.NewHolder(p), log: &lines{}, unwell: map[string][]string{}}
	journal, council := new(breaker.Journal), breaker.NewCouncil(name, p.Breaker)
	r.desk = admission.New(admission.Options{
		Policy: p, Store: memstore.New(memstore.Options{}), Journal: journal, Council: council,
		Gauges: newGauges(slog.New(slog.DiscardHandler)).reading, Rand: rand.New(rand.NewPCG(1, 2)),
	})
	o := streetOptions{
		Policy: r.holder.Current, Desk: r.desk, Journal: journal, Council: council, Replica: name, Bus: bus,
		Unwell:  func(pool string, _ time.Time) []string { r.mu.Lock(); defer r.mu.Unlock(); return r.unwell[pool] },
		Metrics: telemetry.New(10, "test"), Log: slog.New(slog.NewTextHandler(r.log, nil)),
		Trace: func(t *breaker.Transition) { r.mu.Lock(); defer r.mu.Unlock(); r.spans = append(r.spans, *t) },
	}
	var err error
	if r.street, err = newStreet(now, o); err != nil {
		t.Fatal(err)
	}
	r.fill(context.Background())
	r.start(context.Background())
	return r
}

func (r *replica) end() {
	r.close()
	r.desk.Close()
}

// ends counts n ends of requests at a pool.
func (r *replica) ends(pool string, n int, failed bool) {
	for range n {
		r.desk.Breaker(pool).Record(time.Now(), failed, false)
	}
}

func (r *replica) pool(name string) admission.PoolBreaker {
	r.t.Helper()
	for _, b := range r.desk.Breakers(time.Now()) {
		if b.Pool == name {
			return b
		}
	}
	r.t.Fatalf("no pool %s", name)
	return admission.PoolBreaker{}
}

// entries are those of the timeline about something.
func (r *replica) entries(what string) (out []entry) {
	for _, e := range r.timeline.view(admin.TimelineQuery{}).Entries {
		if e.What == what {
			out = append(out, e)
		}
	}
	return out
}

// TestStreetCascade: what opens at one replica is known to the others within
// 250 ms, who shed batch for it, until their own evidence says otherwise (B3).
func TestStreetCascade(t *testing.T) {
	p := readPolicy(t, streetPolicy)
	synctest.Test(t, func(t *testing.T) {
		var board membus.Board
		a, b, c := newReplica(t, "a", p, &board), newReplica(t, "b", p, &board), newReplica(t, "c", p, &board)
		defer a.end()
		defer b.end()
		defer c.end()
		time.Sleep(time.Second)

		a.ends("chat", 40, true)
		if a.pool("chat").View.State != breaker.Hard {
			t.Fatal("40 failures opened nothing")
		}
		time.Sleep(250 * time.Millisecond)
		for _, r := range []*replica{b, c} {
			if s := r.pool("chat"); !s.Sheds || s.Ruling.Elsewhere != breaker.Hard || s.View.State != breaker.Closed {
				t.Errorf("after 250 ms: %+v", s)
			}
			if s := r.pool("small"); s.Sheds {
				t.Error("another pool is shed")
			}
		}
		// The others reach the pool well: they outvote the one that is cut off.
		b.ends("chat", 40, false)
		c.ends("chat", 40, false)
		time.Sleep(p.Breaker.Cascade.Renew + time.Second)
		if s := b.pool("chat"); s.Sheds || s.Ruling.Votes < 2 {
			t.Errorf("two of three reach the pool, and yet: %+v", s.Ruling)
		}
		up, _, stats := b.speaker.state(time.Now())
		if !up || stats.said == 0 || stats.heard == 0 || stats.failed > 0 {
			t.Errorf("bus: up %v, %+v", up, stats)
		}
		moved := a.entries(entryTransition)
		if len(moved) == 0 || moved[0].Breaker != "chat" || moved[0].Cluster != "c" || moved[0].From != "closed" || moved[0].To != "hard" ||
			moved[0].Because != "20 of 20 ends failed, 50 % and more are too many" {
			t.Errorf("the timeline says %+v", moved)
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		if len(a.spans) != len(moved) || a.spans[0].To != breaker.Hard {
			t.Errorf("%d spans for %d transitions", len(a.spans), len(moved))
		}
	})
}

// TestStreetTimePasses: a breaker recovers without anybody asking it.
func TestStreetTimePasses(t *testing.T) {
	p := readPolicy(t, streetPolicy)
	synctest.Test(t, func(t *testing.T) {
		r := newReplica(t, "a", p, nil)
		defer r.end()
		r.ends("chat", 40, true)
		r.desk.Tenants().Trip(time.Now(), "acme", breaker.Hard, time.Second, "test")
		time.Sleep(p.Breaker.Open*12/10 + 2*clockEvery) // jitter is a fifth
		var to []string
		for _, e := range r.entries(entryTransition) {
			to = append(to, e.Breaker+" "+e.To)
		}
		if got := strings.Join(to, ", "); got != "chat hard, acme hard, acme half_open, chat half_open" {
			t.Errorf("transitions: %s", got)
		}
	})
}

// slowBus brings what stands word by word, as a network does.
type slowBus struct{ breaker.Bus }

func (b slowBus) Listen(ctx context.Context, heard func(breaker.Opinion), down func(error)) {
	b.Bus.Listen(ctx, func(o breaker.Opinion) {
		time.Sleep(20 * time.Millisecond)
		heard(o)
	}, down)
}

// TestStreetTakesOver: a replica that starts opens what the quorum has open, and
// nothing that one alone says; so does one that comes back.
func TestStreetTakesOver(t *testing.T) {
	p := readPolicy(t, streetPolicy)
	synctest.Test(t, func(t *testing.T) {
		var board membus.Board
		a, b := newReplica(t, "a", p, &board), newReplica(t, "b", p, &board)
		defer a.end()
		defer b.end()
		time.Sleep(time.Second)
		a.ends("chat", 40, true)
		b.ends("chat", 40, true)
		a.ends("small", 40, true) // b reaches this one well
		b.ends("small", 40, false)
		for _, r := range []*replica{a, b} {
			r.desk.Tenants().Trip(time.Now(), "acme", breaker.Hard, time.Minute, "test")
		}
		time.Sleep(p.Breaker.Cascade.Renew)
		for _, r := range []*replica{a, b} { // open again, as by traffic
			if r.pool("chat").View.State == breaker.Closed {
				t.Fatal("recovered without probes")
			}
			r.desk.Breaker("chat").Reset(time.Now(), "test")
			r.ends("chat", 40, true)
		}
		time.Sleep(2 * clockEvery)
		d := newReplicaOn(t, "d", p, slowBus{board.Join()})
		defer d.end()
		time.Sleep(joinFor + 3*clockEvery)
		if s := d.pool("chat").View; s.State != breaker.Hard || s.Cause != breaker.ByRestore {
			t.Errorf("the newcomer has chat %v by %v, want hard by restore", s.State, s.Cause)
		}
		if s := d.pool("small").View; s.State != breaker.Closed {
			t.Errorf("the newcomer has small %v by the word of one", s.State)
		}
	})
}

// TestStreetKnowsItsOwnWords: who restarts goes on where it was.
func TestStreetKnowsItsOwnWords(t *testing.T) {
	p := readPolicy(t, streetPolicy)
	synctest.Test(t, func(t *testing.T) {
		var board membus.Board
		a := newReplica(t, "a", p, &board)
		time.Sleep(time.Second)
		a.desk.Breaker("chat").Trip(time.Now(), breaker.Hard, time.Minute, "test")
		a.desk.Tenants().Trip(time.Now(), "acme", breaker.Soft, time.Minute, "test")
		time.Sleep(time.Second)
		a.end()
		again := newReplicaOn(t, "a", p, slowBus{board.Join()})
		defer again.end()
		time.Sleep(joinFor + 3*clockEvery)
		if s := again.pool("chat").View; s.State != breaker.Hard || s.Left < 2*p.Breaker.Open-time.Second || s.By != "replica a" {
			t.Errorf("after a restart chat is %+v", s)
		}
		b := again.desk.Tenants().Get("acme")
		if b == nil || b.View(time.Now()).State != breaker.Soft {
			t.Error("after a restart the tenant's breaker is closed")
		}
	})
}

// TestStreetBusAway: without the bus each replica goes by its own breakers; that
// is said once, and that it is back.
func TestStreetBusAway(t *testing.T) {
	p := readPolicy(t, streetPolicy)
	synctest.Test(t, func(t *testing.T) {
		var board membus.Board
		a, b := newReplica(t, "a", p, &board), newReplica(t, "b", p, &board)
		defer a.end()
		defer b.end()
		time.Sleep(time.Second)
		a.bus.Cut()
		time.Sleep(time.Second)
		a.ends("chat", 40, true)
		time.Sleep(time.Second)
		if a.pool("chat").View.State != breaker.Hard {
			t.Error("its own breaker does nothing")
		}
		if b.pool("chat").Sheds {
			t.Error("a word came over a bus that is away")
		}
		time.Sleep(30 * time.Second)
		if up, age, stats := a.speaker.state(time.Now()); up || age < 30*time.Second || stats.losses != 1 || stats.failed == 0 {
			t.Errorf("cut off for 32 s: up %v, age %v, %+v", up, age, stats)
		}
		if n := a.log.count("the bus between replicas is away"); n != 1 {
			t.Errorf("said %d times that the bus is away", n)
		}
		a.bus.Mend()
		time.Sleep(longestPause + time.Second)
		if up, _, _ := a.speaker.state(time.Now()); !up || a.log.count("the bus between replicas is back") != 1 {
			t.Error("not back")
		}
		if got := a.entries(entryBus); len(got) != 2 || got[0].To != "away" || got[1].To != "up" {
			t.Errorf("the timeline says %+v", got)
		}
		a.ends("small", 40, true)
		time.Sleep(250 * time.Millisecond)
		if !b.pool("small").Sheds {
			t.Error("after the bus is back a word does not arrive")
		}
	})
}
