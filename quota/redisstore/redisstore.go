// Package redisstore keeps quota counters in Redis, for replicas that share
// them: a single server, Sentinel or Cluster, 6.2 or later.
//
// Each decision is one Lua script on the keys of one slot (all keys of a tenant
// under one hash tag), by the server's clock, idempotent by
// the request's id. Claims in several slots are asked slot by slot, the slot
// quota.Shared first; when a later one refuses, the earlier ones get theirs
// back, so in between they may refuse others for it but never admit too many.
// Every key has a lifetime, set in the script that makes it.
//
// # Scripts that are cut
//
// A script may end between any two of its commands: a right is denied, a slot
// moves, writes are refused. It therefore notes all its writes, which may be
// run twice, in one command before it makes the first, and who finds such a
// note in a slot finishes it first (lua/log.lua). So a slot is whole whenever
// a script decides in it, and a replay of what was cut charges nothing twice.
//
// # Concurrency belongs to a replica
//
// A unit of concurrency counts for four seconds by the server's clock; the
// store that took it renews it once a second, many in a round trip, for as
// long as the request runs. So units of a replica that died are free within
// five seconds, whoever asks, and no others are; nothing on the way of a
// decision waits for it. A store that was paused, or a Redis that lost its
// memory, finds what still runs charged again within a second, by the
// request's id and so once. With the caller's clock (now is not zero) units
// last for the hold time: nobody could renew them.
//
// # Keys
//
// All begin with the prefix and the slot's hash tag, weir:{acme}:, then
//
//	c:unit:period:key  a counter: a hash of cells, or a sorted set of ids by
//	                   the instant at which they no longer count
//	r:id               a request's record: a JSON list
//	i:                 the slot's counters, for Usage
//	l:                 the writes of a script that is under way, or was cut
//	p:                 probes
//
// # While Redis is away
//
// A decision waits for Redis no longer than policy.Redis.Timeout (10 ms).
// After the first miss, whatever its kind, the store decides by itself: each
// replica holds to its share of every limit, max/replicas rounded down but at
// least 1, counting its share of the last known usage. A counter's window so
// admits at most its limit over all replicas, or one per replica where the
// limit is smaller than their number, as long as the last known usage was
// fresh; what other replicas used since is over and above. Concurrency starts
// from what the replica itself granted while Redis was away, so together with
// the calls that were running it may reach twice the limit.
//
// The background probe makes a new connection every RetryAfterOutage; when a
// write answers in time, what was given is charged to Redis, by id and by
// age, and units are renewed before Redis decides again. What Redis
// acknowledged in the last minute is checked too, and charged again if a
// fail-over lost it. The journal of these is bounded; what it had to drop is
// in Stats. Nothing is charged that Redis may have taken so long ago that it
// has forgotten the id. A probe runs every command that decisions run: a right
// that is missing is an outage, named in the log, also at the start, before
// any request. Flush, before Close, tells Redis what it has yet to be told.
//
// A tenant the local store has no room for is refused with quota.ErrFull:
// bounded memory goes before availability. See memstore.
//
// # Redis' own settings
//
// maxmemory-policy should be noeviction: the volatile policies drop counters,
// which shows in Stats.Lost, and quotas loosen. A full server that refuses
// writes counts as away. Counts are exact up to 2^53-1 and saturate there.
package redisstore

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/internal/redisclient"
	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
	"github.com/weirproxy/weir/quota/memstore"
)

// Options are what the store needs beside policy.Redis.
type Options struct {
	Replicas   int           // weirs that share the limits; default 1
	MaxTenants int           // tenants counted while Redis is away; default 100000
	Hold       time.Duration // after this an unsettled reservation ends; default quota.DefaultHold
	Journal    int           // requests kept for settling on return; default 65536
	Log        *slog.Logger  // one line when Redis goes away, one when it is back; default none
}

