// Package body reads the JSON body of a request once and strictly, and makes
// every change to it by re-emitting the bytes that were read.
//
// A gateway that judges one reading of a body while the engine behind it acts
// on another can be made to bill one model and run a second one: parsers
// disagree about repeated names (first or last wins), about names that differ
// by case, and about escaped spellings such as "\u006dodel". So this package
// has one scanner (RFC 8259, with the limits of RFC 7493: I-JSON) and refuses
// what two readers could take differently:
//
//   - a name that appears twice in one object, at any depth, compared after
//     its escapes are resolved;
//   - a name that differs from a known field of the API only by case
//     (Unicode simple folding, as encoding/json folds);
//   - invalid UTF-8, lone surrogates, bytes after the object, more than
//     MaxDepth levels, more than MaxMembers names in one object;
//   - a known field of another type than the API's.
//
// Invariants: Parse never panics and keeps no copy of the prompt; errors name
// a field, its value and its bound, and never quote prompt text; Rewrite of a
// parsed body parses again to the edited values, and leaves all other bytes
// and their order as they were.
//
// Mechanisms: K1 (parameter scopes), T8 (the reservation is made from what is
// read here).
package body

import (
	"slices"
	"strconv"

	"github.com/weirproxy/weir/policy"
)

// Limits of one body. Its length is bounded by the caller (server.maxBody).
const (
	MaxDepth   = 64        // nested objects and arrays
	MaxMembers = 10_000    // names in one object
	MaxName    = 256       // bytes of a model's name
	MaxCap     = 1<<31 - 1 // largest output cap
	MaxChoices = 1024      // largest n and best_of

	MaxPriorities = 64 // objects that hold a priority to be taken out
)

// UsageAsk says what the caller wrote in stream_options.include_usage.
type UsageAsk uint8

// The cases. Declined is an explicit false: the caller must never see the
// extra usage chunk.
const (
	UsageNotSet UsageAsk = iota
	UsageAsked
	UsageDeclined
)

// Body is one parsed request. It is immutable and refers to the bytes it was
// parsed from: they must not change while it is in use. The zero value is of
// no use.
type Body struct {
	Kind   policy.Kind
	Model  string // as sent, never padded; empty only for kind JSON
	Stream bool
	Usage  UsageAsk

	PromptBytes  int64 // UTF-8 bytes of text, escapes resolved: messages, prompt, input, tools
	PromptTokens int64 // token ids in prompt or input, exact
	Media        int64 // parts that are not text: images, sounds, files

	Prompts int64 // prompts in one completions or embeddings call, at least 1
	Work          // as it came

	caps    caps
	data    []byte
	fields  []field
	inline  [12]field
	embeds  int64 // prompts given as embeddings
	head    int   // where the first field begins
	tail    int   // where a new field is inserted: after the last value
	opts    span
	optTail int // the same inside stream_options; 0 = not an object
	optAny  bool
	include span // value of stream_options.include_usage
}

// field is a top-level member: its resolved name and where its value lies.
type field struct {
	name []byte
	val  span
}

// isKnown reports whether the scanner reads the field itself.
func (f *field) isKnown() bool {
	r := roles[string(f.name)]
	return r != roleInput && slices.Contains(known[:], string(f.name))
}

// span is a range of bytes of the body; empty when there is none.
type span struct{ lo, hi int }

func (s span) none() bool { return s.hi == 0 }

// Len is the length of the body in bytes.
func (b *Body) Len() int { return len(b.data) }

// Index is about how many bytes are kept beside the body's own while it is in
// use: where its fields lie.
func (b *Body) Index() int { return fieldBytes * cap(b.fields) }

const fieldBytes = 40

// Parse reads a body of the given kind. OpenAIChat, OpenAICompletions and
// OpenAIEmbeddings are read field by field; any other kind is checked for
// strict validity, and its model and stream are read where they are a string
// and a boolean. The error, if any, has status 400.
func Parse(kind policy.Kind, data []byte) (*Body, *Error) {
	b := &Body{Kind: kind, Prompts: 1, data: data}
	b.fields = b.inline[:0]
	var names [32][]byte
	s := scanner{data: data, b: b, names: names[:0]}
	if !s.document() {
		return nil, s.err
	}
	if err := b.countSettings(); err != nil {
		return nil, err
	}
	if b.embeds > 0 {
		if b.Prompts == 1 && b.lookup("prompt").none() {
			b.Prompts = 0
		}
		b.Prompts += b.embeds
	}
	b.Work = b.WorkAfter(nil)
	if err := b.required(); err != nil {
		return nil, err
	}
	return b, nil
}

