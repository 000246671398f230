package queue

import "cmp"

// placed is something that remembers where in a heap it lies, so that it can
// be taken out of the middle.
type placed interface{ place(i int) }

// heap is a binary min-heap by key, then by tie. Keys lie in the entries, so a
// comparison follows no pointer. The zero value is empty.
type heap[K cmp.Ordered, T placed] struct{ entries []keyed[K, T] }

type keyed[K cmp.Ordered, T placed] struct {
	key  K
	tie  uint64
	item T
}

func (h *heap[K, T]) len() int { return len(h.entries) }

// min is the least entry; only of a heap that is not empty.
func (h *heap[K, T]) min() *keyed[K, T] { return &h.entries[0] }

func (h *heap[K, T]) push(key K, tie uint64, item T) {
	h.entries = append(h.entries, keyed[K, T]{key, tie, item})
	h.up(len(h.entries) - 1)
}

// fix gives the item at i a new key and tie.
func (h *heap[K, T]) fix(i int, key K, tie uint64) {
	h.entries[i].key, h.entries[i].tie = key, tie
	if !h.down(i) {
		h.up(i)
	}
}

func (h *heap[K, T]) remove(i int) {
	last := len(h.entries) - 1
	h.entries[i] = h.entries[last]
	h.entries[last] = keyed[K, T]{}
	h.entries = h.entries[:last]
	if i < last && !h.down(i) {
		h.up(i)
	}
}

func (h *heap[K, T]) clear() {
	clear(h.entries)
	h.entries = h.entries[:0]
}

func less[K cmp.Ordered, T placed](a, b *keyed[K, T]) bool {
	return a.key < b.key || a.key == b.key && a.tie < b.tie
}

// up lets the entry at i rise to its place and records it.
func (h *heap[K, T]) up(i int) {
	s := h.entries[i]
	for i > 0 {
		p := (i - 1) / 2
		if !less(&s, &h.entries[p]) {
			break
		}
		h.put(i, h.entries[p])
		i = p
	}
	h.put(i, s)
}

// down lets the entry at i sink to its place and reports whether it moved; if
// not, its place is recorded all the same.
func (h *heap[K, T]) down(i int) bool {
	start, s := i, h.entries[i]
	for {
		c := 2*i + 1
		if c >= len(h.entries) {
			break
		}
		if c+1 < len(h.entries) && less(&h.entries[c+1], &h.entries[c]) {
			c++
		}
		if !less(&h.entries[c], &s) {
			break
		}
		h.put(i, h.entries[c])
		i = c
	}
	h.put(i, s)
	return i > start
}

func (h *heap[K, T]) put(i int, s keyed[K, T]) {
	h.entries[i] = s
	s.item.place(i)
}
