package authz

import (
	"crypto/sha256"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/identity"
	"github.com/weirproxy/weir/policy"
)

// TestCacheLife: an entry counts for CacheFor and never past the token's end,
// whatever the leeway.
func TestCacheLife(t *testing.T) {
	k := keyPair(t, "EdDSA", "k")
	v := newVerifier(t, identityPolicy(t, k.public))
	raw := k.sign(t, goodClaims(map[string]any{"exp": noon.Unix() + 14}))
	check := func(after time.Duration, wantHits, wantMisses uint64) {
		t.Helper()
		if got := codeAt(t, v, noon.Add(after), "Bearer "+raw); got != "" {
			t.Fatalf("after %v: %q", after, got)
		}
		if s := v.Stats(); s.Hits != wantHits || s.Misses != wantMisses {
			t.Fatalf("after %v: %d hits, %d misses; want %d, %d", after, s.Hits, s.Misses, wantHits, wantMisses)
		}
	}
	check(0, 0, 1)
	check(9999*time.Millisecond, 1, 1)
	check(10*time.Second, 1, 2)
	check(13*time.Second, 2, 2)
	check(14*time.Second, 2, 3) // past exp, within the leeway: judged each time
	check(15*time.Second, 2, 4)
	check(9*time.Second, 2, 5) // the clock went back: nothing from the future counts
	if got := codeAt(t, v, noon.Add(44*time.Second), "Bearer "+raw); got != identity.CodeTokenExpired {
		t.Errorf("past the leeway: %q", got)
	}
}

// TestRefusalsAreRememberedShortly: only failed signatures, for two seconds,
// and never as an acceptance.
func TestRefusalsAreRememberedShortly(t *testing.T) {
	k := keyPair(t, "EdDSA", "k")
	v := newVerifier(t, identityPolicy(t, k.public))
	raw := swapCase(k.sign(t, goodClaims(nil)))
	for _, c := range []struct {
		after time.Duration
		hits  uint64
	}{{0, 0}, {time.Second, 1}, {2 * time.Second, 1}, {3 * time.Second, 2}} {
		if got := codeAt(t, v, noon.Add(c.after), "Bearer "+raw); got != identity.CodeTokenSignature {
			t.Fatalf("got %q", got)
		}
		if s := v.Stats(); s.RefusedHits != c.hits || s.Hits != 0 {
			t.Fatalf("after %v: %+v", c.after, s)
		}
	}
	expired := k.sign(t, goodClaims(map[string]any{"exp": noon.Unix() - 3600}))
	for range 2 {
		if got := codeAt(t, v, noon, "Bearer "+expired); got != identity.CodeTokenExpired {
			t.Fatalf("got %q", got)
		}
	}
	if s := v.Stats(); s.RefusedHits != 2 {
		t.Errorf("a cheap refusal was remembered: %+v", s)
	}
}

