package extproc

import (
	"bytes"
	"errors"
	"math"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// attributesOf is where Envoy puts the attributes that the filter asks for.
const attributesOf = "envoy.filters.http.ext_proc"

var errNoPhase = errors.New("extproc: message without a known phase")

// decode reads a ProcessingRequest. Nothing of data is kept. Field numbers are
// those of envoy/service/ext_proc/v3 and envoy/config/core/v3; fields that the
// conversation has no use for are skipped unread.
func decode(data []byte) (message, error) {
	var m message
	var part, metadata, attributes, config span
	c := cursor{buf: data, end: len(data)}
	for c.next() {
		switch c.tag {
		case 8<<3 | lengthed:
			c.once(&metadata)
		case 9<<3 | lengthed:
			if key, value := c.entry(); string(key.of(data)) == attributesOf {
				c.take(&attributes, value)
			}
		case 10<<3 | varint:
			m.observe = c.value != 0
		case 11<<3 | lengthed:
			c.once(&config)
		default:
			if p := phaseOf(c.tag); p != noPhase {
				m.phase = p
				c.once(&part)
			}
		}
	}
	switch {
	case c.err != nil:
		return m, c.err
	case m.phase == noPhase:
		return m, errNoPhase
	case m.phase == requestBody || m.phase == responseBody:
		return m, m.readBody(part.cursor(data))
	}
	all := string(data) // texts are cut out of one copy
	if err := m.readHeaders(part.cursor(data), all); err != nil || m.phase == requestTrailers || m.phase == responseTrailers {
		return m, err
	}
	if metadata.to > metadata.from {
		kept := all[metadata.from:metadata.to]
		m.filterData = func(ns string) (map[string]any, bool) { return filterData(kept, ns) }
	}
	if err := m.readConfig(config, data); err != nil {
		return m, err
	}
	return m, m.readAttributes(attributes.cursor(data), all)
}

// phaseOf is the oneof case that a tag stands for.
func phaseOf(tag uint64) phase {
	switch tag {
	case 2<<3 | lengthed:
		return requestHeaders
	case 3<<3 | lengthed:
		return responseHeaders
	case 4<<3 | lengthed:
		return requestBody
	case 5<<3 | lengthed:
		return responseBody
	case 6<<3 | lengthed:
		return requestTrailers
	case 7<<3 | lengthed:
		return responseTrailers
	}
	return noPhase
}

// readBody reads an HttpBody.
func (m *message) readBody(c cursor) error {
	for c.next() {
		switch c.tag {
		case 1<<3 | lengthed:
			m.body = bytes.Clone(c.content.of(c.buf))
		case 2<<3 | varint:
			m.endOfStream = c.value != 0
		}
	}
	return c.err
}

// readHeaders reads HttpHeaders or HttpTrailers.
func (m *message) readHeaders(c cursor, all string) error {
	var block span
	for c.next() {
		switch c.tag {
		case 1<<3 | lengthed:
			c.once(&block)
		case 3<<3 | varint:
			m.endOfStream = c.value != 0 && (m.phase == requestHeaders || m.phase == responseHeaders)
		}
	}
	if c.err != nil {
		return c.err
	}
	count := 0
	for c = block.cursor(c.buf); c.next(); {
		if c.tag == 1<<3|lengthed {
			count++
		}
	}
	if count > 0 {
		m.header = make(header, 0, count)
	}
	for c = block.cursor(c.buf); c.next(); {
		if c.tag != 1<<3|lengthed {
			continue
		}
		f, err := readField(c.content.cursor(c.buf), all)
		if err != nil {
			return err
		}
		m.header = append(m.header, f)
	}
	return c.err
}

// readField reads a HeaderValue: raw_value, and value where an older sender
// used that.
func readField(c cursor, all string) (field, error) {
	var f field
	var raw span
	for c.next() {
		switch c.tag {
		case 1<<3 | lengthed:
			f.name = strings.ToLower(c.text(all))
		case 2<<3 | lengthed:
			f.value = c.text(all)
		case 3<<3 | lengthed:
			raw = c.content
		}
	}
	if raw.to > raw.from {
		f.value = all[raw.from:raw.to]
	}
	return f, c.err
}

// readConfig reads the ProtocolConfiguration, if there is one.
func (m *message) readConfig(s span, data []byte) error {
	if !s.set {
		return nil
	}
	m.modes = &modes{request: modeNone, response: modeNone} // what is not written is 0
	c := s.cursor(data)
	for c.next() {
		switch c.tag {
		case 1<<3 | varint:
			m.modes.request = modeOf(c.value)
		case 2<<3 | varint:
			m.modes.response = modeOf(c.value)
		}
	}
	return c.err
}

// modeOf reads a BodySendMode.
func modeOf(v uint64) bodyMode {
	switch int32(v) {
	case 0:
		return modeNone
	case 1:
		return modeStreamed
	case 2:
		return modeBuffered
	case 3:
		return modePartial
	case 4:
		return modeDuplex
	}
	return modeUnknown
}

// readAttributes reads a Struct of scalars; a name that comes twice counts as
// it came last.
func (m *message) readAttributes(c cursor, all string) error {
	var list []field
	for c.next() {
		if c.tag != 1<<3|lengthed {
			continue
		}
		key, value := c.entry()
		v := value.cursor(c.buf)
		text := readScalar(&v, all)
		if c.err == nil {
			c.err = v.err
		}
		if list == nil {
			list = make([]field, 0, 8)
		}
		list = setField(list, key.text(all), text)
	}
	if len(list) > 0 {
		m.attribute = func(yield func(name, value string) bool) {
			for _, f := range list {
				if !yield(f.name, f.value) {
					return
				}
			}
		}
	}
	return c.err
}

func setField(list []field, name, value string) []field {
	for i := range list {
		if list[i].name == name {
			list[i].value = value
			return list
		}
	}
	return append(list, field{name, value})
}

// structure is how a list or a structure is told: no attribute that is read
// here may be one, and it must not pass for an unset one.
const structure = "(structure)"

// readScalar reads a Value as text; null has none.
func readScalar(c *cursor, all string) (text string) {
	for c.next() {
		switch c.tag {
		case 1<<3 | varint:
			text = ""
		case 5<<3 | lengthed, 6<<3 | lengthed:
			text = structure
		case 2<<3 | fixed64:
			text = formatNumber(math.Float64frombits(c.value))
		case 3<<3 | lengthed:
			text = c.text(all)
		case 4<<3 | varint:
			text = "false"
			if c.value != 0 {
				text = "true"
			}
		}
	}
	return text
}

// filterData finds a namespace in a Metadata. One that cannot be read is not
// there: what it would say is not believed.
func filterData(metadata, namespace string) (map[string]any, bool) {
	data := []byte(metadata)
	var found span
	c := cursor{buf: data, end: len(data)}
	for c.next() {
		if c.tag != 1<<3|lengthed {
			continue
		}
		if key, value := c.entry(); string(key.of(data)) == namespace {
			found = value
			found.set = true
		}
	}
	if c.err != nil || !found.set {
		return nil, false
	}
	var s structpb.Struct
	if proto.Unmarshal(found.of(data), &s) != nil {
		return nil, false
	}
	return s.AsMap(), true
}
