package extproc

import (
	"testing"
	"testing/synctest"
	"time"
)

// Q9: a stream begins with the first piece of its body, since engines send its
// headers before they have a place for it; another answer begins with its
// headers; an error is no answer of the model.
func TestWhenAnAnswerBegins(t *testing.T) {
	sse, json := []string{"content-type", "text/event-stream"}, []string{"content-type", "application/json"}
	for _, c := range []struct {
		name, body, status string
		header             []string
		first              time.Duration // since the headers; negative = never
		total              time.Duration // of End.FirstByte
	}{
		{"stream", streamBody, "200", sse, 3 * time.Second, 5 * time.Second},
		{"whole", chatBody, "200", json, 0, 2 * time.Second},
		{"stream, error", streamBody, "503", json, -1, 5 * time.Second},
		{"whole, error", chatBody, "503", json, -1, 2 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			desk := newTestDesk()
			h := open(t, desk)
			e := h.begin(c.body)
			time.Sleep(2 * time.Second)
			headers := time.Now()
			e.answer(c.status, c.header...)
			time.Sleep(time.Second)
			e.pass("", false)
			time.Sleep(2 * time.Second)
			e.pass("data: {}\n\n", false)
			time.Sleep(time.Second)
			e.pass(done, true)
			_ = e.hangUp(true)
			began := desk.last().began
			switch {
			case c.first < 0 && len(began) > 0:
				t.Errorf("%s: began at %v, want never", c.name, began[0].Sub(headers))
			case c.first >= 0 && (len(began) != 1 || began[0].Sub(headers) != c.first):
				t.Errorf("%s: began at %v, want once, %v after the headers", c.name, began, c.first)
			}
			if end := desk.ends[0]; end.FirstByte != c.total {
				t.Errorf("%s: first byte after %v, want %v", c.name, end.FirstByte, c.total)
			}
		})
	}
}
