package watch

import (
	"time"

	"github.com/weirproxy/weir/policy"
)

// cluster is what is known of one cluster over all Envoys.
type cluster struct {
	name    string
	tracks  []*track // the silent ones too
	told    bursts
	seconds ring
	pulses  ring

	lost                 float64 // see Reading.Lost
	storm, protect, calm mark
	well                 time.Duration // connections have been back at above since then; < 0: they are not
	quiet                time.Duration // no sign of sickness since then; < 0: there is one
	likeness             time.Duration // Calm's pattern was last seen
	trouble              bool          // nothing is learnt
}

// mark is something that is so since an instant, and why.
type mark struct {
	on    bool
	since time.Duration
	text  string
}

func newCluster(name string, window time.Duration) *cluster {
	k := &cluster{name: name, pulses: newRing(ticksPerPulse, pulsesKept)}
	k.keep(window)
	return k
}

// keep makes the ring of seconds long enough for a window, which is divided
// into whole seconds.
func (k *cluster) keep(window time.Duration) {
	n := max(secondsKept, int(windowSeconds(window))+2)
	if n <= len(k.seconds.cells) {
		return
	}
	long := newRing(ticksPerSecond, n)
	long.head = k.seconds.head
	if len(k.seconds.cells) > 0 {
		for i := k.seconds.oldest(); i <= long.head; i++ {
			*long.at(i) = *k.seconds.at(i)
		}
	}
	k.seconds = long
}

func windowSeconds(window time.Duration) int64 {
	return max(1, int64((window+time.Second-1)/time.Second))
}

func (k *cluster) judged() bool { return k.storm.on || k.protect.on || k.calm.on }

func (k *cluster) advance(to int64) {
	var live int64
	for _, t := range k.tracks {
		if !t.silent {
			live += t.live()
		}
	}
	k.told.advance(to)
	k.seconds.advance(to, live)
	k.pulses.advance(to, live)
}

func (k *cluster) put(from, to int64, d *counts) {
	from = max(from, 0)
	to = max(to, from+1)
	if to-1 > k.told.head || (to-1)/ticksPerSecond > k.seconds.head {
		k.advance(to - 1)
	}
	if d.goaways > 0 {
		k.told.put(from, to, d.goaways)
	}
	k.seconds.put(from, to, d)
	k.pulses.put(from, to, d)
}

// scene is a cluster at an instant, summed over the Envoys that are heard.
type scene struct {
	now, behind int64 // tick; how many ticks the Envoy that was heard longest ago is behind
	live        int64

	// of the Envoys whose normal is known
	known, normal float64
	load, usual   float64
	waiting       float64 // of all

	rates counts // sums over three seconds
	win   counts // over the window
	peak  int64  // live connections within the window
}

// look sums what the Envoys told into a reading and a scene.
func (k *cluster) look(p *policy.Watch, t time.Duration, r *Reading) scene {
	s := scene{now: ticks(t)}
	last := t
	for _, tr := range k.tracks {
		if tr.silent {
			continue
		}
		r.Envoys++
		last = min(last, tr.at)
		live := tr.live()
		s.live += live
		s.waiting += tr.waiting
		if tr.knows() {
			s.known += float64(live)
			s.normal += tr.normal
			s.load += min(tr.load, tr.busy()) // lately and now
			s.usual += tr.usual
		}
		r.Connections += tr.last.ActiveConnections
		r.ActiveRequests += tr.last.ActiveRequests
		r.Pending += tr.last.Pending
		if tr.last.Members > 0 && tr.health {
			if r.Members == 0 || tr.last.Healthy < r.Healthy {
				r.Healthy = tr.last.Healthy
			}
			r.Members = max(r.Members, tr.last.Members)
		}
	}
	k.advance(s.now)
	s.behind = min(ticks(t-last), ticksKept-4*ticksPerSecond)
	s.win, s.peak = k.seconds.last(s.now, windowSeconds(p.GoAway.Window))
	s.rates, _ = k.seconds.last(s.now-s.behind, rateSeconds)
	r.Lost = int64(k.lost)
	r.Live, r.Normal, r.Share = s.live, s.normal, 1
	if s.normal > 0 {
		r.Share = s.known / s.normal
	}
	r.ResetsPerSecond = s.rates.resets / rateSeconds
	r.FailuresPerSecond = s.rates.failed / rateSeconds
	r.ErrorsPerSecond = s.rates.errors / rateSeconds
	r.RetriesPerSecond = s.rates.retries / rateSeconds
	r.RequestsPerSecond = s.rates.requests / rateSeconds
	return s
}

// rateSeconds is over how many seconds rates are means, and in how many the
// busiest is looked for.
const rateSeconds = 3
