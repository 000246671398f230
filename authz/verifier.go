package authz

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weirproxy/weir/identity"
	"github.com/weirproxy/weir/policy"
)

// Headers gives all values of a header, by its name in lower case, in the
// order of the wire and as raw bytes; none for an absent header.
type Headers = func(name string) []string

// Verifier makes identities from bearer tokens by the policy in force. All
// methods may be used concurrently; Verify takes no lock.
type Verifier struct {
	log     *slog.Logger
	seed    uint64
	current atomic.Pointer[rules]
	counts  counts

	mu sync.Mutex // of Update, Reload and Close
}

// counts are the verifier's counters.
type counts struct {
	hits, refusedHits, misses atomic.Uint64
}

// rules are one policy's part of a verifier. A request uses one to its end.
type rules struct {
	policy   policy.Identity
	issuers  map[string]*issuer
	accepted *cache
	refused  *cache // those whose signature was checked: what costs much
}

// issuer is one trusted issuer and its keys.
type issuer struct {
	name      string
	audiences []string
	allowed   []string
	keys      *KeySet
}

// verified is an accepted identity with what Envoy is told of it, made once
// and shared by the calls of one token.
type verified struct {
	id       *identity.Identity
	fields   *structpb.Struct
	stripped *authv3.CheckResponse // allowed, with the token taken off
}

// Bounds of the caches. Nothing is trusted for longer than acceptedFor without
// being verified again, whatever the policy says; refusals are remembered for
// a short time and in a small table.
const (
	acceptedFor = 10 * time.Second
	refusedFor  = 2 * time.Second
	refusedSize = 4096
)

// Options of a verifier.
type Options struct {
	Log  *slog.Logger // nil = discard
	Seed uint64       // of the spread of fetches; 0 = drawn, so that replicas differ
}

// NewVerifier makes a verifier and starts fetching key sets; end it with
// Close. It fails on a key file that cannot be read and on a policy that
// could let in what nobody vouched for: an unknown algorithm, an issuer twice
// or without name, audience or keys.
func NewVerifier(p *policy.Identity, o Options) (*Verifier, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Seed == 0 {
		var b [8]byte
		_, _ = rand.Read(b[:]) // never fails
		o.Seed = binary.LittleEndian.Uint64(b[:])
	}
	v := &Verifier{log: o.Log, seed: o.Seed}
	v.current.Store(&rules{})
	if err := v.Update(p); err != nil {
		return nil, err
	}
	return v, nil
}

// Update puts another policy in force. Key sets whose settings are the same
// are kept; everything that was remembered is forgotten. On an error the
// policy in force stays.
func (v *Verifier) Update(p *policy.Identity) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	old := v.current.Load()
	next := &rules{policy: *p, issuers: map[string]*issuer{}}
	size := p.CacheSize
	if p.CacheFor <= 0 {
		size = 0
	}
	next.accepted, next.refused = newCache(size), newCache(min(size, refusedSize))
	for i := range p.Issuers {
		iss, err := v.issuer(old, next, &p.Issuers[i], p.Algorithms)
		if err != nil {
			next.closeExcept(old)
			return fmt.Errorf("identity.issuers[%d]: %w", i, err)
		}
		next.issuers[iss.name] = iss
	}
	v.current.Store(next)
	old.closeExcept(next)
	return nil
}

// issuer checks one issuer's settings and finds or makes its key set.
func (v *Verifier) issuer(old, next *rules, p *policy.Issuer, algs []string) (*issuer, error) {
	if len(p.Algorithms) > 0 {
		algs = p.Algorithms
	}
	iss := &issuer{name: p.Issuer, audiences: slices.Clone(p.Audiences), allowed: slices.Clone(algs)}
	switch {
	case p.Issuer == "":
		return nil, errors.New("no issuer")
	case next.issuers[p.Issuer] != nil:
		return nil, fmt.Errorf("issuer %q is there twice", p.Issuer)
	case len(p.Audiences) == 0 || slices.Contains(p.Audiences, ""):
		return nil, errors.New("no audience, or an empty one")
	case len(algs) == 0:
		return nil, errors.New("no algorithm")
	case (p.JWKS.File == "") == (p.JWKS.URL == ""):
		return nil, errors.New("jwks: either a file or a url")
	case p.JWKS.URL != "" && (p.JWKS.Refresh <= 0 || p.JWKS.MinRefresh <= 0 || p.JWKS.Timeout <= 0):
		return nil, errors.New("jwks: refresh, minRefresh and timeout must be above 0")
	}
	for _, alg := range algs {
		if _, ok := algorithms[alg]; !ok {
			return nil, fmt.Errorf("algorithm %q is not supported", alg)
		}
	}
	if was := old.issuers[p.Issuer]; was != nil && was.keys.source == p.JWKS && slices.Equal(was.allowed, algs) {
		iss.keys = was.keys
		return iss, nil
	}
	var err error
	iss.keys, err = newKeySet(p.JWKS, iss.allowed, v.log, v.seed)
	return iss, err
}

