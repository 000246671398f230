package admission

import (
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/weirproxy/weir/policy"
)

// Notify is heard once, whether the decision stands already or comes, and not
// after Leave.
func TestNotify(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := house(1)
		d, e := newTestDesk(t, p), effective(t, p)
		var heard atomic.Int64
		notify := func(v *Visit) { v.Notify(func() { heard.Add(1) }) }
		check := func(when string, want int64) {
			t.Helper()
			if synctest.Wait(); heard.Load() != want {
				t.Errorf("%s: heard %d times, want %d", when, heard.Load(), want)
			}
		}
		at := func(id string) *Visit { return d.Submit(t.Context(), ask(e, id, "acme", policy.Critical)) }
		first := at("first")
		notify(first)
		check("admitted at once", 1)
		ticket, _ := first.Result()
		left, next := at("left"), at("next")
		notify(left)
		notify(next)
		left.Leave()
		check("both wait", 1)
		ticket.Done(fine(1, 1))
		check("granted", 2)
		ticket, _ = next.Result()
		ticket.Done(fine(1, 1))
		check("over", 2)
		quiet(t, d)
	})
}
