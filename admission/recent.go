package admission

import "slices"

// Recent gives copies of at most n decisions, the latest first.
func (x *Explain) Recent(n int) []Record {
	all := []Record{} // in JSON a list, also when empty
	for i := range x.shards {
		s := &x.shards[i]
		s.mu.Lock()
		for _, ring := range []*explainRing{&s.verified, &s.anonymous} {
			for _, at := range ring.byID {
				all = append(all, ring.slots[at].copy())
			}
		}
		s.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b Record) int { return b.At.Compare(a.At) })
	return all[:min(max(n, 0), len(all))]
}