// Store is a quota.Store in Redis. Use New.
type Store struct {
	config  policy.Redis
	options Options
	prefix  string
	holdFor int64 // ms

	client  atomic.Pointer[conn]
	outage  atomic.Pointer[outage] // nil: Redis decides
	local   *memstore.Store        // decides while Redis is away
	known   *known
	moving  atomic.Pointer[moving] // nil = no usage moves
	full    *full
	journal *journal
	held    *held
	scripts *scripts
	count   counts

	wake  chan struct{} // tells watch of an outage or of something to replay
	hurry chan struct{} // closed by the first Flush: come back soon
	flush sync.Once
	stop  context.CancelFunc
	done  sync.WaitGroup
}

// New makes a store; it does not wait for Redis. Errors are of the
// configuration: a prefix with braces, TLS files that cannot be read.
func New(config policy.Redis, o Options) (*Store, error) {
	return newStore(config, o, newScripts(func(text string) string { return text }))
}

func newStore(config policy.Redis, o Options, sc *scripts) (*Store, error) {
	config, err := redisclient.Defaults(config)
	if err != nil {
		return nil, err
	}
	o.Replicas = max(o.Replicas, 1)
	if o.Hold <= 0 {
		o.Hold = quota.DefaultHold
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Journal <= 0 {
		o.Journal = 1 << 16
	}
	client, err := redisclient.Dial(config)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &Store{
		config:  config,
		options: o,
		prefix:  config.Prefix,
		holdFor: quota.Period(o.Hold),
		local:   memstore.New(memstore.Options{MaxTenants: o.MaxTenants, Hold: o.Hold}),
		known:   newKnown(),
		full:    newFull(),
		journal: newJournal(o.Journal, o.Hold),
		held:    newHeld(),
		scripts: sc,
		wake:    make(chan struct{}, 1),
		hurry:   make(chan struct{}),
		stop:    stop,
	}
	s.client.Store(client)
	s.done.Go(func() { s.watch(ctx) })
	s.done.Go(func() { s.beat(ctx) })
	return s, nil
}

// Close ends the background work, waits for it, and closes the connections.
// What was not yet charged to Redis is lost: Flush goes before.
func (s *Store) Close() error {
	s.stop()
	s.done.Wait()
	return s.client.Load().Close()
}

// budget is the time one decision may take in Redis. The caller's context
// does not shorten it: an answer that nobody waits for would look like an
// outage, and leave it open whether something was taken.
func (s *Store) budget(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), s.config.Timeout-s.config.Timeout/10)
}

// Reserve implements quota.Store.
func (s *Store) Reserve(ctx context.Context, now time.Time, id string, claims []quota.Claim) (quota.Verdict, error) {
	groups := s.groups(claims)
	if len(groups) == 0 {
		return quota.Verdict{Allowed: true}, nil
	}
	if o := s.outage.Load(); o != nil {
		return s.decide(now, id, claims, groups, o.reason, false)
	}
	ctx, cancel := s.budget(ctx)
	defer cancel()
	var v quota.Verdict
	var took bool
	failed, err := s.carry(ctx, s.client.Load(), now, groups)
	if err == nil {
		v, took, failed, err = s.ask(ctx, now, id, groups)
	}
	if err == nil {
		s.count.remote.Add(1)
		if v.Allowed {
			s.journal.granted(id, now, claims)
		}
		if v.Allowed && took {
			s.hold(now, id, groups, claims)
		}
		return v, nil
	}
	reason := s.miss(err, failed.tag)
	return s.decide(now, id, claims, groups, reason, true)
}

// hold notes units of concurrency to be renewed. By a clock that is the
// caller's they are not: they last for the hold time.
func (s *Store) hold(now time.Time, id string, groups []group, claims []quota.Claim) {
	if now.IsZero() {
		s.held.take(id, groups, claims)
	}
}

