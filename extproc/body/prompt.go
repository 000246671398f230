package body

import (
	"fmt"
	"slices"
)

// messages reads a chat's messages. Content is a string, null, or a list of
// parts; parts other than text are counted as media, not by their length.
func (s *scanner) messages() bool {
	if s.peek() != '[' {
		return s.wrongShape("messages", "must be an array of objects")
	}
	m := s.open()
	for i := 0; s.elem(&m); i++ {
		if s.peek() != '{' {
			return s.wrongShape(fmt.Sprintf("messages[%d]", i), "must be an object")
		}
		if !s.message(i) {
			return false
		}
	}
	return s.err == nil
}

func (s *scanner) message(i int) bool {
	m := s.open()
	for name, ok := s.next(&m); ok; name, ok = s.next(&m) {
		switch string(name) {
		case "content":
			ok = s.content(i)
		case "role":
			ok = s.word()
		default: // arguments of tools are rendered like schemas
			if c := s.peek(); c == '{' || c == '[' {
				ok = s.as(modeSchema)
			} else {
				ok = s.as(modeText)
			}
		}
		if !ok {
			return false
		}
	}
	return s.err == nil
}

func (s *scanner) content(i int) bool {
	switch s.peek() {
	case '"', 'n':
		return s.as(modeText)
	case '[':
	default:
		return s.wrongShape(fmt.Sprintf("messages[%d].content", i), "must be a string or an array of parts")
	}
	m := s.open()
	for j := 0; s.elem(&m); j++ {
		switch s.peek() {
		case '"':
			if !s.as(modeText) {
				return false
			}
		case '{':
			if !s.part() {
				return false
			}
		default:
			return s.wrongShape(fmt.Sprintf("messages[%d].content[%d]", i, j), "must be an object")
		}
	}
	return s.err == nil
}

// mediaParts are the members of a part that hold what is not text.
var mediaParts = []string{
	"image_url", "input_image", "image", "image_pil", "image_embeds", "video_url", "video", "audio_url", "input_audio",
	"audio", "audio_embeds", "file",
}

// part reads one part of a message's content.
func (s *scanner) part() bool {
	m := s.open()
	for name, ok := s.next(&m); ok; name, ok = s.next(&m) {
		switch {
		case string(name) == "type":
			ok = s.word()
		case slices.Contains(mediaParts, string(name)):
			s.b.Media++
			ok = s.value()
		default:
			ok = s.as(modeText)
		}
		if !ok {
			return false
		}
	}
	return s.err == nil
}

// word reads a value that is one of a few short words; any other is text, as
// templates may take it into the prompt.
func (s *scanner) word() bool {
	before := s.b.PromptBytes
	ok := s.as(modeSchema)
	if s.b.PromptBytes-before <= maxWord {
		s.b.PromptBytes = before
	}
	return ok
}

const maxWord = 16

// prompt reads the four shapes of a prompt or an embeddings input: a string,
// an array of strings, an array of token ids, an array of arrays of them.
func (s *scanner) prompt(field string) bool {
	const must = "must be a string, an array of strings, an array of token ids or an array of such arrays"
	switch s.peek() {
	case '"', 'n':
		return s.as(modeText)
	case '[':
	default:
		return s.wrongShape(field, must)
	}
	var first byte
	count := int64(0)
	m := s.open()
	for s.elem(&m) {
		c := shape(s.peek())
		if first == 0 {
			first = c
		}
		if c == 0 || c != first {
			return s.wrongShape(fmt.Sprintf("%s[%d]", field, count), "does not fit: the whole "+must)
		}
		ok := false
		switch c {
		case '"':
			ok = s.as(modeText)
		case '[':
			ok = s.tokens(field)
		default:
			ok = s.token(field)
		}
		if !ok {
			return false
		}
		count++
	}
	if first != '0' {
		s.b.Prompts = max(s.b.Prompts, count)
	}
	return s.err == nil
}

// embeds reads prompts that are given as embeddings, one or a list: as large as
// they are, nothing of them tells their tokens.
func (s *scanner) embeds() bool {
	switch s.peek() {
	case 'n':
		return s.literal("null")
	case '[':
	default:
		s.b.embeds, s.b.Media = s.b.embeds+1, s.b.Media+1
		return s.value()
	}
	m := s.open()
	for s.elem(&m) {
		if s.b.embeds, s.b.Media = s.b.embeds+1, s.b.Media+1; !s.value() {
			return false
		}
	}
	return s.err == nil
}

// shape is what a prompt's element is by its first byte: a string, an array,
// a number ('0'), or 0 for anything else.
func shape(c byte) byte {
	switch {
	case c == '"', c == '[':
		return c
	case c == '-', c-'0' < 10:
		return '0'
	}
	return 0
}

func (s *scanner) tokens(field string) bool {
	m := s.open()
	for s.elem(&m) {
		if shape(s.peek()) != '0' {
			return s.wrongShape(field, "must hold token ids in its inner arrays")
		}
		if !s.token(field) {
			return false
		}
	}
	return s.err == nil
}

// token reads one token id.
func (s *scanner) token(field string) bool {
	lo := s.pos
	if !s.number() {
		return false
	}
	for _, c := range s.data[lo:s.pos] {
		if c-'0' > 9 {
			return s.refuse(invalid(field, "must hold token ids, whole numbers from 0, not "+cut(s.data[lo:s.pos], 24)))
		}
	}
	s.b.PromptTokens++
	return true
}
