package extproc

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/policy"
)

// heap is what is in use after a collection.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestAbandonedStreamsKeepNothing (ding113/claude-code-hub#1439): 5,000 answers
// that are cut in their middle leave no seat, no goroutine and no memory.
func TestAbandonedStreamsKeepNothing(t *testing.T) {
	const streams = 5000
	h, d, seen := openReal(t, rules(func(p *policy.Policy) {
		for i := range p.Pools {
			p.Pools[i].Seats = policy.Seats{Requests: streams}
		}
	}))
	coded := gzipped(t, strings.Repeat(`data: {"choices":[{"index":0,"delta":{"content":"word word word"}}]}`+"\n\n", 40))
	cutOne := func(n int) {
		e := h.begin(streamBody)
		if n%8 == 0 {
			e.answer("200", "content-type", "text/event-stream", "content-encoding", "gzip")
			e.pass(coded, false)
		} else {
			e.answer("200", "content-type", "text/event-stream")
			e.pass(`data: {"choices":[],"usage":`, false) // held back
		}
		_ = e.hangUp(n%3 == 0)
		h.ended()
	}
	cutOne(0) // what is made once is made
	goroutines, before := runtime.NumGoroutine(), heap()
	for n := range streams {
		cutOne(n)
	}
	busy(t, d, 0, 0)
	if n := seen.ended.Load(); n != streams+1 {
		t.Errorf("%d ended, want %d", n, streams+1)
	}
	settle(t, func() bool { return runtime.NumGoroutine() <= goroutines+5 }, "goroutines")
	if grown := heap() - before; grown > 64<<20 { // the client side of the test keeps some KiB a stream
		t.Errorf("%d KiB stay in use, %d bytes a stream", grown>>10, grown/streams)
	}
}

// gzipped codes a text and leaves the coding open.
func gzipped(t *testing.T, text string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := z.Flush(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// settle waits for what ends by itself.
func settle(t *testing.T, ok func() bool, what string) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(10 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("%s do not come back", what)
		}
	}
}

// TestLongAnswersKeepNothing (bytedance/deer-flow#4537): ten thousand events
// with running totals take no more memory than a hundred, and the last total
// is charged.
func TestLongAnswersKeepNothing(t *testing.T) {
	h, _, seen := openReal(t, rules())
	e := h.begin(streamBody)
	e.answer("200", "content-type", "text/event-stream")
	event := func(i int) string {
		return fmt.Sprintf(`data: {"id":"x","choices":[{"index":0,"delta":{"content":"w%d "}}],"usage":{"prompt_tokens":9,"completion_tokens":%d}}`+"\n\n", i, i)
	}
	var before int64
	for i := range 10_000 {
		if i == 100 {
			before = heap()
		}
		e.pass(event(i+1), false)
	}
	if grown := heap() - before; grown > 4<<20 {
		t.Errorf("%d KiB more after 9,900 events", grown>>10)
	}
	e.pass(done, true)
	if c := seen.charged.Load(); c != 10_009 {
		t.Errorf("charged %d, want 9 in and the last total of 10,000", c)
	}
	_ = e.hangUp(true)
	h.ended()
}

// TestRunningAnswersKeepNoBody: a body that was changed is let go of when it
// is sent, not when its answer ends.
func TestRunningAnswersKeepNoBody(t *testing.T) {
	const streams, size = 64, 1 << 20
	h := open(t, newTestDesk())
	body := `{"model":"deepseek-v4","stream":true,"messages":[{"role":"user","content":"` + strings.Repeat("x", size) + `"}]}`
	all := []*envoy{h.begin(body)}
	before := heap()
	for range streams {
		all = append(all, h.begin(body))
	}
	if grown := heap() - before; grown > streams*size/4 {
		t.Errorf("%d KiB are kept for %d answers that run", grown>>10, streams)
	}
	for _, e := range all {
		_ = e.hangUp(true)
		h.ended()
	}
	h.desk.even(t)
}

// TestNobodyWaitsForAnothersStore (envoyproxy/envoy#41090): while a thousand
// decisions wait for a store, the headers of other calls are answered.
func TestNobodyWaitsForAnothersStore(t *testing.T) {
	const streams = 1000
	d := newTestDesk()
	store := blockedDesk{Desk: d, entered: make(chan struct{}, streams), open: make(chan struct{})}
	h := open(t, d, func(o *Options) { o.Desk = store })
	h.ends = make(chan Summary, 2*streams)
	var all []*envoy
	for range streams {
		e := h.call()
		e.send(grpcHead())
		all = append(all, e)
	}
	for range streams {
		<-store.entered
	}
	for range 10 {
		e := h.call()
		e.send(chatHead())
		e.want("request_headers")
		_ = e.hangUp(true)
		h.ended()
	}
	close(store.open)
	for _, e := range all {
		e.want("request_headers")
		_ = e.hangUp(true)
		h.ended()
	}
	d.even(t)
}

// blockedDesk decides nothing until it is open.
type blockedDesk struct {
	Desk
	entered, open chan struct{}
}

func (d blockedDesk) Submit(ctx context.Context, r *admission.Request) Visit {
	d.entered <- struct{}{}
	<-d.open
	return d.Desk.Submit(ctx, r)
}
