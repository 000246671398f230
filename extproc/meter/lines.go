package meter

import "bytes"

// lines is the state of an event stream between chunks.
type lines struct {
	state   lineState
	field   field
	name    [6]byte // of the field, as far as it matters
	nameLen int
	bom     int  // bytes of a byte order mark seen at the start; 3 = past it
	afterCR bool // the line before ended with CR: a LF still belongs to it

	// the event being read
	lines    int // its lines
	data     int // its data lines
	dataLen  int // bytes of data
	head     [8]byte
	event    [6]byte // its type
	eventLen int
	start    int  // where it begins in this chunk; -1 = in one before
	dataAt   int  // where its data begin in this chunk
	closed   bool // data lines before made whole documents
	only     bool // these hold usage alone
	bare     bool // JSON outside of any field is being read

	// bytes of the stream, to weigh what never ends
	base, total int64 // before and behind this chunk
	began       int64 // where the event begins
}

type lineState uint8

const (
	lineStart lineState = iota
	lineName
	lineSpace // after the colon
	lineValue
)

type field uint8

const (
	fieldOther field = iota
	fieldData
	fieldEvent
	fieldError // llama.cpp's, outside of the data
	fieldBare  // no field: a JSON document stands for itself
)

const byteOrderMark = "\xef\xbb\xbf"

// readLines reads the next bytes of an event stream.
func (m *Meter) readLines(p []byte) {
	l := &m.lines
	l.base, l.total = l.total, l.total+int64(len(p))
	if l.start = -1; l.lines == 0 {
		l.start = 0
	}
	for i := 0; i < len(p); {
		if l.afterCR {
			if l.afterCR = false; p[i] == '\n' {
				i++
				if l.lines == 0 {
					l.start, l.began = i, l.base+int64(i)
					m.hide.lineFeed(i)
				}
				continue
			}
		}
		switch l.state {
		case lineStart:
			i = m.beginLine(p, i)
		case lineName:
			i = m.readName(p, i)
		case lineSpace:
			if l.state = lineValue; p[i] == ' ' {
				i++
			}
			if l.field == fieldData {
				l.dataAt = i
			}
		case lineValue:
			i = m.readValue(p, i)
		}
	}
}

// beginLine takes a line's first byte, a blank line, or a whole event whose
// shape is known.
func (m *Meter) beginLine(p []byte, i int) int {
	l := &m.lines
	if l.bom < len(byteOrderMark) {
		if p[i] == byteOrderMark[l.bom] {
			l.bom++
			return i + 1
		}
		l.bom = len(byteOrderMark)
	}
	if l.lines == 0 {
		var t textCount
		if n := m.shapes.match(p[i:], &t); n > 0 {
			m.sum.events++
			m.sum.mergeText(&t)
			l.start, l.began = i+n, l.base+int64(i+n)
			m.hide.boundary(p, i+n, false)
			return i + n
		}
	}
	if p[i] == '\n' || p[i] == '\r' {
		size := l.base + int64(i) - l.began
		i = l.lineEnd(p, i)
		m.dispatch(p, i, size)
		return i
	}
	l.state, l.nameLen = lineName, 0
	l.lines++
	if l.bare {
		l.state, l.field = lineValue, fieldBare
	}
	return i
}

// lineEnd passes the line end at p[i].
func (l *lines) lineEnd(p []byte, i int) int {
	l.state = lineStart
	if p[i] == '\r' {
		if i+1 == len(p) {
			l.afterCR = true
		} else if p[i+1] == '\n' {
			i++
		}
	}
	return i + 1
}

