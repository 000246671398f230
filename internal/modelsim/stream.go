package modelsim

import (
	"errors"
	"net/http"
)

// errReset says that a fault wants the stream reset.
var errReset = errors.New("reset on command")

// stream answers by server-sent events: a chunk per step and choice, the
// finish chunk, the usage chunk (only when asked for), [DONE].
func (c *call) stream(p *reply, q *request, a api) error {
	p.w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	p.w.Header().Set("Cache-Control", "no-cache")
	p.w.WriteHeader(http.StatusOK)
	if err := p.flush(); err != nil {
		return err
	}
	asked := streamOptions{}
	if q.Options != nil && !c.fault.noUsage {
		asked = *q.Options
	}
	for i := 0; ; i++ {
		more, err := c.step()
		if err != nil {
			return err
		}
		if !more {
			break
		}
		if err := c.midway(p, i); err != nil {
			return err
		}
		if c.ended {
			return nil
		}
		if err := c.pause(c.fault.slow); err != nil {
			return err
		}
		for choice := range c.seq.Width {
			chunk := c.encodeChunk(q, a, i, choice, asked)
			if err := c.deliver(1, func() error { return p.event(chunk) }); err != nil {
				return err
			}
		}
	}
	return c.endStream(p, q, a, asked)
}

// midway strikes with the faults that hit an answer after half of its steps.
func (c *call) midway(p *reply, i int) error {
	if i != c.half() {
		return nil
	}
	switch {
	case c.fault.inStream:
		return c.end(Count{Failed: 1}, func() error {
			if err := p.event(errorBody(http.StatusInternalServerError, "failed on command")); err != nil {
				return err
			}
			if err := p.event([]byte("[DONE]")); err != nil {
				return err
			}
			return p.close()
		})
	case c.fault.cut:
		return errors.Join(p.close(), errCut)
	case c.fault.resetMid:
		return errReset
	}
	return nil
}

// encodeChunk is the chunk of step i for one choice.
func (c *call) encodeChunk(q *request, a api, i, index int, asked streamOptions) []byte {
	body := c.head(q, a, a.chunk)
	text := c.text(i)
	ch := choice{Index: index}
	if a.chat {
		ch.Delta = &delta{Content: &text}
		if i == 0 {
			ch.Delta.Role = "assistant"
		}
	} else {
		ch.Text = &text
	}
	body.Choices = append(body.Choices, ch)
	switch {
	case asked.Continuous:
		body.Usage = c.usage(i + 1)
	case asked.IncludeUsage:
		body.Usage = []byte("null")
	}
	return encode(body)
}

// endStream writes what follows the last token.
func (c *call) endStream(p *reply, q *request, a api, asked streamOptions) error {
	body := c.head(q, a, a.chunk)
	for i := range c.seq.Width {
		ch := choice{Index: i, Finish: &c.finish}
		if a.chat {
			ch.Delta = &delta{}
		} else {
			ch.Text = new(string)
		}
		body.Choices = append(body.Choices, ch)
	}
	if asked.IncludeUsage {
		body.Usage = []byte("null")
	}
	if err := p.event(encode(body)); err != nil {
		return err
	}
	return c.end(Count{Finished: 1}, func() error {
		if asked.IncludeUsage {
			last := c.head(q, a, a.chunk)
			last.Usage = c.usage(c.seq.Output)
			if err := p.event(encode(last)); err != nil {
				return err
			}
		}
		if err := p.event([]byte("[DONE]")); err != nil {
			return err
		}
		return p.close()
	})
}
