package meter

// summary is what all documents of an answer told together.
type summary struct {
	text       textCount
	all        textCount // the longest text that repeats what came before
	after      int64     // tokens of text since the last count of output
	events     int64     // documents read
	faulty     int64     // events and lines that could not be read
	c          counts
	each       choiceCounts // running totals of the single choices
	part       bool         // input is that of one choice's prompt
	fin        finishes
	last       bool // a terminal event was seen
	needs      bool // the API says when an answer ends: without a word it is cut
	data       int64
	understood bool // a document of a known API was read
	counted    bool
	problem    bool
	fault      fault
}

// merge takes the findings of one whole document.
func (s *summary) merge(d *document) {
	s.events++
	s.mergeText(&d.text)
	s.understood = s.understood || d.known()
	if d.all.quarters > s.all.quarters {
		s.all = d.all
	}
	s.fin.merge(d.fin)
	s.needs = s.needs || d.choiceList > 0 || d.token
	s.last = s.last || d.token && d.last
	s.data += int64(d.data)
	if d.batch.have != 0 {
		d.batch.add(&d.usage)
		d.usage = d.batch
	}
	if d.usage.have != 0 {
		s.mergeUsage(d)
	}
	if d.kind.n > 0 || d.status.n > 0 {
		s.mergeKind(d)
	}
	s.counted = s.counted || (d.counted && !d.usageSeen && d.text.bytes == 0)
	s.mergeFault(d)
}

func (s *summary) mergeText(t *textCount) {
	if t.bytes == 0 {
		return
	}
	before := s.text.quarters
	s.text.merge(t)
	s.after += (s.text.quarters - before) / 4
}

// mergeUsage takes a usage object: counts in it replace those before, fields
// it lacks keep theirs, and an object of zeros is none. Beside a single choice
// it counts that choice.
func (s *summary) mergeUsage(d *document) {
	u := &d.usage
	s.c.have = s.c.have&^haveAbsurd | u.have&haveAbsurd
	if !u.any() {
		return
	}
	in := sum(u.input, sum(u.besideRead, u.besideWritten))
	if u.have&haveInput != 0 && in > 0 {
		s.c.input, s.c.have, s.part = in, s.c.have|haveInput, d.choices == 1
		s.c.cached = min(max(u.cached, u.besideRead), in)
		s.c.written = min(max(u.written, u.besideWritten), in-s.c.cached)
	}
	if u.have&haveTotal != 0 {
		s.c.total, s.c.have = u.total, s.c.have|haveTotal
	}
	output := u.output
	switch {
	case d.usageStart:
		return
	case u.have&haveOutput != 0:
	case u.have&haveInput != 0 && u.have&haveTotal != 0:
		output = max(u.total-in, 0)
	default:
		return
	}
	s.c.have |= haveOutput
	s.after = 0
	if d.choices == 1 {
		s.c.output, s.c.reasoning = s.each.set(d.index, output, u.reasoning)
		return
	}
	s.each.reset()
	s.c.output, s.c.reasoning = output, min(u.reasoning, output)
}

// mergeKind takes the type of an event (Anthropic, Responses API) and the
// status of an answer (Responses API).
func (s *summary) mergeKind(d *document) {
	switch {
	case d.kind.is("message_start"), d.kind.is("response.created"), d.kind.is("response.in_progress"):
		s.needs = true
	case d.kind.is("message_stop"), d.kind.is("response.completed"):
		s.last = true
	case d.kind.is("response.incomplete"), d.status.is("incomplete"):
		s.last = true
		s.fin.end(0, reasonStop)
		if r := d.why; reasonOf(r.b[:r.n]) == reasonLength {
			s.fin.end(0, reasonLength)
		}
	case d.kind.is("response.failed"), d.kind.is("error"), d.status.is("failed"):
		d.fault.set = true
	}
}

// mergeFault takes an error; the first one stays.
func (s *summary) mergeFault(d *document) {
	f := &d.fault
	bare := d.choiceList == 0 && !d.usageSeen && d.data == 0 && d.texts == 0
	f.set = f.set || bare && (d.detail || f.number >= 400 || s.problem)
	if !f.set || s.fault.set {
		return
	}
	s.fault = *f
	if s.fault.kind.n == 0 && !d.kind.is("error") {
		s.fault.kind = d.kind
	}
}
