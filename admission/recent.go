package admission

import "slices"

// Recent gives copies of at most n decisions, the latest first.
func (x *Explain) Recent(n int) []Record {
	var all []Record
	for i := range x.shards {
		s := &x.shards[i]
		s.mu.Lock()
		for id := range s.byID {
			rec := s.ring[s.byID[id]]
			if rec.quota != (QuotaView{}) {
				q := rec.quota
				rec.Decision.Quota = &q
			}
			all = append(all, rec)
		}
		s.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b Record) int { return b.At.Compare(a.At) })
	return all[:min(n, len(all))]
}
