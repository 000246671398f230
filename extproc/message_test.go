package extproc

import (
	"runtime"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weirproxy/weir/policy"
)

// TestMessagesAreBounded: a message follows server.maxBody; what is above ends
// its stream before it is held, and what is held of many large ones goes back.
func TestMessagesAreBounded(t *testing.T) {
	for _, maxBody := range []int64{1 << 10, 4 << 20, 20 << 20} {
		p := rules(func(p *policy.Policy) { p.Server.MaxBody = maxBody })
		if got, want := p.Server.MaxMessage(), max(maxBody+1<<20, 16<<20); got != want {
			t.Errorf("maxBody %d: messages of %d bytes, want %d", maxBody, got, want)
		}
		h := openWith(t, newTestDesk(), p)
		e := h.call()
		e.send(chatHead())
		e.want("request_headers")
		e.send(reqBody(strings.Repeat("x", int(p.Server.MaxMessage())), true))
		for r := range e.in {
			t.Errorf("answered: %v", r)
		}
		if status.Code(e.err) != codes.ResourceExhausted {
			t.Errorf("ended with %v", e.err)
		}
		h.ended()
		h.desk.even(t)
	}
	p := rules()
	h := openWith(t, newTestDesk(), p)
	large := reqBody(strings.Repeat("x", int(p.Server.MaxMessage())-1<<10), true)
	before := heap()
	for range 8 {
		var all []*envoy
		for range 4 {
			e := h.call()
			e.send(chatHead())
			e.want("request_headers")
			e.send(large)
			all = append(all, e)
		}
		for _, e := range all {
			if r := e.next(); r.GetImmediateResponse() == nil {
				t.Fatalf("%v", r)
			}
			_ = e.hangUp(true)
			h.ended()
		}
	}
	if grown := heap() - before; grown > 4<<20 {
		t.Errorf("%d KiB are kept of 32 messages of 16 MiB", grown>>10)
	}
	runtime.KeepAlive(large)
}
