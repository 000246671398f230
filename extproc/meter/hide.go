package meter

// hider cuts whole events out of the bytes that go on. Of the event being
// read it holds bytes back only while it may turn out to be one to cut.
type hider struct {
	held     []byte // of the event being read, from earlier chunks
	carried  int64  // its length in earlier chunks, held or not
	released bool   // bytes of it went on: it stays

	from     int // where the event being read begins in this chunk
	copied   int // bytes of this chunk that are in out, or cut
	out      []byte
	replaced bool
	cutLast  bool // the event before was cut
}

// begin starts a chunk.
func (h *hider) begin() {
	h.from, h.copied, h.out, h.replaced = 0, 0, h.out[:0], false
}

// size is the length of the event that ends at i.
func (h *hider) size(i int) int64 { return h.carried + int64(i-h.from) }

// boundary ends the event being read at chunk[i].
func (h *hider) boundary(chunk []byte, i int, cut bool) {
	switch {
	case cut && !h.released:
		h.out = append(h.out, chunk[h.copied:h.from]...)
		h.copied, h.replaced = i, true
	case len(h.held) > 0:
		h.out, h.replaced = append(h.out, h.held...), true
	}
	h.held, h.carried, h.released = h.held[:0], 0, false
	h.from, h.cutLast = i, cut
}

// lineFeed passes a LF that belongs to the event which the CR before it ended.
func (h *hider) lineFeed(i int) {
	if h.from = i; h.cutLast {
		h.copied, h.replaced = i, true
	}
}

// end ends the chunk. With hold, what came of the event being read is held
// back, up to most bytes.
func (h *hider) end(chunk []byte, hold bool, most int64) (out []byte, replaced bool) {
	h.carried += int64(len(chunk) - h.from)
	switch {
	case h.carried == 0:
	case hold && !h.released && h.carried <= most:
		if h.from < len(chunk) {
			h.out, h.replaced = append(h.out, chunk[h.copied:h.from]...), true
			h.held = append(h.held, chunk[h.from:]...)
			h.copied = len(chunk)
		}
	default:
		if h.released = true; len(h.held) > 0 {
			h.out, h.replaced = append(h.out, h.held...), true
			h.held = h.held[:0]
		}
	}
	if !h.replaced {
		return nil, false
	}
	h.out = append(h.out, chunk[h.copied:]...)
	return h.out, true
}
