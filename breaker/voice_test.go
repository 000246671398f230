package breaker

import (
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

// A replica speaks when something changed, and to renew.
func TestVoice(t *testing.T) {
	v := NewVoice("a", at(0), policy.Cascade{TTL: 15 * sec, Renew: 5 * sec})
	view := View{Name: "p", State: Closed}
	var last uint64
	step := func(now time.Duration, contested, want bool) Opinion {
		t.Helper()
		o, ok := v.Say(at(now), view, contested)
		if ok != want {
			t.Fatalf("at %v, %+v: says %v, want %v", now, view, ok, want)
		}
		if ok {
			if err := o.Check(); err != nil || o.Seq <= last || o.Replica != "a" || o.TTL != 15*sec || o.State != view.State {
				t.Fatalf("%v: %+v after seq %d", err, o, last)
			}
			last = o.Seq
		}
		return o
	}
	step(0, false, true)
	step(0, false, false)
	step(5*sec-1, false, false)
	step(5*sec, false, true)
	view.State, view.Level = Soft, Soft
	step(5*sec+1, false, true) // at once
	view.State, view.Level = Hard, Hard
	o := step(5*sec+2, false, true)
	step(6*sec, false, false)
	v.Unsaid(o)
	step(6*sec, false, true)
	view.State = HalfOpen
	step(7*sec, false, true)
	step(6*sec, false, true) // the clock went back: speak rather than be silent

	view = View{Name: "p", Kind: Tenant} // a tenant of that name
	step(20*sec, false, false)
	step(20*sec, true, true) // others say it is open
	step(21*sec, true, false)
	step(25*sec, true, true)
	step(30*sec, false, false)
	step(60*sec, false, false)
	view.State, view.Level = Hard, Hard
	step(61*sec, false, true)
	step(66*sec, false, true)
	view.State, view.Level = Closed, Closed
	o = step(67*sec, false, true)
	step(72*sec, false, false)
	v.Unsaid(o) // its last word was lost
	step(73*sec, false, true)
	step(79*sec, false, false)

	later := NewVoice("a", at(80*sec), policy.Cascade{}) // its next life
	if o, ok := later.Say(at(80*sec), View{Name: "p"}, false); !ok || o.Seq <= last || o.TTL != 15*sec {
		t.Fatalf("%+v after seq %d", o, last)
	}
	odd := NewVoice("a", time.Unix(-5, 0), policy.Cascade{TTL: 1000 * time.Hour})
	if o, ok := odd.Say(at(0), View{Name: "p"}, false); !ok || o.Check() != nil {
		t.Fatalf("a clock before 1970, a TTL without end: %+v", o)
	}
}

// replica is a breaker with a voice and an ear.
type replica struct {
	name    string
	breaker *Breaker
	voice   *Voice
	council *Council
	cut     bool
}

func replicas(names ...string) []*replica {
	p := defaults()
	p.Cascade = policy.Cascade{TTL: 15 * sec, Renew: 5 * sec}
	var out []*replica
	for i, n := range names {
		out = append(out, &replica{n, newHTTP(p, dice(uint64(i))), NewVoice(n, at(0), p.Cascade), NewCouncil(n, p), false})
	}
	return out
}

// second plays one second of 100 requests at each replica, 30 of them batch;
// failing says who is cut off from the pool. It gives what each one refused.
func second(all []*replica, now time.Duration, failing func(string) bool) (refused map[string]int) {
	refused = map[string]int{}
	for _, r := range all {
		for i := range 100 {
			class := policy.Standard
			if i%10 < 3 {
				class = policy.Batch
			}
			v := r.breaker.Allow(at(now), class)
			ruling := r.council.Ruling(at(now), "pool", HTTP)
			if v.Action == Shed || ruling.Sheds(class, v.State) {
				refused[r.name]++
				if v.Probe {
					r.breaker.Forget(at(now))
				}
				continue
			}
			r.breaker.Record(at(now), failing(r.name), v.Probe)
		}
	}
	for _, r := range all {
		view := r.breaker.View(at(now))
		if o, ok := r.voice.Say(at(now), view, false); ok && !r.cut {
			for _, other := range all {
				other.council.Hear(at(now), o)
			}
		}
	}
	return refused
}

// B3, a report from the field: one of three replicas is cut off from the
// upstream; the other two keep serving everybody.
func TestCutOffReplicaHarmsItselfAlone(t *testing.T) {
	all := replicas("a", "b", "c")
	for s := range 60 {
		refused := second(all, time.Duration(s)*sec, func(n string) bool { return n == "b" && s > 2 })
		if refused["a"] > 0 || refused["c"] > 0 {
			t.Fatalf("second %d: %v", s, refused)
		}
		if s == 8 && refused["b"] != 100 {
			t.Fatalf("second %d: %v", s, refused)
		}
	}
}

// B3: two of three see a pool fail; the third sheds batch for it and nothing
// else, until they are well or have died.
func TestCascade(t *testing.T) {
	all := replicas("a", "b", "c")
	second(all, 0, func(string) bool { return false })
	bad := func(n string) bool { return n != "c" }
	second(all, 1*sec, bad) // 100 of 200: hard
	second(all, 2*sec, bad)
	for s := 3; s < 6; s++ {
		if refused := second(all, time.Duration(s)*sec, bad); refused["c"] != 30 {
			t.Fatalf("second %d: %v, want the 30 batch requests", s, refused)
		}
	}
	all[0].cut, all[1].cut = true, true // both die: their words end with their TTL
	dead := 0
	for s := 6; s < 40; s++ {
		if refused := second(all[2:], time.Duration(s)*sec, bad); refused["c"] > 0 {
			dead = s
		}
	}
	if dead < 16 || dead > 5+15 { // last renewed in second 1 or later
		t.Fatalf("batch was shed until second %d", dead)
	}
}
