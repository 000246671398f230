package extproc

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/policy"
)

// A request that waits when a reload renames its pool goes on to a pool that
// the policy it came with does not know: as that pool's own policy says.
func TestHeldRequestGoesToAPoolOfTheNewPolicy(t *testing.T) {
	renamed := func(p *policy.Policy) {
		p.Pools[1].Name, p.Pools[1].Subset = "renamed", map[string]string{"variant": "fp16-dyn"}
		for i := range p.Models {
			for j, name := range p.Models[i].Pools {
				if name == "chat-dyn" {
					p.Models[i].Pools[j] = "renamed"
				}
			}
		}
	}
	synctest.Test(t, func(t *testing.T) {
		var now atomic.Pointer[policy.Policy]
		now.Store(rules())
		d := newTestDesk(verdict{wait: true, edit: func(d *admission.Decision) { d.Pool = "renamed" }})
		h := openWith(t, d, rules(), func(o *Options) { o.Policy = now.Load })
		e := h.call()
		body := `{"model":"deepseek-v4","stream":true,"messages":[{"role":"user","content":"hello"}]}`
		e.send(chatHead())
		e.want("request_headers")
		e.send(reqBody(body, true))
		e.want("override")
		now.Store(rules(renamed))
		d.last().settle(admission.Admitted)
		r := e.decided()
		if set, _ := mutations(r); set[headerPool] != "renamed" {
			t.Errorf("pool %q", set[headerPool])
		}
		lb := r.GetDynamicMetadata().GetFields()["envoy.lb"].GetStructValue().GetFields()
		if lb["variant"].GetStringValue() != "fp16-dyn" || common(r).GetClearRouteCache() {
			t.Errorf("envoy.lb %v, route cleared: %v; want the subset, and the route as it is", lb, common(r).GetClearRouteCache())
		}
		if got := string(common(r).GetBodyMutation().GetBody()); !strings.Contains(got, "include_usage") {
			t.Errorf("body %s", got)
		}
		_ = e.hangUp(true)
		h.ended()
		d.even(t)
	})
}
