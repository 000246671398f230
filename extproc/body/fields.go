package body

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"

	"github.com/weirproxy/weir/policy"
)

// known lists the fields whose spelling by case is guarded: those read here.
// The fields of parameter scopes are guarded by CheckParams.
var known = [...]string{
	"model", "stream", "stream_options", "max_tokens", "max_completion_tokens",
	"n", "best_of", "messages", "prompt", "input", "tools", "functions",
}

const includeUsage = "include_usage"

// document reads the whole body: one object and nothing after it.
func (s *scanner) document() bool {
	if len(bytes.TrimLeft(s.data, " \t\r\n")) == 0 {
		return s.refuse(&Error{400, CodeInvalidJSON, "", "the body is empty; a JSON object is expected"})
	}
	if s.peek() != '{' {
		return s.refuse(&Error{400, CodeInvalidJSON, "", "the body is not a JSON object"})
	}
	m := s.open()
	s.b.head, s.b.tail = s.pos, s.pos
	for name, ok := s.next(&m); ok; name, ok = s.next(&m) {
		if !s.twin(name) {
			return false
		}
		s.peek()
		lo := s.pos
		if !s.field(name) {
			return false
		}
		s.b.fields = append(s.b.fields, field{name, span{lo, s.pos}})
		s.b.tail = s.pos
	}
	if s.err != nil {
		return false
	}
	if s.peek(); s.pos < len(s.data) {
		return s.unexpected("the end of the body")
	}
	return true
}

// twin refuses a name that differs from a known field only by case: a reader
// that ignores case would take one for the other.
func (s *scanner) twin(name []byte) bool {
	plain := isASCII(name)
	for _, k := range known {
		if (!plain || len(name) == len(k)) && twins(name, k) {
			return s.refuse(twinError(name, k))
		}
	}
	return true
}

// twins reports whether name is another spelling of field by case. Folding is
// Unicode's: the long s and the Kelvin sign stand for s and k.
func twins(name []byte, field string) bool {
	return string(name) != field && strings.EqualFold(string(name), field)
}

func isASCII(b []byte) bool {
	for _, c := range b {
		if c >= 0x80 {
			return false
		}
	}
	return true
}

func twinError(name []byte, field string) *Error {
	return &Error{400, CodeDuplicate, field,
		fmt.Sprintf("the name %s differs from %q only by case; spell it %q", shortName(name), field, field)}
}

// field reads the value of a top-level member by the rules of the body's API.
func (s *scanner) field(name []byte) bool {
	switch s.b.Kind {
	case policy.OpenAIChat, policy.OpenAICompletions, policy.OpenAIEmbeddings:
	default:
		return s.fieldOfAny(name)
	}
	least := int64(1)
	if s.b.Kind == policy.OpenAICompletions {
		least = 0 // scores a prompt together with echo
	}
	switch string(name) {
	case "model":
		return s.model()
	case "stream":
		return s.boolean("stream", &s.b.Stream)
	case "stream_options":
		return s.streamOptions()
	case "max_tokens":
		return s.integer("max_tokens", least, MaxCap, &s.b.caps.maxTokens)
	case "max_completion_tokens":
		return s.integer("max_completion_tokens", least, MaxCap, &s.b.caps.maxCompletion)
	case "n":
		return s.integer("n", 1, MaxChoices, &s.b.caps.n)
	case "best_of":
		return s.integer("best_of", 1, MaxChoices, &s.b.caps.bestOf)
	case "messages":
		return s.messages()
	case "prompt", "input":
		return s.prompt(string(name))
	case "content":
		if s.b.Kind == policy.OpenAIEmbeddings { // another name of input for llama.cpp
			return s.prompt("content")
		}
	case "prompt_embeds":
		return s.embeds()
	case "tools", "functions", "response_format", "documents", "chat_template_kwargs":
		return s.as(modeSchema)
	case "suffix", "instructions", "system", "chat_template":
		return s.as(modeText)
	}
	return s.value()
}

// fieldOfAny reads a member of a body of unknown shape: model and stream are
// taken if they are what they are elsewhere, nothing is refused for its type.
func (s *scanner) fieldOfAny(name []byte) bool {
	switch c := s.peek(); {
	case string(name) == "model" && c == '"':
		return s.model()
	case string(name) == "stream" && (c == 't' || c == 'f'):
		return s.boolean("stream", &s.b.Stream)
	}
	return s.as(modeText)
}