// readName reads on in a field's name, which a colon or the line's end ends.
func (m *Meter) readName(p []byte, i int) int {
	l := &m.lines
	for ; i < len(p); i++ {
		switch c := p[i]; c {
		case ':':
			m.beginField()
			l.state = lineSpace
			return i + 1
		case '\n', '\r':
			m.beginField()
			m.lineDone()
			return l.lineEnd(p, i)
		case '{':
			if len(bytes.TrimSpace(l.name[:l.nameLen])) == 0 && l.nameLen < len(l.name) && m.beginBare() {
				l.state, l.field = lineValue, fieldBare
				return i
			}
			fallthrough
		default:
			if l.nameLen < len(l.name) {
				l.name[l.nameLen] = c
				l.nameLen++
			}
		}
	}
	return i
}

// beginField takes the field's name as read.
func (m *Meter) beginField() {
	l := &m.lines
	l.field = fieldOther
	switch string(l.name[:l.nameLen]) {
	case "data":
		l.field = fieldData
		if l.data > 0 && !m.closeDocument() {
			m.feedData([]byte{'\n'})
		}
		l.data++
	case "event":
		l.field, l.eventLen = fieldEvent, 0
	case "error":
		if l.field = fieldError; !m.beginBare() {
			m.sum.fault.set = true
		}
	case "", "id", "retry":
	default:
		m.sum.faulty++
	}
}

// readValue reads on in a field's value.
func (m *Meter) readValue(p []byte, i int) int {
	l := &m.lines
	end := i + indexTwo(p[i:], '\n', '\r')
	switch l.field {
	case fieldData:
		m.feedData(p[i:end])
	case fieldError, fieldBare:
		m.walk.feed(p[i:end])
	case fieldEvent:
		copy(l.event[min(l.eventLen, len(l.event)):], p[i:end])
		l.eventLen = min(l.eventLen+end-i, len(l.event))
	}
	if end == len(p) {
		return end
	}
	m.lineDone()
	return l.lineEnd(p, end)
}

func (m *Meter) feedData(p []byte) {
	l := &m.lines
	if l.dataLen < len(l.head) {
		copy(l.head[l.dataLen:], p)
	}
	l.dataLen += len(p)
	m.walk.feed(p)
}

// isDone reports OpenAI's last event.
func (l *lines) isDone() bool {
	return l.dataLen <= len(l.head) && string(bytes.TrimSpace(l.head[:l.dataLen])) == "[DONE]"
}

func (l *lines) isError() bool { return bytes.EqualFold(l.event[:l.eventLen], []byte("error")) }

// dispatch takes the event of so many bytes that ends at p[i].
func (m *Meter) dispatch(p []byte, i int, size int64) {
	l, d := &m.lines, &m.doc
	m.endBare()
	only := false
	switch {
	case l.dataLen == 0 && (l.data == 0 || l.closed):
		if only = l.only; !l.closed {
			m.weigh(size)
		}
	case m.walk.state == atEnd:
		d.fault.set = d.fault.set || l.isError()
		only = d.usageOnly() && (l.only || !l.closed)
		if !d.known() {
			m.weigh(size)
		}
		if l.start >= 0 && l.data == 1 && !l.afterCR && d.plain() {
			m.shapes.learn(p[l.start:i], l.dataAt-l.start+d.textAt, l.dataAt-l.start+d.textEnds)
		}
		m.commit()
	case l.isDone():
		m.sum.last = true
	default:
		m.unread()
	}
	m.sum.fault.set = m.sum.fault.set || l.isError()
	if l.data > 0 {
		*d = document{}
		m.walk.reset()
	}
	l.lines, l.data, l.dataLen, l.eventLen, l.start = 0, 0, 0, 0, i
	l.closed, l.only, l.began = false, false, l.base+int64(i)
	m.hide.boundary(p, i, only && m.o.HideUsage && m.hide.size(i) <= m.o.MaxEvent)
}

func (m *Meter) commit() { m.sum.merge(&m.doc) }

// unread takes an event whose data are no JSON: its bytes are charged as text
// of four bytes a token.
func (m *Meter) unread() {
	if m.lines.isError() {
		return
	}
	m.sum.faulty++
	m.sum.mergeText(byBytes(int64(m.lines.dataLen)))
}
