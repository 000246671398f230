package meter

import (
	"math/bits"
	"strconv"
	"strings"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/policy"
)

// Known says how much of an answer's usage its upstream told.
type Known uint8

// The degrees of knowledge.
const (
	KnownNothing Known = iota
	KnownInput         // the output is to be estimated
	KnownTotal         // only the sum of input and output
	KnownAll
)

// End is how an answer ended.
type End uint8

// The ends. Cut is also the end of an answer that still runs.
const (
	Cut      End = iota // it stopped before its end
	Complete            // as the model wanted
	Length              // at the output cap, all choices of it
	Error               // an error was reported inside, or the status is 400 or above
)

// Facts are what an answer told so far. It is a value.
type Facts struct {
	Known      Known
	Input      int64 // whole input, cached parts included; KnownInput, KnownAll
	Output     int64 // KnownAll
	Cached     int64 // part of Input, read from a cache
	CacheWrite int64 // part of Input, written to a cache
	Reasoning  int64 // part of Output
	Total      int64 // KnownTotal, KnownAll

	End         End
	Terminal    bool   // the last event (or the whole document) was seen: only Cut is not
	ErrorCode   string // as reported: a word or a number; "" = none
	ErrorType   string // as reported; "" = none
	ErrorStatus int    // a number reported as code or status; 0 = none
	CallerFault bool   // the error is the caller's mistake, not the model's

	Delivered   bool  // some of the answer reached the caller
	TextBytes   int64 // delivered text: content, reasoning, tool calls
	TextChars   int64
	TextTokens  int64 // estimate of its tokens, at least 1 for each event with text
	Events      int64 // JSON documents read
	Bytes       int64 // of the answer as it came, still coded
	Stream      bool  // an event stream
	Unreadable  bool  // coding, content type or content that is not understood
	Implausible bool  // Output is far above the caller's cap; Usage charges the cap
	Absurd      bool  // a count that the model cannot have made: none is believed
	CountOnly   bool  // answer of a token counting call: nothing was generated

	Choices int64 // answers that were seen, up to admission.ManyChoices

	maxOut int64
	after  int64 // tokens of text since the last count of output
	silent bool  // what was read is understood and holds no text
	coded  bool  // in a coding that is not read
}

// slack is how many tokens beyond twice the cap are still plausible.
const slack = 64

// Facts may be called at any time, also after Close.
func (m *Meter) Facts() Facts {
	s := m.sum // a copy
	m.unended(&s)
	f := Facts{
		TextBytes: max(s.text.bytes, s.all.bytes), TextChars: max(s.text.chars, s.all.chars),
		TextTokens: max(s.text.tokens(), s.all.tokens()),
		Events:     s.events, Bytes: m.wire, Stream: m.form == formSSE,
		CountOnly: s.counted && s.c.have == 0,
		Choices:   int64(bits.OnesCount64(s.fin.seen)),
		maxOut:    m.o.MaxOut, after: s.after, coded: m.coded,
	}
	f.Unreadable = m.unreadable()
	f.silent = f.TextBytes == 0 && (s.fin.seen != 0 || s.needs || s.last)
	f.setCounts(&s, &m.o)
	f.setEnd(m, &s)
	switch {
	case m.o.Status >= 400:
	case f.Unreadable:
		f.Delivered = true
	default:
		f.Delivered = f.TextBytes > 0 || s.data > 0
	}
	return f
}

// unreadable reports that bytes came of which nothing can be told.
func (m *Meter) unreadable() bool {
	switch {
	case m.wire == 0:
		return false
	case m.dec != nil && m.dec.failed:
		return true
	case m.form == formOpaque:
		return !m.sum.fault.set
	case m.form == formJSON:
		return m.sum.events == 0 && m.walk.state == atFault
	}
	return m.sum.events == 0 && m.sum.faulty > 0
}

// setCounts fills in the usage.
func (f *Facts) setCounts(s *summary, o *Options) {
	c := &s.c
	if s.part && f.Stream && o.Prompts > 1 { // one prompt of several
		c.have &^= haveInput | haveTotal
		c.total = 0
	}
	f.Cached, f.CacheWrite, f.Reasoning = c.cached, c.written, c.reasoning
	switch {
	case c.have&haveInput != 0 && (c.have&haveOutput != 0 || o.Kind == policy.OpenAIEmbeddings):
		f.Known, f.Input, f.Output = KnownAll, c.input, c.output
		if f.Total = c.total; c.have&haveTotal == 0 || c.total == 0 {
			f.Total = sum(c.input, c.output)
		}
		f.Implausible = f.maxOut > 0 && c.output/2 > f.maxOut+slack/2
	case c.have&haveInput != 0:
		f.Known, f.Input = KnownInput, c.input
	case c.total > 0:
		f.Known, f.Total = KnownTotal, c.total
	case c.have&haveOutput != 0:
		f.Output = c.output // alone: a lower bound of the estimate
	}
	f.Absurd = c.absurd(o)
}

