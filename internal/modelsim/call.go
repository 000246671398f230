package modelsim

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// TenantHeader names the tenant for Totals; OutputHeader sets the natural
// length of one answer, in tokens, which the caller's cap may cut.
const (
	TenantHeader = "X-Weir-Tenant"
	OutputHeader = "X-Sim-Output"
)

// errCut says that a fault ended an answer.
var errCut = errors.New("answer cut on command")

// call is one request on its way through the machine. Numbers are booked
// before the bytes that tell them are sent, and taken back when sending fails.
type call struct {
	sim    *Sim
	ctx    context.Context // ends with the client or with Close
	tenant string
	fault  fault
	number uint64
	seq    *sequence
	finish string // finish_reason
	report string // form of the load report that is asked for; "" = none

	promptBooked bool
	steps        int  // steps booked as output
	ended        bool // finished or failed is booked
}

// begin books a request and finds out what is to go wrong with it.
func (s *Sim) begin(ctx context.Context, tenant string, f fault) *call {
	c := &call{sim: s, ctx: ctx, tenant: tenant, fault: f, number: s.nextID(), finish: "stop"}
	c.book(Count{Started: 1})
	return c
}

func (c *call) book(d Count) { c.sim.totals.book(c.tenant, d) }

// length is the tokens of an answer: natural is what it would have by itself
// (0 = the configured length, and then a limit is used up), limit the caller's
// cap (0 = none).
func (c *call) length(natural, limit int) int {
	if limit > 0 && (natural == 0 || limit < natural) {
		c.finish = "length"
		return limit
	}
	if natural == 0 {
		return c.sim.cfg.Output
	}
	return natural
}

// submit puts the request into the machine, unless it can never fit.
func (c *call) submit(seq *sequence) error {
	if room := c.sim.cfg.Engine.KVTokens; seq.KV() > room {
		return fmt.Errorf("this model's maximum context length is %d tokens, the request needs %d", room, seq.KV())
	}
	c.seq = seq
	c.sim.engine.submit(seq)
	return nil
}

// step waits for the next step; false = that was the last one. What a step
// yields is booked as output.
func (c *call) step() (bool, error) {
	select {
	case _, more := <-c.seq.steps:
		d := Count{}
		if !c.promptBooked {
			c.promptBooked = true
			d.Prompt = int64(c.seq.Prompt)
		}
		if more {
			c.steps++
			d.Output = int64(c.seq.Width)
		}
		c.book(d)
		return more, nil
	case <-c.ctx.Done():
		return false, context.Cause(c.ctx)
	}
}

// deliver books tokens as handed over while send runs.
func (c *call) deliver(tokens int, send func() error) error {
	c.book(Count{Delivered: int64(tokens)})
	err := send()
	if err != nil {
		c.book(Count{Delivered: -int64(tokens)})
	}
	return err
}

// end books the end (one of Finished and Failed is 1) while send runs.
func (c *call) end(d Count, send func() error) error {
	c.book(d)
	c.ended = true
	if err := send(); err != nil {
		d = Count{Finished: -d.Finished, Failed: -d.Failed, Delivered: -d.Delivered, Aborted: 1}
		c.book(d)
		return err
	}
	return nil
}

// leave takes the request out of the machine. Deferred, so it also runs when
// a handler panics to reset a stream.
func (c *call) leave() {
	d := Count{}
	if c.seq != nil {
		read, made := c.sim.engine.leave(c.seq)
		if !c.promptBooked {
			d.Prompt = int64(read)
		}
		d.Output = int64((made - c.steps) * c.seq.Width)
	}
	if !c.ended {
		d.Aborted = 1
	}
	if d != (Count{}) {
		c.book(d)
	}
}

// pause waits for a simulated delay.
func (c *call) pause(d time.Duration) error {
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-c.ctx.Done():
		return context.Cause(c.ctx)
	}
}

// half is the number of steps after which a fault in the middle strikes.
func (c *call) half() int { return c.seq.Output / 2 }

// text is the content of step i.
func (c *call) text(i int) string { return c.sim.words[i%len(c.sim.words)] + " " }

// whole is the content of one choice.
func (c *call) whole() string {
	var b strings.Builder
	for i := range c.seq.Output {
		b.WriteString(c.text(i))
	}
	return b.String()
}

// reply is the wire of one HTTP answer.
type reply struct {
	w   http.ResponseWriter
	rc  *http.ResponseController
	out io.Writer
	zip *gzip.Writer
}

// newReply prepares an answer with the headers that faults ask for.
func newReply(w http.ResponseWriter, f fault, variant string) *reply {
	p := &reply{w: w, rc: http.NewResponseController(w), out: w}
	w.Header().Set("X-Sim-Variant", variant)
	if f.goAway {
		// net/http sends GOAWAY on HTTP/2 and closes on HTTP/1.1.
		w.Header().Set("Connection", "close")
	}
	if f.gzip {
		w.Header().Set("Content-Encoding", "gzip")
		p.zip = gzip.NewWriter(w)
		p.out = p.zip
	}
	return p
}

// flush hands everything written to the network.
func (p *reply) flush() error {
	if p.zip != nil {
		if err := p.zip.Flush(); err != nil {
			return err
		}
	}
	return p.rc.Flush()
}

// event writes one SSE event.
func (p *reply) event(data []byte) error {
	if _, err := p.out.Write(append(append([]byte("data: "), data...), '\n', '\n')); err != nil {
		return err
	}
	return p.flush()
}

// close ends the body.
func (p *reply) close() error {
	if p.zip != nil {
		if err := p.zip.Close(); err != nil {
			return err
		}
	}
	return p.rc.Flush()
}

// whole writes a complete body; part < 1 cuts it short, so that the promised
// length is not met.
func (p *reply) whole(status int, body []byte, f fault) error {
	p.w.Header().Set("Content-Type", "application/json")
	if p.zip == nil && !f.noLength {
		p.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	}
	p.w.WriteHeader(status)
	if f.noLength {
		if err := p.flush(); err != nil {
			return err
		}
	}
	if f.cut {
		body = body[:len(body)/2]
	}
	if _, err := p.out.Write(body); err != nil {
		return err
	}
	if err := p.close(); err != nil {
		return err
	}
	if f.cut {
		return errCut
	}
	return nil
}

// reset ends the connection (HTTP/1.1: RST where the network has it) or the
// stream (HTTP/2: RST_STREAM). It does not return.
func (p *reply) reset() {
	if conn, _, err := p.rc.Hijack(); err == nil {
		if tcp, ok := conn.(interface{ SetLinger(int) error }); ok {
			_ = tcp.SetLinger(0) // best effort: closing follows anyway
		}
		_ = conn.Close() // the point is that it is gone
	}
	panic(http.ErrAbortHandler) //nolint:forbidigo // net/http's way to reset a stream
}
