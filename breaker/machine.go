package breaker

import (
	"math/rand/v2"
	"time"

	"github.com/weirproxy/weir/policy"
)

// Breaker is one pool's machine. Safe for concurrent use; reading a closed
// breaker takes no lock.
type Breaker struct{}

// New makes a closed breaker; rng throws the half-open dice (B2).
func New(c policy.Breaker, rng *rand.Rand) *Breaker { panic("stub") }

// Configure changes the numbers; the state stays.
func (b *Breaker) Configure(c policy.Breaker) { panic("stub") }

// Allow judges one request of a class at now.
func (b *Breaker) Allow(now time.Time, class policy.Class) Verdict { panic("stub") }

// Record counts one end (B6): failed or not, and whether it was a probe.
// What the caller did, client cancels and unknown ends are not recorded; a
// probe that ends so must be given back with Forget.
func (b *Breaker) Record(now time.Time, failed, probe bool) { panic("stub") }

// Forget gives a probe back without a verdict.
func (b *Breaker) Forget(now time.Time) { panic("stub") }

// View is a picture for metrics and /debug; no lock on the reader's side.
func (b *Breaker) View(now time.Time) View { panic("stub") }

// View is a picture of a breaker.
type View struct {
	State    State
	Since    time.Time
	Requests int     // in the window
	Failures int     // in the window
	Ratio    float64 // 0 when below MinRequests
	Release  float64 // share admitted while half-open, else 1 or 0
}