// model reads the name of the model. It is compared and forwarded as it is,
// so a padded one is refused instead of trimmed here and not there.
func (s *scanner) model() bool {
	lo := s.pos
	if s.peek() != '"' {
		return s.wrongType("model", "must be a string")
	}
	escaped, ok := s.str(false)
	if !ok {
		return false
	}
	raw := s.data[lo+1 : s.pos-1]
	if escaped {
		raw = unescape(raw)
	}
	switch {
	case len(raw) == 0:
		return s.refuse(invalid("model", "is empty"))
	case len(raw) > MaxName:
		return s.refuse(invalid("model", fmt.Sprintf("has %d bytes; at most %d", len(raw), MaxName)))
	}
	name := string(raw)
	if strings.TrimSpace(name) != name {
		return s.refuse(invalid("model", fmt.Sprintf("is padded with white space: %s", shortName(raw))))
	}
	if strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return s.refuse(invalid("model", fmt.Sprintf("has characters that do not print: %s", shortName(raw))))
	}
	s.b.Model = name
	return true
}

// wrongType refuses the value at the current position, if it is valid at all.
func (s *scanner) wrongType(field, must string) bool {
	s.peek()
	lo := s.pos
	if !s.value() {
		return false
	}
	return s.refuse(invalid(field, must+", not "+shortValue(s.data[lo:s.pos])))
}

// wrongShape is wrongType for fields that hold prompts: it tells the type of
// the value alone.
func (s *scanner) wrongShape(field, must string) bool {
	c := s.peek()
	if !s.value() {
		return false
	}
	return s.refuse(invalid(field, must+", not "+typeName(c)))
}

func (s *scanner) boolean(field string, to *bool) bool {
	switch s.peek() {
	case 't':
		*to = true
		return s.literal("true")
	case 'f':
		return s.literal("false")
	case 'n':
		return s.literal("null")
	}
	return s.wrongType(field, "must be true or false")
}

// integer reads a whole number; null is the same as no value.
func (s *scanner) integer(field string, least, most int64, to *int64) bool {
	c := s.peek()
	if c == 'n' {
		return s.literal("null")
	}
	must := fmt.Sprintf
	if c != '-' && c-'0' > 9 {
		return s.wrongType(field, must("must be a whole number from %d to %d", least, most))
	}
	lo := s.pos
	if !s.number() {
		return false
	}
	raw := s.data[lo:s.pos]
	v, whole := wholeNumber(raw)
	if !whole || v < least || v > most {
		return s.refuse(invalid(field, must("must be a whole number from %d to %d, not %s", least, most, cut(raw, 24))))
	}
	*to = v
	return true
}

// wholeNumber reads a number without a fraction; 64.0 and 1e2 are whole too.
func wholeNumber(raw []byte) (int64, bool) {
	if len(raw) < 18 {
		if v, err := strconv.ParseInt(string(raw), 10, 64); err == nil {
			return v, true
		}
	}
	f, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
		return 0, false
	}
	return int64(f), true
}

// streamOptions reads the options of a stream, of which include_usage counts.
func (s *scanner) streamOptions() bool {
	switch s.peek() {
	case 'n':
		return s.literal("null")
	case '{':
	default:
		return s.wrongType("stream_options", "must be an object")
	}
	b := s.b
	b.opts.lo = s.pos
	m := s.open()
	b.optTail = s.pos
	for name, ok := s.next(&m); ok; name, ok = s.next(&m) {
		if twins(name, includeUsage) {
			return s.refuse(twinError(name, includeUsage))
		}
		s.peek()
		lo, read := s.pos, s.value
		if string(name) == includeUsage {
			read = s.usageAsk
		}
		if !read() {
			return false
		}
		if string(name) == includeUsage {
			b.include = span{lo, s.pos}
		}
		b.optTail, b.optAny = s.pos, true
	}
	b.opts.hi = s.pos
	return s.err == nil
}

func (s *scanner) usageAsk() bool {
	c, asked := s.peek(), false
	if !s.boolean("stream_options."+includeUsage, &asked) {
		return false
	}
	switch {
	case asked:
		s.b.Usage = UsageAsked
	case c == 'f':
		s.b.Usage = UsageDeclined
	}
	return true
}
