package extproc

import (
	"math"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// encode writes a ProcessingResponse: raw_value only, append unset (which is
// overwrite in every release), one oneof case always set. Field numbers are
// those of envoy/service/ext_proc/v3 and envoy/config/core/v3.
func encode(r *reply) outbound {
	if r.plain() {
		return unchanged[r.phase]
	}
	return build(r)
}

// plain reports a reply that changes nothing.
func (r *reply) plain() bool {
	return r.immediate == nil && r.timeout == 0 && !r.clearRoute && !r.replace &&
		len(r.set) == 0 && len(r.remove) == 0 && len(r.metadata) == 0
}

// unchanged are the replies that change nothing, by phase. They are shared by
// all streams and never written to.
var unchanged = func() (list [numPhases]outbound) {
	for p := requestHeaders; p < numPhases; p++ {
		list[p] = build(&reply{phase: p})
	}
	return list
}()

func build(r *reply) outbound {
	w := newWriter(sizeHint(r))
	switch {
	case r.timeout > 0:
		// A message of its own: Envoy ignores every other field beside an
		// override.
		end := w.size()
		w.number(2, uint64(r.timeout%time.Second))
		w.number(1, uint64(r.timeout/time.Second))
		w.message(10, end)
		return w.done()
	case len(r.metadata) > 0:
		w.metadata(r.metadata)
	}
	end := w.size()
	if r.immediate != nil {
		w.immediate(r.immediate)
		w.message(7, end)
		return w.done()
	}
	switch r.phase {
	case requestTrailers, responseTrailers:
		w.mutation(1, r.set, r.remove)
	default:
		w.common(r)
		w.message(1, end)
	}
	w.message(replyField[r.phase], end)
	return w.done()
}

// replyField are the numbers of the oneof cases.
var replyField = [numPhases]protowire.Number{
	requestHeaders: 1, responseHeaders: 2, requestBody: 3, responseBody: 4, requestTrailers: 5, responseTrailers: 6,
}

// common writes the content of a CommonResponse.
func (w *writer) common(r *reply) {
	if r.clearRoute {
		w.number(5, 1)
	}
	if r.replace {
		end := w.size()
		if len(r.body) == 0 {
			w.number(2, 1) // clear_body
		} else {
			w.bytes(1, r.body)
		}
		w.message(3, end)
	}
	w.mutation(2, r.set, r.remove)
}

// immediate writes the content of an ImmediateResponse.
func (w *writer) immediate(im *immediate) {
	w.text(5, im.details)
	if im.grpc >= 0 {
		end := w.size()
		w.number(1, uint64(im.grpc))
		w.message(4, end)
	}
	w.bytes(3, im.body)
	w.mutation(2, im.header, nil)
	end := w.size()
	w.number(1, uint64(im.status))
	w.message(1, end)
}

// mutation writes a HeaderMutation, none where nothing changes.
func (w *writer) mutation(num protowire.Number, set []field, remove []string) {
	if len(set) == 0 && len(remove) == 0 {
		return
	}
	end := w.size()
	for i := len(remove) - 1; i >= 0; i-- {
		name := w.size()
		w.raw(remove[i])
		w.message(2, name)
	}
	for i := len(set) - 1; i >= 0; i-- {
		option := w.size()
		w.text(3, printable(set[i].value))
		w.text(1, set[i].name)
		w.message(1, option) // HeaderValueOption.header
		w.message(1, option) // HeaderMutation.set_headers
	}
	w.message(num, end)
}

// metadata writes dynamic_metadata: a Struct of a Struct for each namespace.
func (w *writer) metadata(list []namespace) {
	end := w.size()
	for i := len(list) - 1; i >= 0; i-- {
		entry := w.size()
		for j := len(list[i].fields) - 1; j >= 0; j-- {
			w.datum(&list[i].fields[j])
		}
		w.message(5, entry) // Value.struct_value
		w.message(2, entry)
		w.text(1, list[i].name)
		w.message(1, entry)
	}
	w.message(8, end)
}

// datum writes an entry of a Struct.
func (w *writer) datum(d *datum) {
	entry := w.size()
	switch d.kind {
	case datumNumber:
		w.double(2, d.number)
	case datumTruth:
		w.varint(protowire.EncodeBool(d.truth))
		w.tag(4, protowire.VarintType)
	default:
		text := w.size()
		w.raw(strings.ToValidUTF8(d.text, "?"))
		w.message(3, text)
	}
	w.message(2, entry)
	w.text(1, d.name)
	w.message(1, entry)
}

// sizeHint is about what a reply takes.
func sizeHint(r *reply) int {
	n := 64 + 40*len(r.remove) + len(r.body)
	for i := range r.set {
		n += 12 + len(r.set[i].name) + len(r.set[i].value)
	}
	for i := range r.metadata {
		n += 32 + 48*len(r.metadata[i].fields)
	}
	if im := r.immediate; im != nil {
		n += 64*len(im.header) + len(im.body) + len(im.details)
	}
	return n
}

// writer writes protobuf from its end to its beginning: when a message's
// length is due, its content stands already. What comes last on the wire is
// written first.
type writer struct {
	buf []byte
	at  int // what is written is buf[at:]
}

func newWriter(size int) writer { return writer{buf: make([]byte, size), at: size} }

// size is how much is written; taken before a message's content, it is the
// mark for its end.
func (w *writer) size() int { return len(w.buf) - w.at }

func (w *writer) done() outbound { return outbound(w.buf[w.at:]) }

// room makes place for n bytes in front.
func (w *writer) room(n int) []byte {
	if w.at < n {
		grown := make([]byte, 2*len(w.buf)+n)
		at := len(grown) - w.size()
		copy(grown[at:], w.buf[w.at:])
		w.buf, w.at = grown, at
	}
	w.at -= n
	return w.buf[w.at : w.at+n]
}

func (w *writer) raw(s string) { copy(w.room(len(s)), s) }

func (w *writer) varint(v uint64) {
	b := w.room(protowire.SizeVarint(v))
	protowire.AppendVarint(b[:0], v)
}

func (w *writer) tag(num protowire.Number, typ protowire.Type) {
	w.varint(protowire.EncodeTag(num, typ))
}

// message puts the length and the tag before what was written since the mark.
func (w *writer) message(num protowire.Number, end int) {
	w.varint(uint64(w.size() - end))
	w.tag(num, protowire.BytesType)
}

// text, bytes and number write fields; as in proto3, zero values are left out.
func (w *writer) text(num protowire.Number, s string) {
	if s != "" {
		end := w.size()
		w.raw(s)
		w.message(num, end)
	}
}

func (w *writer) bytes(num protowire.Number, b []byte) {
	if len(b) > 0 {
		end := w.size()
		copy(w.room(len(b)), b)
		w.message(num, end)
	}
}

func (w *writer) number(num protowire.Number, v uint64) {
	if v != 0 {
		w.varint(v)
		w.tag(num, protowire.VarintType)
	}
}

// double is written also when it is 0: it is a case of a oneof.
func (w *writer) double(num protowire.Number, v float64) {
	protowire.AppendFixed64(w.room(8)[:0], math.Float64bits(v))
	w.tag(num, protowire.Fixed64Type)
}
