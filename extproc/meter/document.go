package meter

import (
	"math"
	"strconv"
)

// document holds what was found in one JSON document: one event, or a whole
// answer. The zero value is an empty one.
type document struct {
	text textCount // delivered text
	all  textCount // text that repeats what came before
	// The place of the text, for shapes.
	texts            int
	textAt, textEnds int

	usage      counts // of the object, or of the array's element, being read
	batch      counts // the sum over elements read before
	other      counts // of the object before one that may say the same
	usageSeen  bool   // a usage object, not null
	usageStart bool   // it is Anthropic's first, whose output is no count
	counted    bool   // answer of a counting call

	choices, choiceList int // elements of choices, and lists of them
	data                int // embeddings
	index               int // of the choice being read
	reason              reason
	fin                 finishes
	repeats             bool // SGLang or TGI
	token               bool // an event of a TGI stream
	last                bool // the last one of it

	kind   word // type
	status word
	why    word // reason of an incomplete answer
	fault  fault
	detail bool // FastAPI's detail
	title  bool // problem details
}

// reason is why a choice ended.
type reason uint8

const (
	reasonNone reason = iota
	reasonStop
	reasonLength
	reasonError
)

func reasonOf(s []byte) reason {
	switch string(s) {
	case "":
		return reasonNone
	case "length", "max_tokens", "max_output_tokens":
		return reasonLength
	case "error", "abort":
		return reasonError
	}
	return reasonStop
}

// finishes says which choices were seen, and which of them ended and how;
// a bit each, the last one for all that are beyond.
type finishes struct{ seen, ended, length uint64 }

func (f *finishes) end(index int, r reason) {
	bit := uint64(1) << min(max(index, 0), 63)
	f.seen |= bit
	if r != reasonNone {
		f.ended |= bit
		f.length &^= bit
	}
	if r == reasonLength {
		f.length |= bit
	}
}

func (f *finishes) merge(e finishes) {
	f.seen |= e.seen
	f.ended |= e.ended
	f.length = f.length&^e.ended | e.length
}

// counts are token counts; have says which were there.
type counts struct {
	have                       uint8
	input, output, total       int64
	cached, written, reasoning int64 // parts of input and output
	besideRead, besideWritten  int64 // cache counts that input leaves out
}

const (
	haveInput = 1 << iota
	haveOutput
	haveTotal
	haveAbsurd // a number that no count can be: negative, or beyond 63 bits
)

func (c *counts) add(o *counts) {
	c.have |= o.have
	c.input = sum(c.input, o.input)
	c.output = sum(c.output, o.output)
	c.total = sum(c.total, o.total)
	c.cached = sum(c.cached, o.cached)
	c.written = sum(c.written, o.written)
	c.reasoning = sum(c.reasoning, o.reasoning)
	c.besideRead = sum(c.besideRead, o.besideRead)
	c.besideWritten = sum(c.besideWritten, o.besideWritten)
}

// any reports a count that is not zero.
func (c *counts) any() bool { return c.input|c.output|c.total|c.besideRead|c.besideWritten != 0 }

