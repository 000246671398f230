package queue

import (
	"math"
	"slices"
)

// What the tuner knows of the KV cache.
const (
	heldKept  = 30   // samples of it
	heldFew   = 5    // fewer make no estimate
	heldNew   = 5    // so many of the last tell that all before are of another time,
	heldOther = 3    // when they are so many deviations away
	heldLeast = 1e-4 // of the cache: less tells nothing
	heldMost  = 10.0 // and more is no share of it
)

// holding is one sample: so many requests held this share of the KV cache.
type holding struct{ n, kv float64 }

// holdings are the last samples, oldest first. Each request holds what its
// prompt and answer need; the shares of n requests, drawn from the same
// traffic, add up to n * mean, give or take uneven * sqrt(n).
type holdings struct{ list []holding }

// note keeps a sample: those who hold something are in the batch.
func (h *holdings) note(l Look) {
	n := float64(l.Used)
	switch e := &l.Engine; {
	case e.Running.OK:
		n = min(n, e.Running.V)
	case e.Waiting.OK:
		n -= e.Waiting.V
	}
	if kv := l.Engine.KV; kv.OK && kv.V >= heldLeast && kv.V <= heldMost && n >= 1 {
		h.list = push(h.list, holding{n, kv.V}, heldKept)
		h.forget()
	}
}

// forget drops what was before the engine or the traffic changed: when the
// last samples would be a rare chance in what was before them.
func (h *holdings) forget() {
	k := len(h.list) - heldNew
	if k < heldNew {
		return
	}
	mean, uneven := spread(h.list[:k])
	n, kv := sum(h.list[k:])
	if math.Abs(kv-mean*n) > heldOther*uneven*math.Sqrt(n*heldNew) {
		h.list = slices.Delete(h.list, 0, k)
	}
}

// room is how many requests fit into the cache, with so many deviations to
// spare: n * mean + sure * uneven * sqrt(n) = kvFull, solved for n; unknown = no
// bound.
func (h *holdings) room(sure float64) float64 {
	if len(h.list) < heldFew {
		return math.Inf(1)
	}
	mean, uneven := spread(h.list)
	spare := sure * uneven
	root := (math.Sqrt(spare*spare+4*mean*kvFull) - spare) / (2 * mean)
	return root * root
}

func sum(list []holding) (n, kv float64) {
	for _, x := range list {
		n, kv = n+x.n, kv+x.kv
	}
	return n, kv
}

// spread is what a request holds in the mean, and by how much that sways.
func spread(list []holding) (mean, uneven float64) {
	n, kv := sum(list)
	mean = kv / n
	square := 0.0
	for _, x := range list {
		d := x.kv - mean*x.n
		square += d * d / x.n
	}
	return mean, math.Sqrt(square / float64(len(list)))
}