// caps are the fields that bound or multiply the output; 0 = not sent.
type caps struct {
	maxTokens, maxCompletion, n, bestOf int64

	other    int64 // the largest cap under a name that the API does not define
	open     bool  // one of those says that there is no cap
	least    int64
	toTheEnd bool  // the model does not stop before the cap
	width    int64 // the most choices under another name
	widest   string
}

// each is how many answers one prompt has.
func (c *caps) each() int64 { return max(c.n, c.bestOf, c.width, 1) }

// widestName is the field that says so.
func (c *caps) widestName() string {
	switch c.each() {
	case c.n:
		return "n"
	case c.bestOf:
		return "best_of"
	}
	return c.widest
}

// after is what the caps are after edits.
func (c caps) after(edits []Edit) caps {
	for i := range edits {
		e := &edits[i]
		if e.sub != "" || !e.cut.none() {
			continue
		}
		r := roles[e.field]
		if r == roleEOS {
			c.toTheEnd = c.toTheEnd || e.json != "false"
		}
		v, err := strconv.ParseInt(e.json, 10, 64)
		switch {
		case err != nil:
		case e.field == "max_tokens":
			c.maxTokens = v
		case e.field == "max_completion_tokens":
			c.maxCompletion = v
		case e.field == "n":
			c.n = v
		case e.field == "best_of":
			c.bestOf = v
		case r == roleCap:
			c.other = max(c.other, v)
		case r == roleMin:
			c.least = max(c.least, v)
		case r == roleChoices && v > c.width:
			c.width, c.widest = v, e.field
		}
	}
	return c
}

// Work is what a body asks of its model.
type Work struct {
	Choices int64 // answers generated: the largest of n, best_of and their other names x Prompts, at least 1
	// MaxOut is the caller's own output cap over all choices; 0 = none. There is
	// one where the API's own name of it is sent; of several names, also those
	// of other engines, it is the largest: engines differ in which they obey. A
	// cap of 0 (allowed in completions) counts as none, because some engines
	// read it so.
	MaxOut   int64
	MinOut   int64 // what the caller has the model generate at least, over all choices
	ToTheEnd bool  // the model stops at its cap, or at the caller's stop strings
}

// WorkAfter is what the body asks for after edits.
func (b *Body) WorkAfter(edits []Edit) Work {
	if b.Kind != policy.OpenAIChat && b.Kind != policy.OpenAICompletions {
		return Work{Choices: max(b.Prompts, 1)}
	}
	c := b.caps.after(edits)
	choices := mul(c.each(), max(b.Prompts, 1))
	most := max(c.maxTokens, c.maxCompletion)
	switch {
	case c.open:
		most = 0
	case most > 0:
		most = max(most, c.other)
	}
	return Work{Choices: choices, MaxOut: mul(most, choices), MinOut: mul(c.least, choices), ToTheEnd: c.toTheEnd}
}

// required refuses bodies that lack what their API cannot do without.
func (b *Body) required() *Error {
	switch b.Kind {
	case policy.OpenAIChat:
		if b.lookup("messages").none() {
			return missing("messages")
		}
	case policy.OpenAICompletions, policy.OpenAIEmbeddings:
	default:
		return nil
	}
	if b.Model == "" {
		return missing("model")
	}
	return nil
}

// lookup finds the value of a top-level field by its resolved name.
func (b *Body) lookup(name string) span {
	for i := range b.fields {
		if string(b.fields[i].name) == name {
			return b.fields[i].val
		}
	}
	return span{}
}

// mul multiplies two counts that are not negative and stops at the largest
// value instead of wrapping.
func mul(a, b int64) int64 {
	const most = 1<<63 - 1
	if a != 0 && b > most/a {
		return most
	}
	return a * b
}