// ask puts the question to Redis, slot by slot; took tells an id that is new
// from one that was known. On an error it is unknown which of them took
// something; failed is the slot that did not answer.
func (s *Store) ask(ctx context.Context, now time.Time, id string, groups []group) (v quota.Verdict, took bool, failed *group, err error) {
	var t quota.Tally
	for i := range groups {
		g := &groups[i]
		reply, err := s.reserve(ctx, take, now, 0, id, g)
		if err != nil {
			return v, false, g, err
		}
		s.tell(&t, g, now, reply)
		took = took || reply.state == taken
		if reply.state != refused {
			continue
		}
		// The others' waits count as well: the claims fit once all have room.
		for j := i + 1; j < len(groups); j++ {
			reply, err := s.reserve(ctx, check, now, 0, id, &groups[j])
			if err != nil {
				break
			}
			s.tell(&t, &groups[j], now, reply)
		}
		for j := range groups[:i] {
			if _, err := s.settle(ctx, undo, now, id, &groups[j], quota.Amount{}); err != nil {
				s.miss(err, groups[j].tag)
				s.journal.giveBack(id, now, claimsOf(groups))
				break
			}
		}
		break
	}
	return t.Verdict(), took, nil, nil
}

// tell adds what a slot answered to the tally, and remembers the usage.
func (s *Store) tell(t *quota.Tally, g *group, now time.Time, r reply) {
	if r.state != repeated {
		s.known.note(g, now, r)
	}
	asked := now // by this process' clock
	if now.IsZero() {
		asked, now = time.Now(), time.UnixMilli(r.now)
	}
	for i := range g.limits {
		l := &g.limits[i]
		amount, used := l.claim.Amount.Of(l.limit.Unit), r.used[l.counter]
		if r.state == repeated || !quota.Refuses(l.limit, amount, used) {
			t.Fit(l.claim.Rule, l.limit, amount, used)
			continue
		}
		fits := func(amount int64) (wait time.Duration) {
			room := quota.Count(l.limit.Max) - amount
			if w := r.windows[l.counter]; w != nil && room >= 0 {
				wait = time.UnixMilli(w.FitsAt(g.counters[l.counter].period, r.now, room)).Sub(now)
			}
			return wait
		}
		t.Refuse(l.claim.Rule, l.limit, amount, used, fits(amount))
		if used >= quota.Count(l.limit.Max) {
			s.full.note(asked, l.claim, l.limit, used, fits(1))
		}
	}
}

// Settle implements quota.Store. It returns nil also when Redis is away: the
// journal settles on its return.
func (s *Store) Settle(ctx context.Context, now time.Time, id string, claims []quota.Claim, final quota.Amount) error {
	groups := s.groups(claims)
	if len(groups) == 0 {
		return nil
	}
	s.held.end(id, groups)
	defer s.full.forget(claims)
	if s.journal.isLocal(id) {
		_ = s.local.Settle(ctx, now, id, s.share(claims), final) // memory does not fail
	}
	if s.journal.settle(id, now, claims, final, s.outage.Load() != nil) {
		s.kick()
		return nil
	}
	ctx, cancel := s.budget(ctx)
	defer cancel()
	for i := range groups {
		lost, err := s.settle(ctx, settle, now, id, &groups[i], final)
		if err != nil {
			s.miss(err, groups[i].tag)
			s.journal.unsettled(id)
			s.kick()
			return nil
		}
		s.count.lost.Add(uint64(lost))
	}
	return nil
}

// Usage implements quota.Store. While Redis is away it lists this replica's
// share.
func (s *Store) Usage(ctx context.Context, now time.Time, tenant string) ([]quota.Counter, error) {
	if s.outage.Load() != nil {
		return s.local.Usage(ctx, now, tenant)
	}
	counters, err := s.list(ctx, now, tenant)
	if err != nil {
		return nil, fmt.Errorf("redisstore: usage: %w", err)
	}
	counters = slices.DeleteFunc(counters, func(c quota.Counter) bool { return c.Used == 0 })
	slices.SortFunc(counters, quota.Counter.Compare)
	return counters, nil
}