// sum adds two counts that are not negative, up to the largest value.
func sum(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// word is a short string kept by value.
type word struct {
	n uint8
	b [maxValue]byte
}

func (w *word) set(s []byte) { w.n = uint8(copy(w.b[:], s)) }

func (w *word) String() string { return string(w.b[:w.n]) }

func (w *word) is(s string) bool { return string(w.b[:w.n]) == s }

// fault is an error reported inside an answer.
type fault struct {
	set        bool
	code, kind word
	number     int // code or status as a number; 0 = none
}

// open notes the beginning of an object or array.
func (d *document) open(n node, array bool) {
	switch n {
	case nodeUsage, nodeUsageStart:
		if !array {
			d.usageSeen, d.usageStart = true, n == nodeUsageStart
			d.usage = counts{}
		}
	case nodeUsageBeside:
		if !array {
			d.usageSeen, d.other, d.usage = true, d.usage, counts{}
		}
	case nodeMeta, nodeDetails:
		if !array {
			d.usageSeen, d.repeats, d.usage = true, true, counts{}
			d.fin.end(d.index, reasonNone)
		}
	case nodeToken:
		d.token = true
	case nodeChoices:
		d.choiceList++
	case nodeChoice:
		d.index, d.reason = d.choices, reasonNone
		d.choices++
	case nodeDatum:
		d.data++
	case nodeError:
		d.fault.set = true
	case nodeDetail:
		d.detail = true
	}
}

// close notes the end of an object or array.
func (d *document) close(n node) {
	switch n {
	case nodeChoice:
		d.fin.end(d.index, d.reason)
		d.fault.set = d.fault.set || d.reason == reasonError
		d.reason = reasonNone
	case nodeUsageBeside:
		if d.other.any() {
			d.usage = d.other
		}
	case nodeItem:
		d.batch.add(&d.usage)
		d.usage = counts{}
		d.index++
	}
}

// beginText notes a string's beginning and returns the counter of its text,
// nil if it is none.
func (d *document) beginText(n node, at int) *textCount {
	t := &d.text
	switch n {
	case nodeText, nodeParts, nodeRespText:
	case nodeAllText, nodeTGIText:
		t, d.repeats = &d.all, true
		d.last = d.last || n == nodeTGIText
	default:
		return nil
	}
	t.begin()
	d.texts++
	d.textAt = at
	return t
}

// endText notes the end of a text.
func (d *document) endText(at int) { d.textEnds = at }

// str notes a string that is no text.
func (d *document) str(n node, s []byte) {
	switch n {
	case nodeFinish:
		d.reason = reasonOf(s)
	case nodeMetaFinish, nodeStop:
		r := reasonOf(s)
		d.fin.end(d.index, r)
		d.fault.set = d.fault.set || r == reasonError
	case nodeObject:
		d.fault.set = d.fault.set || string(s) == "error"
	case nodeType:
		d.kind.set(s)
	case nodeStatus:
		d.status.set(s)
	case nodeReason:
		d.why.set(s)
	case nodeError:
		d.fault.set = d.fault.set || len(s) > 0
	case nodeErrorCode, nodeCode:
		d.fault.code.set(s)
	case nodeErrorType, nodeErrorKind:
		d.fault.kind.set(s)
	case nodeDetail:
		d.detail = true
	case nodeTitle:
		d.title = true
	}
}

// word notes a number, true, false or null.
func (d *document) word(n node, s []byte) {
	v, ok := number(s)
	if !ok {
		if n >= nodeInput && n <= nodeReasoning && absurd(s) {
			d.usage.have |= haveAbsurd
		}
		return
	}
	switch n {
	case nodeInput:
		d.usage.input, d.usage.have = v, d.usage.have|haveInput
	case nodeOutput:
		d.usage.output, d.usage.have = v, d.usage.have|haveOutput
	case nodeTotal:
		d.usage.total, d.usage.have = v, d.usage.have|haveTotal
	case nodeCached:
		d.usage.cached = v
	case nodeCacheWrite:
		d.usage.written = v
	case nodeCacheRead:
		d.usage.besideRead = v
	case nodeCacheCreate:
		d.usage.besideWritten = v
	case nodeReasoning:
		d.usage.reasoning = v
	case nodeCountedInput:
		d.counted = true
	case nodeChoiceIndex:
		d.index = int(min(v, maxChoices-1))
	case nodeErrorCode, nodeCode, nodeStatus:
		d.fault.number = int(min(v, 999))
	case nodeBaseStatus:
		if v != 0 {
			d.fault.set = true
			d.fault.code.set(s)
			if callerBaseStatus(v) {
				d.fault.kind.set([]byte("invalid_request"))
			}
		}
	}
}

// number reads a count: not negative, a fraction rounded up.
func number(s []byte) (int64, bool) {
	if len(s) == 0 || s[0]-'0' > 9 {
		return 0, false
	}
	if v, err := strconv.ParseInt(string(s), 10, 64); err == nil {
		return v, v >= 0
	}
	f, err := strconv.ParseFloat(string(s), 64)
	if err != nil || !(f >= 0 && f < 1<<63) {
		return 0, false
	}
	return int64(math.Ceil(f)), true
}

// absurd reports a number that no count can be.
func absurd(s []byte) bool {
	f, _ := strconv.ParseFloat(string(s), 64) // out of range is infinite
	return f < 0 || f >= 1<<63
}

// callerBaseStatus knows the codes of MiniMax that are about the request:
// input or output refused for its content, parameters refused.
func callerBaseStatus(v int64) bool { return v == 1026 || v == 1027 || v == 2013 }

// known reports a document of one of the supported APIs: what it delivers is
// its text.
func (d *document) known() bool {
	return d.choiceList > 0 || d.texts > 0 || d.usageSeen || d.kind.n > 0 || d.data > 0 || d.repeats ||
		d.token || d.counted || d.fault.set || d.detail || d.title
}

// usageOnly reports the usage chunk of an OpenAI stream.
func (d *document) usageOnly() bool {
	return d.choiceList > 0 && d.choices == 0 && d.usageSeen && !d.fault.set && d.text.bytes == 0
}

// usageOnlySoFar reports that usageOnly may yet come true.
func (d *document) usageOnlySoFar() bool {
	return d.choices == 0 && !d.fault.set && d.text.bytes == 0
}

// plain reports an event that carries one text and nothing else of interest.
func (d *document) plain() bool {
	return d.texts == 1 && d.text.bytes > 0 && !d.usageSeen && !d.repeats && !d.fault.set &&
		d.fin.ended == 0 && d.data == 0 && !d.detail && !d.title && !d.counted
}
