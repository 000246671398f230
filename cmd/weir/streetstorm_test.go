package main

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/policy"
)

// TestStreetStormOnce (B7): a storm that goes on, or comes back with the traffic,
// opens a breaker once; when its probes closed it, its own ends decide until no
// storm was seen for a window. The literal form opens it again and again.
func TestStreetStormOnce(t *testing.T) {
	for _, literal := range []bool{false, true} {
		text := streetPolicy
		if literal {
			text += "envoy: {watch: {goaway: {literal: true}}}\n"
		}
		p := readPolicy(t, text)
		g := stormReadings(t, p, "g")
		synctest.Test(t, func(t *testing.T) {
			r := newReplica(t, "a", p, nil)
			defer r.end()
			r.stop() // the duties would look at the watch, which hears nobody
			r.work.Wait()
			b, opened := r.desk.Breaker("infer"), 0
			open := false
			// traffic of a hundred calls a second, with a storm while calls pass
			play := func(d time.Duration, storm bool) {
				for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
					now := time.Now()
					v := b.Allow(now, policy.Standard)
					if v.Action == breaker.Admit {
						b.Record(now, false, v.Probe)
					}
					if storm && v.State == breaker.Closed {
						r.storm(now, g)
					}
					if is := b.View(now).State == breaker.Hard; is != open {
						if open = is; open {
							opened++
						}
					}
				}
			}
			play(2*time.Minute, true)
			if !literal && opened != 1 || literal && opened < 5 {
				t.Errorf("literal %v: opened %d times in a storm of two minutes", literal, opened)
			}
			play(p.Envoy.Watch.GoAway.Window+10*time.Second, false)
			before := opened
			play(time.Second, true)
			if opened != before+1 {
				t.Errorf("literal %v: a new storm opened nothing", literal)
			}
		})
	}
}