// setEnd tells how the answer ended.
func (f *Facts) setEnd(m *Meter, s *summary) {
	done := s.fin.ended != 0 && s.fin.ended == s.fin.seen
	switch {
	case m.form == formJSON:
		f.Terminal = s.events > 0
	case m.form == formSSE:
		f.Terminal = s.last || m.ended && s.events > 0 && (done || !s.needs && s.fin.seen == 0)
	default:
		f.Terminal = m.ended
	}
	switch {
	case s.fault.set || m.o.Status >= 400:
		f.End, f.Terminal = Error, true
		f.setError(&s.fault, m.o.Status)
	case !f.Terminal:
		f.End = Cut
	case done && s.fin.length == s.fin.ended:
		f.End = Length
	default:
		f.End = Complete
	}
}

// setError tells whose fault an error is: by the code or status it reports,
// by its type, by the HTTP status.
func (f *Facts) setError(e *fault, status int) {
	f.ErrorCode, f.ErrorType, f.ErrorStatus = e.code.String(), e.kind.String(), e.number
	if f.ErrorCode == "" && e.number > 0 {
		f.ErrorCode = strconv.Itoa(e.number)
	}
	if f.ErrorStatus == 0 {
		f.ErrorStatus, _ = strconv.Atoi(f.ErrorCode)
	}
	switch {
	case f.ErrorStatus >= 400 && f.ErrorStatus < 600:
		f.CallerFault = callerStatus(f.ErrorStatus)
	case status >= 400:
		f.CallerFault = callerStatus(status)
	default:
		f.CallerFault = callerWord(f.ErrorCode) || callerWord(f.ErrorType)
	}
}

// callerStatus: 4xx but for those that are about time and load.
func callerStatus(s int) bool {
	return s >= 400 && s < 500 && s != 408 && s != 425 && s != 429
}

// callerWord knows the words that the APIs use for requests they cannot take.
func callerWord(s string) bool {
	s = strings.ToLower(s)
	for _, w := range []string{"invalid_request", "invalid_prompt", "badrequest", "bad_request",
		"context_length", "content_filter", "content_policy", "validation", "not_found", "string_above_max"} {
		if strings.Contains(s, w) {
			return true
		}
	}
	return false
}

// Usage is what the desk settles by. estIn and estOut are what was reserved,
// as Ticket.Estimate tells them. The rules:
//
//   - Counts of the upstream are taken as they are, but for an implausible
//     output, which is charged at the caller's cap, or at the text where more
//     was delivered: its engine knows another name of the cap.
//   - A bare total is passed on as such.
//   - Where the output is not known, it is what was delivered: the estimate of
//     the text, or the last running total and the text after it.
//   - A stream cut before its first text has no output, nor has an answer
//     without a single byte, nor a whole one that has no text, and that is
//     known.
//   - An answer that cannot be read is charged by its bytes and at estOut at
//     least; if it was cut, at most at one token for each of its bytes, and
//     never at nothing.
//   - An error with nothing delivered and no output counted is given back, as
//     is a counting call.
//   - Counts that the model cannot have made are none.
func (f Facts) Usage(estIn, estOut int64) admission.Usage {
	u := f.usage(estIn, estOut)
	u.Cached, u.Reasoning = min(u.Cached, u.Input), min(u.Reasoning, u.Output)
	return u
}

func (f Facts) usage(estIn, estOut int64) admission.Usage {
	if f.Absurd {
		f.Known, f.Input, f.Output, f.Cached, f.Reasoning, f.silent = KnownNothing, 0, 0, 0, 0, false
	}
	u := admission.Usage{
		Input: f.Input, Output: f.Output, Cached: f.Cached, Reasoning: f.Reasoning,
		Implausible: f.Absurd, Unreadable: f.Unreadable,
	}
	if f.End == Error && !f.Delivered && f.Output == 0 && f.Known != KnownTotal {
		u.Refund = true
		return u
	}
	switch f.Known {
	case KnownAll:
		u.Known, u.InputKnown = true, true
		if f.Implausible {
			u.Output, u.Capped = max(f.maxOut, min(f.Output, f.TextTokens)), true
		}
		if f.after > 0 && (!f.Terminal || f.Output == 0) {
			u.Known, u.Output = false, max(sum(f.Output, f.after), f.TextTokens)
		}
		return u
	case KnownTotal:
		u.Total = f.Total
		u.Output = max(f.Total-max(estIn, 0), 0)
		return u
	case KnownInput:
		u.InputKnown = true
	case KnownNothing:
		u.Refund = f.CountOnly
	}
	if u.Refund {
		return u
	}
	u.Output = max(f.Output, f.delivered(estOut))
	u.Known = u.Output == 0 && !f.Absurd && (f.Bytes == 0 || f.Stream && f.End == Cut || f.Terminal && f.silent)
	return u
}

// delivered estimates the output from what was delivered.
func (f *Facts) delivered(estOut int64) int64 {
	if !f.Unreadable {
		return f.TextTokens
	}
	byBytes := (f.Bytes - DefaultMaxEvent) / 8 // of an event, most is not text
	if f.coded {
		byBytes = f.Bytes / 4
	}
	n := max(estOut, byBytes)
	if f.End == Cut {
		n = min(n, f.Bytes)
	}
	return max(n, f.TextTokens, 1)
}
