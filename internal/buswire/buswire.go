// Package buswire is what a replica's word of a breaker (B3) looks like on a
// bus over a network, and when a bus that was lost is tried again. Redis and
// etcd carry the same text, so that people read it there:
//
//	{"v":1,"replica":"weir-0","breaker":"chat","kind":"http","state":"hard",
//	 "level":"hard","requests":40,"failures":21,"since":"2026-01-02T03:04:05Z",
//	 "left":5000000000,"seq":1790000000000001,"ttl":15000000000}
//
// Times are in nanoseconds. Invariants: a word has exactly one form, and what
// is not in it (other spaces, other order, a key twice, an unknown key) is no
// word; what Decode gives passes Opinion.Check; nothing larger than MaxBytes is
// looked at. A later form has another "v" and is told from garbage.
package buswire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
	"unicode/utf8"

	"github.com/weirproxy/weir/breaker"
)

// MaxBytes is the longest word: two names, each byte as an escape of six.
const MaxBytes = 12*breaker.MaxName + 512

// version is that of the form.
const version = 1

// ErrVersion is of a word in the form of another release.
var ErrVersion = errors.New("word: of another version")

// word is the form. The order of its fields is part of it.
type word struct {
	V        int           `json:"v"`
	Replica  string        `json:"replica"`
	Breaker  string        `json:"breaker"`
	Kind     string        `json:"kind"`
	State    string        `json:"state"`
	Level    string        `json:"level"`
	Requests int           `json:"requests"`
	Failures int           `json:"failures"`
	Since    time.Time     `json:"since,omitzero"`
	Left     time.Duration `json:"left"`
	Seq      uint64        `json:"seq"`
	TTL      time.Duration `json:"ttl"`
}

// Encode writes a word. It refuses what fails Check, and names that are not
// UTF-8, which JSON cannot hold.
func Encode(o breaker.Opinion) ([]byte, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	if !utf8.ValidString(o.Replica) || !utf8.ValidString(o.Breaker) {
		return nil, fmt.Errorf("opinion: replica %q, breaker %q: not UTF-8", o.Replica, o.Breaker)
	}
	if o.Level > breaker.HalfOpen { // of no meaning: Check saw that it is closed
		o.Level = breaker.Closed
	}
	return json.Marshal(word{
		version, o.Replica, o.Breaker, o.Kind.String(), o.State.String(), o.Level.String(),
		o.Requests, o.Failures, o.Since.UTC().Round(0), o.Left, o.Seq, o.TTL,
	})
}

// Decode reads a word; the zero Since is one that was not said. The error is
// ErrVersion, or says what is wrong.
func Decode(raw []byte) (breaker.Opinion, error) {
	if len(raw) > MaxBytes {
		return breaker.Opinion{}, fmt.Errorf("word: %d bytes, want up to %d", len(raw), MaxBytes)
	}
	var v struct {
		V *int `json:"v"`
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		return breaker.Opinion{}, fmt.Errorf("word: %w", err)
	}
	if v.V != nil && *v.V != version {
		return breaker.Opinion{}, fmt.Errorf("%w: %d, want %d", ErrVersion, *v.V, version)
	}
	var w word
	if err := json.Unmarshal(raw, &w); err != nil {
		return breaker.Opinion{}, fmt.Errorf("word: %w", err)
	}
	o := breaker.Opinion{
		Replica: w.Replica, Breaker: w.Breaker, Kind: kind(w.Kind), State: state(w.State), Level: state(w.Level),
		Requests: w.Requests, Failures: w.Failures, Since: w.Since, Left: w.Left, Seq: w.Seq, TTL: w.TTL,
	}
	only, err := Encode(o)
	if err != nil {
		return breaker.Opinion{}, err
	}
	if !bytes.Equal(only, raw) {
		return breaker.Opinion{}, errors.New("word: not in its one form")
	}
	return o, nil
}

// kind finds a kind by its name; one that Check refuses if there is none.
func kind(name string) breaker.Kind {
	k := breaker.HTTP
	for k <= breaker.Tenant && k.String() != name {
		k++
	}
	return k
}

// state finds a state by its name; one that is unknown if there is none.
func state(name string) breaker.State {
	s := breaker.Closed
	for s <= breaker.HalfOpen && s.String() != name {
		s++
	}
	return s
}

// Backoff spaces the attempts to come back: 50 ms, doubling to 2 s, each
// shortened by up to half at random, so that replicas do not come all at once.
// Not safe for concurrent use.
type Backoff struct {
	rng  *rand.Rand
	next time.Duration
}

// The bounds of a Backoff.
const (
	FirstPause = 50 * time.Millisecond
	MaxPause   = 2 * time.Second
)

// NewBackoff makes one whose dice are seeded.
func NewBackoff(seed uint64) *Backoff { return &Backoff{rng: rand.New(rand.NewPCG(seed, 0))} }

// Pause is how long to wait after one more failure.
func (b *Backoff) Pause() time.Duration {
	b.next = min(max(2*b.next, FirstPause), MaxPause)
	return b.next - time.Duration(b.rng.Int64N(int64(b.next/2)+1))
}

// Reset begins anew: the bus is back.
func (b *Backoff) Reset() { b.next = 0 }
