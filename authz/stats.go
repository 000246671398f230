package authz

import (
	"cmp"
	"errors"
	"slices"
	"time"
)

// Stats is a snapshot of a verifier for metrics and readiness.
type Stats struct {
	Hits        uint64 // tokens accepted from memory
	RefusedHits uint64 // tokens refused from memory
	Misses      uint64 // tokens judged
	KeySets     []KeySetStats
}

// KeySetStats is one issuer's key set.
type KeySetStats struct {
	Issuer  string
	Keys    int           // usable
	Skipped int           // in the document, but not usable here
	Age     time.Duration // since the set was last known to be right; 0 for a file
	Usable  bool          // false: every token of the issuer is refused as unavailable
	Fetches uint64        // of a URL
	Failed  uint64        // fetches and reloads
	Trouble string        // why the last fetch or reload failed; "" = it did not
}

// Stats reads the counters. The key sets are sorted by issuer.
func (v *Verifier) Stats() Stats {
	now := time.Now()
	s := Stats{Hits: v.counts.hits.Load(), RefusedHits: v.counts.refusedHits.Load(), Misses: v.counts.misses.Load()}
	for name, iss := range v.current.Load().issuers {
		k := iss.keys
		set := KeySetStats{Issuer: name, Usable: k.at(now) != nil, Fetches: k.fetches.Load(), Failed: k.failed.Load()}
		if cur := k.current.Load(); cur != nil {
			set.Keys, set.Skipped = len(cur.all), len(cur.skipped)
			if why := k.trouble.Load(); why != nil {
				set.Trouble = *why
			}
			if k.fetch != nil {
				set.Age = now.Sub(*k.good.Load())
			}
		}
		s.KeySets = append(s.KeySets, set)
	}
	slices.SortFunc(s.KeySets, func(a, b KeySetStats) int { return cmp.Compare(a.Issuer, b.Issuer) })
	return s
}

// Ready reports whether every issuer has usable keys.
func (v *Verifier) Ready() bool {
	now := time.Now()
	for _, iss := range v.current.Load().issuers {
		if iss.keys.at(now) == nil {
			return false
		}
	}
	return true
}

// Files lists the key files to be watched; when one changes, call Reload.
func (v *Verifier) Files() []string {
	var files []string
	for _, iss := range v.current.Load().issuers {
		if f := iss.keys.source.File; f != "" {
			files = append(files, f)
		}
	}
	slices.Sort(files)
	return slices.Compact(files)
}

// Reload reads all key files again. A file that is bad keeps its keys in
// force; the error names each.
func (v *Verifier) Reload() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	var errs []error
	for _, iss := range v.current.Load().issuers {
		errs = append(errs, iss.keys.Reload())
	}
	return errors.Join(errs...)
}
