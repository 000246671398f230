package main

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/identity"
	"github.com/weirproxy/weir/internal/etcdbus"
	"github.com/weirproxy/weir/internal/redisbus"
	"github.com/weirproxy/weir/policy"
)

// openBus makes the bus that the policy names; nil = none.
func openBus(p *policy.Policy) (breaker.Bus, error) {
	c := &p.Breaker.Cascade
	switch {
	case c.Bus == policy.BusEtcd && c.Etcd != nil:
		return etcdbus.New(*c.Etcd, etcdbus.Options{Seed: rand.Uint64()})
	case p.Store.Redis != nil && (c.Bus == policy.BusRedis || c.Bus == policy.BusAuto):
		return redisbus.New(*p.Store.Redis, redisbus.Options{Seed: rand.Uint64()})
	}
	return nil, nil
}

// replicaName is what this replica calls itself: the same after a restart, so
// that it knows its own words again. Two that share a host differ by where they
// listen.
func replicaName(p *policy.Policy) string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "weir"
	}
	name := host + " " + p.Server.GRPC
	return name[:min(len(name), breaker.MaxName)]
}

// The times of a speaker.
const (
	joinFor      = 300 * time.Millisecond // what stands is heard before anything is said
	deafFor      = 5 * time.Second        // but who cannot hear speaks after so long
	publishWait  = time.Second            // for one word
	firstPause   = 100 * time.Millisecond // after a word that was not delivered; doubles
	longestPause = 2 * time.Second
	maxHeard     = 10_000 // tenants that others say are in trouble
)

// speaker is this replica's voice on the bus, and its ear (B3). When the bus is
// away each replica goes on by its own breakers, and what others said ends with
// its TTL.
type speaker struct {
	bus      breaker.Bus
	council  *breaker.Council
	log      *slog.Logger
	timeline *timeline
	bell     chan struct{} // holds one ring

	mu       sync.Mutex
	voice    *breaker.Voice
	pools    map[breaker.Key]breaker.Opinion // outbox: the newest word of each breaker
	tenants  map[breaker.Key]breaker.Opinion // what is said when no pool's word waits
	spoken   map[string]bool                 // tenants that were spoken of, until it is said that they are closed
	heard    map[string]bool                 // tenants that others say are in trouble
	joinTill time.Time                       // until then it listens alone; zero = it has joined
	mute     bool                            // the last word was not delivered
	deaf     bool                            // the bus says that it is away
	latest   time.Time                       // word heard or delivered
	stats    speakerStats
}

type speakerStats struct{ said, heard, failed, losses uint64 }

func newSpeaker(now time.Time, replica string, bus breaker.Bus, council *breaker.Council, c policy.Cascade, log *slog.Logger, l *timeline) *speaker {
	return &speaker{
		bus: bus, council: council, log: log, timeline: l, bell: make(chan struct{}, 1),
		voice: breaker.NewVoice(replica, now, c), pools: map[breaker.Key]breaker.Opinion{}, tenants: map[breaker.Key]breaker.Opinion{},
		spoken: map[string]bool{}, heard: map[string]bool{}, joinTill: now.Add(joinFor), latest: now,
	}
}

func (s *speaker) configure(c policy.Cascade) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.voice.Configure(c)
}

// round takes over what stands, once it was heard, and puts into the outbox
// what is to be said.
func (s *speaker) round(now time.Time, desk *admission.Desk) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.joinTill.IsZero() {
		if now.Before(s.joinTill) || s.deaf && now.Before(s.joinTill.Add(deafFor)) {
			return
		}
		s.joinTill = time.Time{}
		s.takeOver(now, desk)
	}
	for _, b := range desk.Breakers(now) {
		s.say(now, b.View, b.Ruling.Open > 0)
	}
	troubled := desk.Tenants().Troubled(now)
	open := make(map[string]bool, len(troubled))
	for _, v := range troubled {
		open[v.Name] = true
		s.say(now, v, true)
	}
	for name := range s.heard {
		if s.council.Ruling(now, name, breaker.Tenant).Open == 0 {
			delete(s.heard, name)
			s.spoken[name] = true // for the voice to forget it
		} else if b := desk.Tenants().Get(name); b != nil && !open[name] {
			s.say(now, b.View(now), true)
		}
	}
	for name := range s.spoken {
		if !open[name] && s.say(now, breaker.View{Name: name, Kind: breaker.Tenant, Release: 1}, false) {
			open[name] = true // until there is nothing more to say of it
		}
	}
	s.spoken = open
	if len(s.pools)+len(s.tenants) > 0 {
		select {
		case s.bell <- struct{}{}:
		default:
		}
	}
}

