package main

import "testing"

func TestGCPercent(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		live, stacks uint64
		want         int
	}{{0, 0, 400}, {2 * mib, 1 * mib, 400}, {6 * mib, 2 * mib, 200}, {12 * mib, 4 * mib, 100}, {500 * mib, 100 * mib, 25}} {
		if got := gcPercent(c.live, c.stacks); got != c.want {
			t.Errorf("%d MiB live, %d of stacks: %d, want %d", c.live/mib, c.stacks/mib, got, c.want)
		}
	}
}

// After a flood what it took is given back; under load, and where little is
// held beyond what is in use, nothing is.
func TestReleases(t *testing.T) {
	const mib = 1 << 20
	quiet := memoryUse{live: 5 * mib, objects: 8 * mib, idle: 10 * mib}
	flood := memoryUse{live: 60 * mib, objects: 500 * mib, idle: 80 * mib}
	after := memoryUse{live: 5 * mib, objects: 20 * mib, idle: 560 * mib}
	for name, c := range map[string]struct {
		before, now memoryUse
		want        bool
	}{
		"quiet":                 {quiet, quiet, false},
		"the flood begins":      {quiet, flood, false},
		"garbage of the flood":  {flood, memoryUse{live: 60 * mib, objects: 500 * mib, idle: 80 * mib}, true},
		"after the flood":       {flood, after, true},
		"all of it was in use":  {memoryUse{live: 500 * mib, objects: 502 * mib}, memoryUse{live: 500 * mib, objects: 503 * mib}, false},
		"large, and all in use": {memoryUse{live: 500 * mib, objects: 600 * mib}, memoryUse{live: 500 * mib, objects: 600 * mib}, false},
	} {
		if got := releases(c.before, c.now); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// What was in use at the last collection is looked at again, and a small heap
// left alone.
func TestForgotten(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		quiet   int
		objects uint64
		want    bool
	}{{0, 500 * mib, false}, {memoryQuiet - 1, 500 * mib, false}, {memoryQuiet, 500 * mib, true}, {memoryQuiet, 20 * mib, false}} {
		if got := forgotten(c.quiet, memoryUse{live: c.objects, objects: c.objects}); got != c.want {
			t.Errorf("%d MiB, quiet for %d: %v, want %v", c.objects/mib, c.quiet, got, c.want)
		}
	}
}
