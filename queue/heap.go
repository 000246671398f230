package queue

import "cmp"

// placed is something that remembers where in a heap it lies, so that it can
// be taken out of the middle.
type placed interface{ place(i int) }

// heap is a binary min-heap by key, then by tie. Keys lie in the slots, so a
// comparison follows no pointer. The zero value is empty.
type heap[K cmp.Ordered, T placed] struct{ slots []slot[K, T] }

type slot[K cmp.Ordered, T placed] struct {
	key  K
	tie  uint64
	item T
}

func (h *heap[K, T]) len() int { return len(h.slots) }

// min is the least slot; only of a heap that is not empty.
func (h *heap[K, T]) min() *slot[K, T] { return &h.slots[0] }

func (h *heap[K, T]) push(key K, tie uint64, item T) {
	h.slots = append(h.slots, slot[K, T]{key, tie, item})
	h.up(len(h.slots) - 1)
}

// fix gives the item at i a new key and tie.
func (h *heap[K, T]) fix(i int, key K, tie uint64) {
	h.slots[i].key, h.slots[i].tie = key, tie
	if !h.down(i) {
		h.up(i)
	}
}

func (h *heap[K, T]) remove(i int) {
	last := len(h.slots) - 1
	h.slots[i] = h.slots[last]
	h.slots[last] = slot[K, T]{}
	h.slots = h.slots[:last]
	if i < last && !h.down(i) {
		h.up(i)
	}
}

func (h *heap[K, T]) clear() {
	clear(h.slots)
	h.slots = h.slots[:0]
}

func less[K cmp.Ordered, T placed](a, b *slot[K, T]) bool {
	return a.key < b.key || a.key == b.key && a.tie < b.tie
}

// up lets the slot at i rise to its place and records it.
func (h *heap[K, T]) up(i int) {
	s := h.slots[i]
	for i > 0 {
		p := (i - 1) / 2
		if !less(&s, &h.slots[p]) {
			break
		}
		h.put(i, h.slots[p])
		i = p
	}
	h.put(i, s)
}

// down lets the slot at i sink to its place and reports whether it moved; if
// not, its place is recorded all the same.
func (h *heap[K, T]) down(i int) bool {
	start, s := i, h.slots[i]
	for {
		c := 2*i + 1
		if c >= len(h.slots) {
			break
		}
		if c+1 < len(h.slots) && less(&h.slots[c+1], &h.slots[c]) {
			c++
		}
		if !less(&h.slots[c], &s) {
			break
		}
		h.put(i, h.slots[c])
		i = c
	}
	h.put(i, s)
	return i > start
}

func (h *heap[K, T]) put(i int, s slot[K, T]) {
	h.slots[i] = s
	s.item.place(i)
}
