package memstore

// links are an element's neighbours in a list.
type links[T any] struct{ prev, next *T }

// linked is a pointer to an element that carries its own links.
type linked[T any] interface {
	*T
	links() *links[T]
}

// list is a doubly linked list that allocates nothing.
type list[T any, P linked[T]] struct {
	first, last P
	n           int
}

// insert puts e behind the last element that goes before it.
func (l *list[T, P]) insert(e P, before func(P) bool) {
	after := l.last
	for after != nil && !before(after) {
		after = after.links().prev
	}
	next := l.first
	if after != nil {
		next = after.links().next
		after.links().next = e
	} else {
		l.first = e
	}
	if next != nil {
		next.links().prev = e
	} else {
		l.last = e
	}
	*e.links() = links[T]{prev: after, next: next}
	l.n++
}

// push puts e at the end.
func (l *list[T, P]) push(e P) { l.insert(e, func(P) bool { return true }) }

func (l *list[T, P]) remove(e P) {
	at := e.links()
	if at.prev != nil {
		P(at.prev).links().next = at.next
	} else {
		l.first = at.next
	}
	if at.next != nil {
		P(at.next).links().prev = at.prev
	} else {
		l.last = at.prev
	}
	*at = links[T]{}
	l.n--
}