// closeExcept ends the key sets of r that kept does not use.
func (r *rules) closeExcept(kept *rules) {
	for name, iss := range r.issuers {
		if other := kept.issuers[name]; other == nil || other.keys != iss.keys {
			iss.keys.Close()
		}
	}
}

// Close ends all fetching and waits for it.
func (v *Verifier) Close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.current.Swap(&rules{}).closeExcept(&rules{})
}

// Verify finds out who asks. The error is an *identity.Denial. It fits
// extproc's form of a verifier as it is.
func (v *Verifier) Verify(ctx context.Context, headers Headers) (*identity.Identity, error) {
	who, denial := v.verify(ctx, time.Now(), headers)
	if denial != nil {
		return nil, denial
	}
	return who.id, nil
}

func (v *Verifier) verify(ctx context.Context, now time.Time, headers Headers) (*verified, *identity.Denial) {
	r := v.current.Load()
	raw, bad := bearer(headers("authorization"), r.policy.MaxToken)
	if bad != nil {
		return nil, r.deny(bad)
	}
	who, bad := r.cached(ctx, now, raw, &v.counts)
	if bad != nil {
		return nil, r.deny(bad)
	}
	if !who.id.HasScope(r.policy.Service) {
		return nil, identity.MissingScope(r.policy.Realm, r.policy.Service)
	}
	return who, nil
}

func (r *rules) deny(bad *refusal) *identity.Denial {
	if bad.code == identity.CodeKeysUnavailable {
		return identity.Unavailable(bad.message)
	}
	return identity.Unauthenticated(r.policy.Realm, bad.code, bad.message)
}

// bearer finds the one token in the values of Authorization: exactly one
// header, the scheme in any case (RFC 9110 section 11.1), spaces around and
// between passed over, nothing behind.
func bearer(values []string, most int64) (string, *refusal) {
	switch len(values) {
	case 0:
		return "", &refusal{identity.CodeTokenMissing, "A bearer token is required."}
	case 1:
	default:
		return "", &refusal{identity.CodeTokenDuplicate, "There is more than one Authorization header."}
	}
	scheme, raw, _ := strings.Cut(strings.Trim(values[0], " \t"), " ")
	if !strings.EqualFold(scheme, "bearer") {
		return "", &refusal{identity.CodeTokenMissing, "The Authorization header holds no bearer token."}
	}
	raw = strings.TrimLeft(raw, " ")
	if raw == "" {
		return "", &refusal{identity.CodeTokenMissing, "The Authorization header holds no bearer token."}
	}
	if int64(len(raw)) > most {
		return "", &refusal{identity.CodeTokenTooLarge, fmt.Sprintf("The token is longer than %d bytes.", most)}
	}
	return raw, nil
}

// cached is judge with the two caches in front.
func (r *rules) cached(ctx context.Context, now time.Time, raw string, n *counts) (*verified, *refusal) {
	sum := sumOf(raw)
	if e := r.accepted.get(now, &sum); e != nil {
		n.hits.Add(1)
		return e.who, nil
	}
	if e := r.refused.get(now, &sum); e != nil {
		n.refusedHits.Add(1)
		return nil, e.denied
	}
	n.misses.Add(1)
	e, bad := r.judge(ctx, now, raw)
	if bad != nil {
		return nil, bad
	}
	e.sum, e.since = sum, now
	if e.denied != nil {
		e.keep = min(refusedFor, r.policy.CacheFor)
		r.refused.put(now, e)
		return nil, e.denied
	}
	e.keep = min(acceptedFor, r.policy.CacheFor)
	r.accepted.put(now, e)
	return e.who, nil
}

// sumOf is the SHA-256 of a token, without a copy on the heap for tokens of
// the usual length.
func sumOf(raw string) [sha256.Size]byte {
	var usual [1024]byte
	if len(raw) > len(usual) {
		return sha256.Sum256([]byte(raw))
	}
	return sha256.Sum256(usual[:copy(usual[:], raw)])
}