// say puts into the outbox what is to be said of a breaker; false = nothing. A
// word that no bus takes is counted and dropped: it must not hold up others.
func (s *speaker) say(now time.Time, v breaker.View, contested bool) bool {
	o, ok := s.voice.Say(now, v, contested)
	switch {
	case !ok:
		return false
	case o.Check() != nil:
		s.stats.failed++
	case o.Kind == breaker.Tenant:
		s.tenants[o.Key()] = o
	default:
		s.pools[o.Key()] = o
	}
	return true
}

// next takes a word out of the outbox, pools' first: tenants may be thousands.
func (s *speaker) next() (breaker.Opinion, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, box := range []map[breaker.Key]breaker.Opinion{s.pools, s.tenants} {
		for key, o := range box {
			delete(box, key)
			return o, true
		}
	}
	return breaker.Opinion{}, false
}

// takeOver opens what is open by the word of the quorum, or by the own word of
// an earlier life, where the own breaker knows nothing.
func (s *speaker) takeOver(now time.Time, desk *admission.Desk) {
	for _, b := range desk.Breakers(now) {
		if o, ok := s.council.TakeOver(now, b.Pool, b.View.Kind); ok {
			if br := desk.Breaker(b.Pool); br != nil {
				br.Restore(now, o.Level, o.Left, "replica "+o.Replica)
			}
		}
	}
	for name := range s.heard {
		if o, ok := s.council.TakeOver(now, name, breaker.Tenant); ok {
			desk.Tenants().Restore(now, name, o.Level, o.Left, "replica "+o.Replica)
		}
	}
}

// publish is the duty of saying what is in the outbox, until ctx ends.
func (s *speaker) publish(ctx context.Context) {
	pause := time.Duration(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.bell:
		}
		if s.deliver(ctx) {
			pause = 0
			continue
		}
		pause = min(max(2*pause, firstPause), longestPause)
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// deliver says what is in the outbox, up to the first word that is not
// delivered: the voice says that one again, the others wait.
func (s *speaker) deliver(ctx context.Context) bool {
	for {
		o, ok := s.next()
		if !ok {
			return true
		}
		within, stop := context.WithTimeout(ctx, publishWait)
		err := s.bus.Publish(within, o)
		stop()
		s.delivered(o, err)
		if ctx.Err() == nil {
			s.turn(&s.mute, err)
		}
		if err != nil {
			return false
		}
	}
}

// delivered notes what became of a word.
func (s *speaker) delivered(o breaker.Opinion, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.stats.said++
		s.latest = time.Now()
		return
	}
	s.stats.failed++
	s.voice.Unsaid(o)
	if o.Kind == breaker.Tenant {
		s.spoken[o.Breaker] = true // also where it is closed and nobody would look any more
	}
}

// listen is the duty of hearing, until ctx ends.
func (s *speaker) listen(ctx context.Context) {
	s.bus.Listen(ctx, s.hear, func(err error) {
		if ctx.Err() == nil {
			s.turn(&s.deaf, err)
		}
	})
}

func (s *speaker) hear(o breaker.Opinion) {
	now := time.Now()
	s.council.Hear(now, o)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.heard++
	s.latest = now
	if o.Kind == breaker.Tenant && o.Open() && len(s.heard) < maxHeard && identity.CheckTenant(o.Breaker) == nil {
		s.heard[o.Breaker] = true
	}
}

// turn notes that saying or hearing fails, or does no more, and tells once when
// the bus as a whole is away or back. Whoever hears again may have missed
// something: it joins anew.
func (s *speaker) turn(flag *bool, err error) {
	s.mu.Lock()
	was := s.mute || s.deaf
	if s.deaf && flag == &s.deaf && err == nil {
		s.joinTill = time.Now().Add(joinFor)
	}
	*flag = err != nil
	is := s.mute || s.deaf
	if is && !was {
		s.stats.losses++
	}
	s.mu.Unlock()
	switch {
	case is && !was:
		s.log.Warn("the bus between replicas is away: each goes by its own breakers", "error", err)
		s.timeline.add(entry{At: time.Now(), What: entryBus, From: "up", To: "away", Because: err.Error()})
	case was && !is:
		s.log.Info("the bus between replicas is back")
		s.timeline.add(entry{At: time.Now(), What: entryBus, From: "away", To: "up"})
	}
}

// up reports whether the bus carries words, how old the latest one is, and the
// counters.
func (s *speaker) state(now time.Time) (up bool, age time.Duration, stats speakerStats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.mute && !s.deaf, max(0, now.Sub(s.latest)), s.stats
}