func TestCacheOff(t *testing.T) {
	k := keyPair(t, "EdDSA", "k")
	for name, change := range map[string]func(*policy.Identity){
		"cacheFor 0":  func(p *policy.Identity) { p.CacheFor = 0 },
		"cacheSize 0": func(p *policy.Identity) { p.CacheSize = 0 },
	} {
		p := identityPolicy(t, k.public)
		change(p)
		v := newVerifier(t, p)
		raw := k.sign(t, goodClaims(nil))
		for range 3 {
			verifyOne(t, v, raw)
			if got := codeAt(t, v, noon, "Bearer "+swapCase(raw)); got != identity.CodeTokenSignature {
				t.Errorf("%s: %q", name, got)
			}
		}
		if s := v.Stats(); s.Hits != 0 || s.RefusedHits != 0 || s.Misses != 6 {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

// TestCacheIsBounded: 100,000 tokens leave a table of its first size.
func TestCacheIsBounded(t *testing.T) {
	c := newCache(1000)
	if len(c.slots) != 1024 {
		t.Fatalf("%d places", len(c.slots))
	}
	set := &KeySet{}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range 100_000 {
		sum := sha256.Sum256(fmt.Append(nil, i))
		c.put(noon, &entry{sum: sum, set: set, since: noon, keep: time.Minute, until: noon.Add(time.Hour), who: &verified{}})
		if c.get(noon, &sum) == nil {
			t.Fatal("a new entry is not found")
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if len(c.slots) != 1024 || after.HeapAlloc > before.HeapAlloc+1<<20 {
		t.Errorf("%d places, %d bytes more", len(c.slots), after.HeapAlloc-before.HeapAlloc)
	}
}

// TestCachePrefersDeadEntries: an entry that counts no more goes before one
// that does.
func TestCachePrefersDeadEntries(t *testing.T) {
	c := newCache(ways)
	set := &KeySet{}
	add := func(i int, since time.Time, keep time.Duration) [32]byte {
		sum := sha256.Sum256(fmt.Append(nil, i))
		c.put(since, &entry{sum: sum, set: set, since: since, keep: keep, until: noon.Add(time.Hour), who: &verified{}})
		return sum
	}
	var sums [][32]byte
	for i := range ways {
		keep := time.Minute
		if i == 5 {
			keep = time.Second
		}
		sums = append(sums, add(i, noon.Add(time.Duration(i)*time.Millisecond), keep))
	}
	later := noon.Add(10 * time.Second)
	add(100, later, time.Minute)
	for i, sum := range sums {
		if found := c.get(later, &sum) != nil; found != (i != 5) {
			t.Errorf("entry %d found = %v", i, found)
		}
	}
	add(101, later, time.Minute) // none is dead: the oldest goes
	if c.get(later, &sums[0]) != nil || c.get(later, &sums[1]) == nil {
		t.Error("not the oldest one went")
	}
}

// TestCacheUnderContention is for the race detector: many readers and writers
// of few tokens, while keys and policy change.
func TestCacheUnderContention(t *testing.T) {
	k := keyPair(t, "EdDSA", "k")
	p := identityPolicy(t, k.public)
	v := newVerifier(t, p)
	var raws []string
	for i := range 8 {
		raws = append(raws, k.sign(t, goodClaims(map[string]any{"tenant": fmt.Sprintf("t%d", i)})))
	}
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 300 {
				n := (g + i) % len(raws)
				if id := verifyOne(t, v, raws[n]); id.Tenant != fmt.Sprintf("t%d", n) {
					t.Errorf("token %d is %s's", n, id.Tenant)
				}
				if code := codeAt(t, v, noon, "Bearer "+swapCase(raws[n])); code != identity.CodeTokenSignature {
					t.Errorf("forged token %d: %q", n, code)
				}
			}
		})
	}
	for range 20 {
		if err := v.Update(p); err != nil {
			t.Error(err)
		}
		if err := v.Reload(); err != nil {
			t.Error(err)
		}
		v.Stats()
	}
	wg.Wait()
}

// TestHitAllocations: a remembered token costs nothing on the heap.
func TestHitAllocations(t *testing.T) {
	k := keyPair(t, "EdDSA", "k")
	v := newVerifier(t, identityPolicy(t, k.public))
	h := authHeader("Bearer " + k.sign(t, goodClaims(nil)))
	if n := testing.AllocsPerRun(200, func() {
		if who, d := v.verify(t.Context(), noon, h); d != nil || who == nil {
			t.Fatal(d)
		}
	}); n > 0 {
		t.Errorf("%v allocations a hit", n)
	}
}

func BenchmarkVerify(b *testing.B) {
	for _, alg := range []string{"EdDSA", "ES256", "RS256"} {
		k := keyPair(b, alg, "k")
		h := authHeader("Bearer " + k.sign(b, goodClaims(nil)))
		for _, c := range []struct {
			name string
			size int
		}{{"hit", 1000}, {"miss", 0}} {
			b.Run(alg+"/"+c.name, func(b *testing.B) {
				p := identityPolicy(b, k.public)
				p.CacheSize = c.size
				v := newVerifier(b, p)
				b.ReportAllocs()
				for b.Loop() {
					if _, d := v.verify(b.Context(), noon, h); d != nil {
						b.Fatal(d)
					}
				}
			})
		}
	}
	b.Run("garbage", func(b *testing.B) {
		k := keyPair(b, "EdDSA", "k")
		v := newVerifier(b, identityPolicy(b, k.public))
		h := authHeader("Bearer " + k.sign(b, goodClaims(map[string]any{"exp": noon.Unix() - 3600})))
		b.ReportAllocs()
		for b.Loop() {
			if _, d := v.verify(b.Context(), noon, h); d == nil {
				b.Fatal("accepted")
			}
		}
	})
}
