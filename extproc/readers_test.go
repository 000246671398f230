package extproc

import (
	"sync"
	"testing"
)

// Streams one after another are read by few goroutines, many at once by as
// many; none is left behind (TestMain looks).
func TestReadersServeAgain(t *testing.T) {
	h := open(t, newTestDesk())
	for range 50 {
		e := h.call()
		e.send(chatHead())
		if r := e.next(); r.GetRequestHeaders() == nil {
			t.Fatalf("got %v", r)
		}
		_ = e.hangUp(true)
		h.ended()
	}
	const together = maxIdle + 50
	var calls []*envoy
	for range together {
		e := h.call()
		e.send(chatHead())
		calls = append(calls, e)
	}
	for _, e := range calls {
		if r := e.next(); r.GetRequestHeaders() == nil {
			t.Fatalf("got %v", r)
		}
	}
	var ends sync.WaitGroup
	for _, e := range calls {
		ends.Go(func() { _ = e.hangUp(true) })
	}
	for range together {
		h.ended()
	}
	ends.Wait()
	settle(t, func() bool { return h.server.readers.idle.Load() == maxIdle }, "readers, but for those that wait,")
}
