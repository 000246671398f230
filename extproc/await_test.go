package extproc

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/policy"
)

// The place of a body that is awaited comes back at each kind of end, and the
// tenant may send the next one.
func TestAwaitedIsGivenBack(t *testing.T) {
	one := func(p *policy.Policy) {
		p.Quotas = []policy.QuotaRule{{Name: "one", Match: policy.Match{Tenant: "*"}, By: []string{"tenant"}, Limits: []policy.Limit{{Unit: policy.Concurrency, Max: 1}}}}
	}
	for name, end := range map[string]func(e *envoy){
		"its body comes": func(e *envoy) {
			e.send(reqBody(chatBody, true))
			e.want("request_body")
			_ = e.hangUp(true)
		},
		"its body is refused": func(e *envoy) {
			e.send(reqBody("{", true))
			e.want("immediate")
			_ = e.hangUp(true)
		},
		"the caller leaves":       func(e *envoy) { e.cancel() },
		"the stream is closed":    func(e *envoy) { _ = e.hangUp(true) },
		"the body comes too late": func(e *envoy) { time.Sleep(2 * time.Minute); e.want("immediate"); _ = e.hangUp(true) },
		"envoy answers by itself": func(e *envoy) {
			e.send(answered("408", "stream_idle_timeout", true))
			e.want("response_headers")
			_ = e.hangUp(true)
		},
		"a message that cannot come": func(e *envoy) { e.send(chatHead()); _ = e.hangUp(true) },
		"an answer before the body":  func(e *envoy) { e.send(answered("200", via, true)); e.want("immediate"); _ = e.hangUp(true) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h, d, _ := openReal(t, rules(one))
				for range 2 {
					e := h.call()
					e.send(chatHead())
					e.want("request_headers")
					if s := d.Snapshot(time.Now()); s.Awaited != 1 || s.AwaitedBytes <= 0 {
						t.Fatalf("%d bodies of %d bytes are awaited", s.Awaited, s.AwaitedBytes)
					}
					other := h.call()
					other.send(chatHead())
					other.want("immediate")
					_ = other.hangUp(true)
					h.ended()
					end(e)
					h.ended()
					synctest.Wait()
					if s := d.Snapshot(time.Now()); s.Awaited != 0 || s.AwaitedBytes != 0 || s.Tickets != 0 {
						t.Fatalf("%d bodies of %d bytes are awaited, %d run", s.Awaited, s.AwaitedBytes, s.Tickets)
					}
				}
			})
		})
	}
}
