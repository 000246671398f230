package main

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/envoy/watch"
	"github.com/weirproxy/weir/identity"
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

// lossReadings are those of an Envoy after each of some seconds, in which it
// counts so many calls as reset.
func lossReadings(p *policy.Policy, cluster string, resets ...int64) (out []*watch.Readings) {
	now := time.Now()
	core := watch.NewCore(p.Envoy.Watch, []string{cluster}, now)
	row := watch.Counters{Node: "e", Cluster: cluster, ActiveConnections: 20, Connections: 20}
	for _, n := range append([]int64{0}, resets...) {
		now = now.Add(time.Second)
		row.At, row.Requests, row.Resets = now, row.Requests+100, row.Resets+n
		core.Observe(now, []watch.Counters{row})
		r, _ := core.Step(now)
		out = append(out, r)
	}
	return out
}

// TestStreetLosses (B6): calls that Envoy counts as broken become failures of the
// pools of their cluster, once; an end may be known a little later than its
// count, and what is of no end of this weir's is forgotten.
func TestStreetLosses(t *testing.T) {
	p := readPolicy(t, streetPolicy)
	readings := lossReadings(p, "c", 5, 5, 0, 0)
	synctest.Test(t, func(t *testing.T) {
		r := newReplica(t, "a", p, nil)
		defer r.end()
		r.stop() // the duties would look at the watch, which hears nobody
		r.work.Wait()
		e, err := p.For(policy.Overrides{})
		if err != nil {
			t.Fatal(err)
		}
		cut := func(n int) {
			for i := range n {
				ticket, d := r.desk.Admit(t.Context(), &admission.Request{
					ID: fmt.Sprint(time.Now().UnixNano(), " ", i), Identity: &identity.Identity{Tenant: "acme"}, Policy: e,
					API: &policy.API{Kind: policy.OpenAIChat}, Model: "m", Class: policy.Critical, Prompt: 40, MaxOut: 10,
				})
				if ticket == nil {
					t.Fatal(d.Reason)
				}
				ticket.Done(admission.End{Result: admission.ResultUnknown, GRPC: -1})
			}
		}
		want := func(when string, failed int) {
			t.Helper()
			all := 0
			for _, b := range r.desk.Breakers(time.Now()) {
				all += b.View.Failures
			}
			if all != failed {
				t.Errorf("%s: %d failures, want %d", when, all, failed)
			}
		}
		cut(3)
		r.losses(time.Now(), readings[0])
		want("nothing counted yet", 0)
		r.losses(time.Now(), readings[1])
		want("five of three", 3)
		time.Sleep(200 * time.Millisecond)
		cut(1)
		r.losses(time.Now(), readings[1])
		want("an end that came behind its count", 4)
		for range 10 {
			time.Sleep(200 * time.Millisecond)
			r.losses(time.Now(), readings[1])
		}
		cut(10) // callers who left
		r.losses(time.Now(), readings[1])
		want("callers left later", 4)
		r.losses(time.Now(), readings[2])
		want("five more", 9)
		r.losses(time.Now(), readings[3])
		r.losses(time.Now(), readings[4])
		want("no more", 9)
		r.losses(time.Now(), new(watch.Readings))
		r.losses(time.Now(), readings[0])
		want("the cluster was forgotten and is counted anew", 9)
	})
}
