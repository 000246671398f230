package examples_test

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"time"
)

// load is a bounded closed loop of callers through Envoy.
type load struct {
	mu     sync.Mutex
	byCode map[int]int
	cut    int // answers that broke off, or connections that failed
	hung   int // calls that took longer than any promise
	stop   context.CancelFunc
	wg     sync.WaitGroup
}

// longest is more than any wait that the policies of these tests promise.
const longest = 20 * time.Second

// load starts n callers that each send one call after the other until stop,
// which waits for the calls under way.
func (w *world) load(t *testing.T, n int, call func(caller int) answer) *load {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	l := &load{byCode: map[int]int{}, stop: stop}
	for i := range n {
		l.wg.Go(func() {
			for ctx.Err() == nil {
				l.note(call(i))
			}
		})
	}
	t.Cleanup(l.end)
	return l
}

func (l *load) note(a answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a.took > longest {
		l.hung++
	}
	if a.err != nil {
		l.cut++
		return
	}
	l.byCode[a.code]++
}

// end stops the callers and waits for them. Safe to call again.
func (l *load) end() { l.stop(); l.wg.Wait() }

// count is how many answers of a status came so far; 0 counts what broke.
func (l *load) count(code int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if code == 0 {
		return l.cut
	}
	return l.byCode[code]
}

// only fails the test for any status but these.
func (l *load) only(t *testing.T, codes ...int) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.hung > 0 {
		t.Errorf("%d calls took longer than %v", l.hung, longest)
	}
	for code, n := range l.byCode {
		ok := false
		for _, c := range codes {
			ok = ok || c == code
		}
		if !ok {
			t.Errorf("%d answers of %d %s", n, code, http.StatusText(code))
		}
	}
}
