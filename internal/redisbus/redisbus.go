// Package redisbus carries the words of breakers between replicas over Redis
// (B3; https://redis.io/docs/latest/develop/data-types/streams/): a single
// server, Sentinel or Cluster, 6.2 or later, the one of the quota store.
//
// All is kept under one hash tag, so in one slot:
//
//	weir:{breakers}:words   hash: the word that stands of each key
//	weir:{breakers}:ends    sorted set: when each of them is over
//	weir:{breakers}:stream  what was said, in order, bounded by MAXLEN ~
//	weir:{breakers}:bell    Pub/Sub channel: an empty message a word
//	weir:{breakers}:probe   the rights of a listener's user are tried on it
//
// The stream is the truth; the bell says when to read it. A listener that
// hears no bell reads once a second; one whose user may not subscribe reads
// each 100 ms, which keeps B3's 250 ms. Each keeps a cursor, and where the
// entry under its cursor is gone (trimmed, lost in a fail-over, flushed) it
// reads all that stands anew. What is over and who says so first is decided by
// the server's clock and by one script a word.
//
// Invariants: a word is stored, entered and rung for in one step, and only if
// it is newer than the one that stands; every key ends MaxTTL after the last
// word; a key of another type, or a record that is no word, is skipped by
// listeners and gives way to the next newer word; no
// call outlives its context, nor two seconds.
//
// While Redis is away Publish fails and Listen tries again, 50 ms to 2 s apart
// with jitter; nothing is kept to be sent later, since renewals repeat it.
package redisbus

import (
	"context"
	_ "embed" // the scripts
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/internal/buswire"
	"github.com/weirproxy/weir/internal/redisclient"
	"github.com/weirproxy/weir/policy"
)

//go:embed lua/common.lua
var commonLua string

//go:embed lua/publish.lua
var publishLua string

//go:embed lua/since.lua
var sinceLua string

//go:embed lua/standing.lua
var standingLua string

// The scripts, immutable.
var (
	publishScript  = redis.NewScript(commonLua + publishLua)
	sinceScript    = redis.NewScript(commonLua + sinceLua)
	standingScript = redis.NewScript(commonLua + standingLua)
)

const (
	callTimeout = 2 * redisclient.DialTimeout  // of any one call
	keyLife     = breaker.MaxTTL + time.Minute // of the keys after the last word
	maxWords    = 100_000                      // that stand; one more is refused
	connections = 4                            // for calls; a listener has one more for the bell
	part        = 256                          // words read by one call
	quietPoll   = time.Second                  // between looks while no bell rings
	deafPoll    = 100 * time.Millisecond       // where there is no bell
	defaultMax  = 10_000                       // entries of the stream
)

// ErrFull is of a word of a key that is new while 100,000 words stand.
var ErrFull = errors.New("redisbus: too many words stand")

// Options are what a bus needs beside policy.Redis.
type Options struct {
	MaxLen int    // entries that the stream keeps at least; default 10000
	Seed   uint64 // of the jitter with which it comes back; one of its own for each replica
}

// Bus is one replica's way to the others. Use New. Safe for concurrent use.
type Bus struct {
	client                    *redisclient.Client
	words, ends, stream, bell string
	prefix, probe             string // of all keys; the key on which rights are tried
	options                   Options
	life                      context.Context
	end                       context.CancelFunc
	listeners                 atomic.Uint64
	count                     counts
}

var _ breaker.Bus = (*Bus)(nil)

// New makes a bus; it does not wait for Redis. Errors are of the
// configuration: a prefix with braces, TLS files that cannot be read.
func New(config policy.Redis, o Options) (*Bus, error) {
	config, err := redisclient.Defaults(config)
	if err != nil {
		return nil, err
	}
	config.Pool = connections
	client, err := redisclient.Dial(config)
	if err != nil {
		return nil, err
	}
	if o.MaxLen <= 0 {
		o.MaxLen = defaultMax
	}
	key := func(name string) string { return config.Prefix + ":{breakers}:" + name }
	life, end := context.WithCancel(context.Background())
	return &Bus{
		client: client, words: key("words"), ends: key("ends"), stream: key("stream"), bell: key("bell"),
		prefix: config.Prefix, probe: key("probe"),
		options: o, life: life, end: end,
	}, nil
}

// Publish implements breaker.Bus. It returns after two seconds at most.
func (b *Bus) Publish(ctx context.Context, o breaker.Opinion) error {
	if b.life.Err() != nil {
		return breaker.ErrClosed
	}
	word, err := buswire.Encode(o)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	state, err := publishScript.Run(ctx, b.client, []string{b.words, b.ends, b.stream},
		field(o.Key()), o.Seq, millis(o.TTL), word, b.bell,
		b.options.MaxLen, keyLife.Milliseconds(), maxWords).Int()
	switch {
	case err == nil && state == 1:
		b.count.published.Add(1)
		return nil
	case err == nil && state == 0:
		b.count.older.Add(1)
		return nil
	case b.life.Err() != nil:
		return breaker.ErrClosed
	case err == nil:
		err = ErrFull
	}
	b.count.failed.Add(1)
	return fmt.Errorf("redisbus: publish: %w", err)
}

// Close implements breaker.Bus.
func (b *Bus) Close() error {
	if b.life.Err() != nil {
		return nil
	}
	b.end()
	_ = b.client.Close() // its server may be gone
	return nil
}

// millis rounds up: a word stands for as long as it says.
func millis(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }

// field is the name of a key in the hash: p or t, the length of the replica's
// name, the replica, the breaker.
func field(k breaker.Key) string {
	kind := "p"
	if k.Tenant {
		kind = "t"
	}
	return kind + ":" + strconv.Itoa(len(k.Replica)) + ":" + k.Replica + ":" + k.Breaker
}
