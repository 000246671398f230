package queue

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

// What went wrong for others who keep a line: each report by name, with the
// right outcome here. One more, inference-extension#1861, is
// TestSaturationForAMinute.
func TestFieldReports(t *testing.T) {
	t.Run("thomhurst/AsyncSemaphore#566", func(t *testing.T) { // cancelled waiters stay until a slot frees
		l, held := full(t, standardConfig(1, 0))
		for _, w := range crowded(t, l, 10_000) {
			l.Cancel(at(ms), w)
		}
		if s := l.Stats(at(ms)); s.Waiting != [3]int{} || s.HeldBytes != 0 {
			t.Fatalf("ghosts: %+v", s)
		}
		w := waiter(policy.Critical, "p0")
		mustWait(t, l, at(ms), w, wide)
		if ws := granted(l.Release(at(2*ms), held[0])); len(ws) != 1 || ws[0] != w {
			t.Fatalf("next is %v", ws)
		}
	})
	t.Run("nozzlegear/ShopifySharp#1055", func(t *testing.T) { // calls whose callers left are worked through
		l, held := full(t, standardConfig(1, 0))
		for _, w := range crowded(t, l, 1000) {
			if _, ok := l.Cancel(at(5*time.Second), w); !ok {
				t.Fatal("cancel refused")
			}
		}
		if ws := granted(l.Release(at(6*time.Second), held[0])); len(ws) != 0 {
			t.Fatalf("%d dead ones are served", len(ws))
		}
	})
	t.Run("kubernetes-sigs/gateway-api-inference-extension#1982", func(t *testing.T) { // a tenant's queue is cleaned up with a call in it
		l, held := full(t, standardConfig(1, 0))
		lone := long(waiter(policy.Batch, "lone"))
		mustWait(t, l, at(0), lone, endless)
		running := held[0]
		for i := range 3000 { // others come, go and are forgotten
			now := at(time.Duration(i) * time.Second)
			w := long(waiter(policy.Critical, fmt.Sprint("t", i)))
			w.Colour = policy.Red
			mustWait(t, l, now, w, endless)
			running = granted(l.Release(now, running))[0]
			l.Settle(running, 1000)
		}
		if ws := granted(l.Release(at(3000*time.Second), running)); len(ws) != 1 || ws[0] != lone {
			t.Fatalf("served %v", ws)
		}
	})
	t.Run("kubernetes-sigs/gateway-api-inference-extension#2034", func(t *testing.T) { // entries stay when the end is missed
		l := New(standardConfig(10_000, 0), nil)
		ws := bring(t, l, 10_000, func() *Waiter { return of(0) })
		for _, w := range ws { // the desk ends those that hold too long
			l.Release(at(10*time.Minute), w)
		}
		if s := l.Stats(at(10 * time.Minute)); s.SeatsUsed != (policy.Seats{}) || s.Running != [3]int{} || s.Tenants != 0 {
			t.Fatalf("left behind: %+v", s)
		}
	})
	t.Run("inference-sim/inference-sim#890", func(t *testing.T) { // one tenant floods its class
		l, held := full(t, standardConfig(1, 0))
		for range 1000 {
			mustWait(t, l, at(0), long(waiter(policy.Standard, "a")), endless)
		}
		mustWait(t, l, at(0), long(waiter(policy.Standard, "b")), endless)
		if got, _ := serve(t, l, held[0], 2, tenantName); got["b"] != 1 {
			t.Fatalf("two rounds: %v", got)
		}
	})
	t.Run("inference-sim/inference-sim#1318", func(t *testing.T) { // no expiry, and it frees no place
		l, _ := full(t, standardConfig(1, 0))
		b := Bounds{Length: 3}
		for c := range policy.Class(3) {
			mustWait(t, l, at(0), waiter(c, "a"), b)
		}
		for c, wait := range standardConfig(1, 0).MaxWaits {
			again := waiter(policy.Class(c), "b")
			mustRefuse(t, l, at(wait-1), again, b, Full)
			if exits := l.Advance(at(wait)); len(exits) != 1 || exits[0].Waiter.Class != policy.Class(c) || exits[0].Waited != wait {
				t.Fatalf("%v: %+v", policy.Class(c), exits)
			}
			again.MaxWait = time.Hour
			mustWait(t, l, at(wait), again, b) // the place is used at once
		}
	})
	t.Run("llm-d/llm-d-batch-gateway#311", func(t *testing.T) { // full and too late look alike
		l, _ := full(t, standardConfig(1, 0))
		b := Bounds{Length: 1}
		mustWait(t, l, at(0), waiter(policy.Critical, "a"), b)
		if o := mustRefuse(t, l, at(0), waiter(policy.Critical, "a"), b, Full); o.Hint <= 0 {
			t.Fatalf("full: %+v", o)
		}
		if x := l.Advance(at(200 * ms)); len(x) != 1 || x[0].Granted || x[0].Action != policy.ExpireDrop || x[0].Hint <= 0 {
			t.Fatalf("late: %+v", x)
		}
	})
}

// crowded lets n wait, of all classes and many tenants.
func crowded(t *testing.T, l *Line, n int) (ws []*Waiter) {
	t.Helper()
	for i := range n {
		w := long(waiter(policy.Class(i%3), fmt.Sprint("t", i%97)))
		w.Bytes = 10
		mustWait(t, l, at(0), w, endless)
		ws = append(ws, w)
	}
	return ws
}
