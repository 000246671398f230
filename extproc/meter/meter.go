// Package meter reads the model's usage out of an answer while it passes: in
// JSON bodies and server-sent event streams, in any chunking, in constant
// memory.
//
// Bytes become lines, lines become events, events become JSON (WHATWG HTML
// section 9.2 for event streams, RFC 8259 for JSON); each layer keeps a few
// hundred bytes of state between chunks and no text. Counts are the
// upstream's own (OpenAI's chat, completions, embeddings and responses, and
// Anthropic's messages, TGI's, SGLang's and Triton's generate, told apart by
// their content); running totals replace each other and are never added up,
// and a count of zero or null is no count. Where an answer carries no count,
// what was delivered is estimated from its text.
//
// Invariants:
//
//   - Facts do not depend on how the bytes were cut into chunks.
//   - Bytes go on as they came; only with HideUsage are whole events cut out,
//     and only those that hold usage and an empty list of choices.
//   - No input makes the meter panic or grow: an answer that cannot be read
//     is estimated, never charged as zero.
//
// Mechanisms: T8 (settling on what was used, also on abort), B6 (an error
// inside an answer of status 200).
package meter

import (
	"bytes"
	"strings"

	"github.com/weirproxy/weir/policy"
)

// DefaultMaxEvent bounds the bytes held back of one event.
const DefaultMaxEvent = 64 << 10

// Options describe one answer.
type Options struct {
	Kind            policy.Kind
	Status          int    // HTTP status; 0 = unknown. From 400 on nothing was delivered
	ContentType     string // "" = told by the first byte
	ContentEncoding string // gzip and x-gzip are decoded; others are estimated
	// HideUsage cuts out the usage chunk that the caller did not ask for. It
	// needs a plain answer: a request whose usage was asked for by us must go
	// upstream without accept-encoding. A coded answer passes unchanged.
	HideUsage bool
	MaxEvent  int64 // largest event that may be held back and cut out; 0 = DefaultMaxEvent
	MaxOut    int64 // the caller's output cap over all choices; 0 = none
	Prompts   int64 // prompts in the call; 0 = one
	Choices   int64 // answers asked for, over all prompts; 0 = not known
	// What one prompt and one answer of the model may be at most, in tokens;
	// 0 = no bound. A count beyond is not believed.
	ContextLimit, OutputLimit int64
}

// form is how the answer's bytes are read.
type form uint8

const (
	formSniff  form = iota // not known yet
	formJSON               // one document
	formSSE                // an event stream
	formOpaque             // cannot be read
)

// Meter reads one answer. It is used by one goroutine at a time. Close must
// be called at the end.
type Meter struct {
	o       Options
	form    form
	coded   bool // a coding that is not decoded
	ended   bool
	wire    int64 // bytes as they came
	decoded int64 // bytes of them read
	dec     *decoder
	walk    walker
	doc     document
	lines   lines
	hide    hider
	shapes  shapes
	sum     summary
}

// New returns a meter for an answer.
func New(o Options) *Meter {
	if o.MaxEvent <= 0 {
		o.MaxEvent = DefaultMaxEvent
	}
	m := &Meter{o: o}
	m.walk.doc = &m.doc
	m.sum.each.most = int(min(max(o.Choices, 0), maxChoices))
	m.form = formOf(o.ContentType)
	m.sum.problem = strings.HasPrefix(strings.ToLower(o.ContentType), "application/problem+json")
	switch coding(o.ContentEncoding) {
	case codingNone:
	case codingGzip:
		m.dec = newDecoder(m.read)
	default:
		m.form, m.coded = formOpaque, true
	}
	return m
}

// formOf tells the form by the media type.
func formOf(contentType string) form {
	media, _, _ := strings.Cut(contentType, ";")
	switch media = strings.ToLower(strings.TrimSpace(media)); {
	case media == "":
		return formSniff
	case media == "text/event-stream":
		return formSSE
	case media == "application/json", strings.HasSuffix(media, "+json"):
		return formJSON
	}
	return formOpaque
}

// Write reads the next bytes of the answer; end says that they are the last.
// With replaced, out is to be sent in their place (it may be empty and is
// valid until the next Write); else they go on as they are.
func (m *Meter) Write(chunk []byte, end bool) (out []byte, replaced bool) {
	m.wire += int64(len(chunk))
	switch {
	case m.ended:
		return nil, false
	case m.dec != nil:
		m.dec.push(chunk, end)
	default:
		if m.o.HideUsage {
			m.hide.begin()
		}
		m.read(chunk)
	}
	if end {
		m.finish(chunk)
	}
	if m.dec != nil || !m.o.HideUsage || m.form == formSniff {
		return nil, false
	}
	return m.hide.end(chunk, m.mayHide(), m.o.MaxEvent)
}

// Close lets go of what the meter holds. Facts stay.
func (m *Meter) Close() {
	if m.dec != nil {
		m.dec.close()
	}
}

// read reads decoded bytes.
func (m *Meter) read(p []byte) {
	m.decoded += int64(len(p))
	if m.form == formSniff {
		m.form = sniff(p)
	}
	switch m.form {
	case formJSON:
		m.readJSON(p)
	case formSSE:
		m.readLines(p)
	case formOpaque:
		m.readUntyped(p)
	}
}

// sniff tells the form by the first byte that is not white space.
func sniff(p []byte) form {
	p = bytes.TrimLeft(p, " \t\r\n")
	switch {
	case len(p) == 0:
		return formSniff
	case p[0] == '{' || p[0] == '[':
		return formJSON
	case p[0] == '<':
		return formOpaque
	}
	return formSSE
}

func (m *Meter) readJSON(p []byte) {
	if m.sum.events > 0 {
		return
	}
	m.walk.once = true
	m.walk.feed(p)
	if m.walk.state == atEnd {
		m.commit()
	}
}

// finish takes what the end of the answer completes: an event without its
// blank line counts if its data are whole.
func (m *Meter) finish(chunk []byte) {
	m.ended = true
	l := &m.lines
	if m.form == formSSE && (l.data > 0 && (m.walk.state == atEnd || l.isDone()) || l.bare || l.closed || l.isError()) {
		if m.dec != nil {
			chunk, l.start = nil, -1
		}
		m.dispatch(chunk, len(chunk), l.total-l.began)
	}
}

// mayHide reports whether the event being read may turn out to be one that
// is cut out.
func (m *Meter) mayHide() bool {
	return m.form == formSSE && !m.ended && (m.lines.only || !m.lines.closed) && m.doc.usageOnlySoFar() && m.walk.state != atFault
}
