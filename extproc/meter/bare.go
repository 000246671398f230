package meter

// What event streams hold that is no event of one document: several documents
// in one event, JSON outside of any field, bytes that never end. Some servers
// report an error so, inside an answer that began well.

// envelope is how many bytes of an event may be other than text.
const envelope = 4 << 10

// closeDocument takes the document that the data lines so far make, if it is
// whole: the next line begins another. No reader of the stream could make one
// document of the two.
func (m *Meter) closeDocument() bool {
	l, d := &m.lines, &m.doc
	only := false
	switch {
	case l.closed && l.dataLen == 0:
		return true
	case m.walk.state == atEnd:
		d.fault.set = d.fault.set || l.isError()
		only = d.usageOnly()
		m.commit()
	case l.isDone():
		m.sum.last = true
	default:
		return false
	}
	l.only = only && (l.only || !l.closed)
	l.closed, l.dataLen = true, 0
	*d = document{}
	m.walk.reset()
	return true
}

// beginBare makes ready for JSON outside of the data; false where the event's
// data are in the middle of a document.
func (m *Meter) beginBare() bool {
	l := &m.lines
	l.bare = l.data == 0 || m.closeDocument()
	m.walk.once = l.bare // what follows on the line is of no interest
	return l.bare
}

// lineDone follows each line with a value.
func (m *Meter) lineDone() {
	switch m.lines.field {
	case fieldBare:
		if m.walk.state == atEnd || m.walk.state == atFault {
			m.endBare()
		}
	case fieldError:
		m.endBare()
	}
}

// endBare takes JSON outside of the data. It counts where it is an error: an
// error's field is one whatever it holds. Anything else is no part of a stream.
func (m *Meter) endBare() {
	l, d := &m.lines, &m.doc
	if !l.bare {
		return
	}
	d.fault.set = d.fault.set || l.field == fieldError
	if m.walk.state == atEnd {
		if d.kind.n > 0 || d.status.n > 0 {
			m.sum.mergeKind(d)
		}
		m.sum.mergeFault(d)
	}
	m.sum.fault.set = m.sum.fault.set || l.field == fieldError
	if !d.fault.set {
		m.sum.faulty++
	}
	l.bare, m.walk.once = false, false
	*d = document{}
	m.walk.reset()
}

// readUntyped looks for an error in the JSON of an answer that is said to be
// something else; of an answer in a coding nothing can be told.
func (m *Meter) readUntyped(p []byte) {
	if m.coded || m.walk.state == atFault {
		return
	}
	m.walk.once = true
	m.walk.feed(p)
	if m.walk.state == atEnd {
		m.lines.bare = true
		m.endBare()
		m.walk.state = atFault // the rest is of no interest
	}
}

// weigh charges an event in which no text is known by its bytes, beyond what
// an event may hold beside text.
func (m *Meter) weigh(size int64) {
	if size > envelope && !m.lines.isError() {
		m.sum.mergeText(byBytes(size))
	}
}

// byBytes is text of which only the length is known, at four bytes a token.
func byBytes(n int64) *textCount { return &textCount{bytes: n, chars: n, quarters: n} }

// unended adds what passed of an event, or of a whole answer, that has not
// come to its end: its text, by its bytes where they are much more.
func (m *Meter) unended(s *summary) {
	size := int64(0)
	switch {
	case m.dec != nil && m.dec.failed:
		return
	case m.form == formSSE && m.lines.lines > 0:
		size = m.lines.total - m.lines.began
	case m.form == formJSON && s.events == 0:
		size = m.decoded
		s.all = m.doc.all
	default:
		return
	}
	t := &m.doc.text
	switch {
	case m.form == formSSE && size <= envelope: // no reader has taken it yet
		return
	case m.form == formJSON && m.walk.state == atFault:
	case size > envelope && size > max(t.quarters, m.doc.all.quarters):
		t = byBytes(size)
	}
	s.mergeText(t)
}
