package extproc

import (
	"strings"
	"time"
)

// phase is the kind of a message; a reply always has the phase of the message
// that it answers.
type phase uint8

const (
	noPhase phase = iota
	requestHeaders
	requestBody
	requestTrailers
	responseHeaders
	responseBody
	responseTrailers
	numPhases
)

// String is the name of the oneof case, for errors and logs.
func (p phase) String() string {
	switch p {
	case requestHeaders:
		return "request_headers"
	case requestBody:
		return "request_body"
	case requestTrailers:
		return "request_trailers"
	case responseHeaders:
		return "response_headers"
	case responseBody:
		return "response_body"
	case responseTrailers:
		return "response_trailers"
	}
	return "unknown"
}

// bodyMode is how Envoy sends a body, after the per-route merge.
type bodyMode uint8

// The modes; modeUnknown means that Envoy did not say (older than 1.35).
const (
	modeUnknown bodyMode = iota
	modeNone
	modeStreamed
	modeBuffered
	modePartial
	modeDuplex
)

// String is the name that Envoy's configuration uses.
func (m bodyMode) String() string {
	switch m {
	case modeNone:
		return "NONE"
	case modeStreamed:
		return "STREAMED"
	case modeBuffered:
		return "BUFFERED"
	case modePartial:
		return "BUFFERED_PARTIAL"
	case modeDuplex:
		return "FULL_DUPLEX_STREAMED"
	}
	return "unknown"
}

// modes is what the first message of a stream says of the body modes.
type modes struct {
	request, response bodyMode
}

// field is one header; names are lower case.
type field struct {
	name, value string
}

// header is a header block in the order of the wire. Repeated names stay
// repeated.
type header []field

// get returns the first value of name, "" when absent.
func (h header) get(name string) string {
	for i := range h {
		if h[i].name == name {
			return h[i].value
		}
	}
	return ""
}

// has reports whether name is there at all.
func (h header) has(name string) bool {
	for i := range h {
		if h[i].name == name {
			return true
		}
	}
	return false
}

// values returns every value of name (lower case) in order.
func (h header) values(name string) []string {
	var out []string
	for i := range h {
		if h[i].name == name {
			out = append(out, h[i].value)
		}
	}
	return out
}

// message is one decoded ProcessingRequest. Only header messages carry
// attributes, metadata and modes.
type message struct {
	phase       phase
	header      header // headers or trailers
	body        []byte // owned by the receiver
	endOfStream bool
	observe     bool // observability mode: replies are ignored

	modes      *modes                                        // nil = not said
	attribute  func(yield func(name, value string) bool)     // nil = none
	filterData func(namespace string) (map[string]any, bool) // nil = none
}

// attributes walks the attributes; a message without any yields nothing.
func (m *message) attributes(yield func(name, value string) bool) {
	if m.attribute != nil {
		m.attribute(yield)
	}
}

// metadata returns the dynamic metadata of one namespace.
func (m *message) metadata(namespace string) (map[string]any, bool) {
	if m.filterData == nil {
		return nil, false
	}
	return m.filterData(namespace)
}

// reply is one ProcessingResponse to be encoded. The zero value of all but
// phase is "no change".
type reply struct {
	phase     phase
	immediate *immediate    // ends the exchange; the rest but metadata is not looked at
	timeout   time.Duration // > 0: override of the message timeout, alone in its message

	set        []field  // overwrite
	remove     []string // lower case
	clearRoute bool     // request phases only
	replace    bool     // body takes the place of the message's
	body       []byte   // with replace; empty = clear
	metadata   []namespace
}

// immediate is a local answer in place of the upstream's.
type immediate struct {
	status  int
	grpc    int // gRPC status for gRPC callers; -1 = not set
	header  []field
	body    []byte
	details string // response code details
}

// namespace is dynamic metadata to be set under one name.
type namespace struct {
	name   string
	fields []datum
}

// datum is one value of a namespace: text unless number or truth is chosen by
// kind.
type datum struct {
	name   string
	kind   datumKind
	text   string
	number float64
	truth  bool
}

type datumKind uint8

const (
	datumText datumKind = iota
	datumNumber
	datumTruth
)

func text(name, v string) datum { return datum{name: name, text: v} }

func number(name string, v float64) datum {
	return datum{name: name, kind: datumNumber, number: v}
}

func truth(name string, v bool) datum {
	return datum{name: name, kind: datumTruth, truth: v}
}

// printable makes a value safe for a header: bytes that HTTP refuses become
// '?', and the length is bounded.
func printable(s string) string {
	const longest = 1024
	if len(s) > longest {
		s = s[:longest]
	}
	bad := func(r rune) bool { return r < 0x20 || r == 0x7f }
	if strings.IndexFunc(s, bad) < 0 {
		return s
	}
	b := []byte(s)
	for i, c := range b {
		if c < 0x20 || c == 0x7f {
			b[i] = '?'
		}
	}
	return string(b)
}
