package authz

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/policy"
)

// KeySet is an issuer's public keys, from a file (read by Reload) or from a
// URL (fetched by a goroutine of its own until Close). Readers never wait for
// a fetch of somebody else's.
//
// A fetched set is asked for again before jwks.refresh has passed, so that a
// withdrawn key is refused within that time. While the key server is away the
// last good set goes on to be used for jwks.staleFor longer, then every token
// is refused as Unavailable. A key id that the set lacks asks for a fetch at
// once, but not within jwks.minRefresh of the one before.
type KeySet struct {
	source  policy.JWKS
	allowed []string
	log     *slog.Logger

	current atomic.Pointer[keys]      // nil before the first good set
	good    atomic.Pointer[time.Time] // when the set was last known to be right
	fetches atomic.Uint64
	failed  atomic.Uint64
	trouble atomic.Pointer[string] // why the last fetch or reload failed; nil = it did not

	fetch func(context.Context) ([]byte, error) // nil for a file
	stop  context.CancelFunc
	done  chan struct{}
	ask   chan struct{} // capacity 1: a fetch is wanted

	random *rand.Rand // of the goroutine alone

	mu      sync.Mutex
	pending chan struct{} // closed at the end of the fetch that is wanted or runs; nil = none
	tried   time.Time     // start of the last fetch
}

// newKeySet reads the file, which must be good, or starts fetching the URL.
func newKeySet(source policy.JWKS, allowed []string, log *slog.Logger, seed uint64) (*KeySet, error) {
	k := &KeySet{source: source, allowed: allowed, log: log, random: rand.New(rand.NewPCG(seed, 1))}
	if source.URL == "" {
		if err := k.Reload(); err != nil {
			return nil, err
		}
		if len(k.current.Load().all) == 0 {
			return nil, fmt.Errorf("key set %s: no keys", source.File)
		}
		return k, nil
	}
	client, err := newFetcher(source)
	if err != nil {
		return nil, err
	}
	k.start(client.get, client.close)
	return k, nil
}

// start fetches from now on, with done called at the end.
func (k *KeySet) start(fetch func(context.Context) ([]byte, error), done func()) {
	ctx, stop := context.WithCancel(context.Background())
	k.fetch, k.stop = fetch, stop
	k.done, k.ask = make(chan struct{}), make(chan struct{}, 1)
	k.pending = make(chan struct{}) // the first fetch
	go func() {
		defer close(k.done)
		defer done()
		k.run(ctx)
	}()
}

// Close ends the goroutine and waits for it. The keys stay usable.
func (k *KeySet) Close() {
	if k.stop != nil {
		k.stop()
		<-k.done
	}
}

// Reload reads the file again. A bad file keeps the keys in force. It does
// nothing for a URL.
func (k *KeySet) Reload() error {
	if k.fetch != nil {
		return nil
	}
	data, err := policy.ReadFile(k.source.File, maxKeySet)
	var set *keys
	if err == nil {
		set, err = k.parse(data)
	}
	if err != nil {
		k.fail(err)
		return fmt.Errorf("key set %s: %w", k.source.File, err)
	}
	k.store(set, data, time.Now())
	return nil
}

// parse reads a set. One without keys is an answer as bad as none, unless the
// policy takes it for the issuer's word that all are withdrawn.
func (k *KeySet) parse(data []byte) (*keys, error) {
	set, err := parseKeys(data, k.allowed)
	if err == nil && len(set.all) == 0 && !k.source.AllowEmpty {
		err = errors.New("key set: no keys (identity.issuers[].jwks.allowEmpty takes that for all withdrawn)")
	}
	return set, err
}

// store puts a set in force; the same document again only renews its age, so
// that what was verified with it stays verified.
func (k *KeySet) store(set *keys, data []byte, now time.Time) {
	k.trouble.Store(nil)
	set.document = string(data)
	k.good.Store(&now) // before the set: a reader that sees a set finds its age
	old := k.current.Load()
	if old == nil || old.document != set.document {
		k.current.Store(set)
		for _, why := range set.skipped {
			k.log.Warn("a key of a key set is not used", "source", k.name(), "why", why)
		}
	}
}

func (k *KeySet) fail(err error) {
	k.failed.Add(1)
	why := err.Error()
	k.trouble.Store(&why)
}

func (k *KeySet) name() string {
	if k.source.URL != "" {
		return k.source.URL
	}
	return k.source.File
}

// at returns the keys that may be used at now, nil if there are none or they
// have been stale for too long.
func (k *KeySet) at(now time.Time) *keys {
	set := k.current.Load()
	if set == nil || k.fetch == nil {
		return set
	}
	if now.Sub(*k.good.Load()) > k.source.Refresh+k.source.StaleFor {
		return nil
	}
	return set
}
