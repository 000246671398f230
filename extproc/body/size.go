package body

// Fits reports whether the body has at most limit bytes after the edits.
func (b *Body) Fits(limit int64, edits ...Edit) bool {
	size := len(b.data)
	for _, e := range edits { // more than an edit can add, escapes included
		size += 6*(len(e.field)+len(e.sub)) + len(e.json) + len(`,"":{"":}`)
	}
	return int64(size) <= limit || int64(len(b.Rewrite(edits...))) <= limit
}
