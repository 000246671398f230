package watch

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/weirproxy/weir/policy"
)

// What GOAWAYs cost at least where they are a storm: so many calls each, and such
// a share of all calls.
const (
	costEach  = 0.5
	costShare = 0.005
)

// Signs of sickness (B8), over the seconds of the rates.
const (
	failShare   = 0.1              // of the connects begun
	waitingSign = 0.5              // requests that wait for a connection, on average
	leastUsual  = 1.0              // requests under way, below which their number says nothing
	leastNormal = 1.0              // connections, likewise
	quietAfter  = 30 * time.Second // without a sign ends protect mode
)

// slack keeps sums of fractions from passing a limit that they meet.
const slack = 1e-6

// judge fills a reading and appends what began or ended.
func (k *cluster) judge(p *policy.Watch, t time.Duration, r *Reading, events []Event) []Event {
	s := k.look(p, t, r)
	before := [...]mark{k.storm, k.protect, k.calm}
	k.judgeStorm(&p.GoAway, t, &s, r)
	k.judgeProtect(&p.Protect, t, &s, r)
	k.judgeCalm(t, &s)
	k.trouble = k.storm.on || k.protect.on || (k.quiet < 0 && r.Share < float64(p.Protect.Above))

	r.Storm, r.Protect, r.Calm = k.storm.on, k.protect.on, k.calm.on
	var because []string
	for i, m := range [...]*mark{&k.storm, &k.protect, &k.calm} {
		if m.on {
			because = append(because, m.text)
		}
		if m.on == before[i].on {
			continue
		}
		e := Event{At: r.At, Cluster: k.name, What: What(2*i + 1), Because: m.text}
		if !m.on {
			e.What++
			e.Lasted = t - before[i].since
		}
		events = append(events, e)
	}
	r.Because = strings.Join(because, "; ")
	return events
}

// set says that a mark is on, or off, and why.
func (m *mark) set(on bool, t time.Duration, text string) {
	if m.on != on {
		m.on, m.since = on, t
	}
	m.text = text
}

// judgeStorm is B7.
func (k *cluster) judgeStorm(p *policy.GoAway, t time.Duration, s *scene, r *Reading) {
	r.GoAwaysPerSecond = k.told.busiest(s.now-s.behind-rateSeconds*ticksPerSecond, s.now)
	r.GoAways = int64(math.Round(s.win.goaways))
	known := float64(s.live) + max(s.win.closed, s.win.goaways)
	if s.win.goaways > 0 {
		r.GoAwayShare = s.win.goaways / known
	}
	over := r.GoAwaysPerSecond > p.PerSecond+slack
	told := s.win.goaways / max(known-min(s.win.opened, s.win.goaways), s.win.goaways, 1)
	many := told >= float64(p.Share)-slack
	lately, span := k.lately(s)
	failed := lately.failures()
	hurt := failed > slack && failed >= max(costEach*lately.goaways, costShare*lately.requests)-slack
	switch {
	case over && (p.Literal || hurt && (many || k.storm.on)):
		text := fmt.Sprintf("%d GOAWAYs in %s, %.1f in the busiest second (limit %g)", r.GoAways, p.Window, r.GoAwaysPerSecond, p.PerSecond)
		if !p.Literal {
			text += fmt.Sprintf(", on %.0f%% of the connections (limit %.0f%%); %.0f of %.0f calls failed in %ds (limits %.1f%%, and half of %.0f GOAWAYs)",
				100*told, 100*p.Share, failed, max(lately.requests, failed), span, 100*costShare, lately.goaways)
		}
		k.storm.set(true, t, text)
	case k.storm.on:
		k.storm.set(false, t, fmt.Sprintf("%.1f GOAWAYs in the busiest of the last %d seconds (limit %g), %.0f of %.0f calls failed",
			r.GoAwaysPerSecond, span, p.PerSecond, failed, max(lately.requests, failed)))
	}
}

// judgeProtect is B8.
func (k *cluster) judgeProtect(p *policy.Protect, t time.Duration, s *scene, r *Reading) {
	signs := k.signs(p, s, r)
	since(&k.quiet, t, len(signs) == 0)
	since(&k.well, t, r.Share >= float64(p.Above)-slack)
	figures := fmt.Sprintf("%.0f live connections where %.1f are usual (%.0f%%", s.known, s.normal, 100*r.Share)
	switch {
	case !k.protect.on:
		if s.normal >= leastNormal && r.Share < float64(p.Below)-slack && len(signs) > 0 {
			k.protect.set(true, t, fmt.Sprintf("%s, limit %.0f%%): %s", figures, 100*p.Below, strings.Join(signs, ", ")))
		}
	case k.well >= 0 && t-k.well >= p.Calm:
		k.protect.set(false, t, fmt.Sprintf("%s) for %s", figures, p.Calm))
	case k.quiet >= 0 && t-k.quiet >= max(quietAfter, p.Calm):
		k.protect.set(false, t, fmt.Sprintf("%s), but no connect failed and nothing waited for %s: it is quiet, not sick", figures, max(quietAfter, p.Calm)))
	case len(signs) > 0:
		k.protect.text = fmt.Sprintf("%s, back at %.0f%%): %s", figures, 100*p.Above, strings.Join(signs, ", "))
	default:
		k.protect.text = fmt.Sprintf("%s, back at %.0f%%)", figures, 100*p.Above)
	}
}

// since keeps the instant from which on something holds; negative = it does
// not.
func since(from *time.Duration, t time.Duration, holds bool) {
	switch {
	case !holds:
		*from = -1
	case *from < 0:
		*from = t
	}
}

// lately is what happened in the seconds of the rates, and since: so many that
// the Envoy that was heard longest ago had its say.
func (k *cluster) lately(s *scene) (sum counts, span int64) {
	span = rateSeconds + (s.behind+ticksPerSecond-1)/ticksPerSecond
	sum, _ = k.seconds.last(s.now, span)
	return sum, span
}

// signs are what tells a sick cluster from a quiet one.
func (k *cluster) signs(p *policy.Protect, s *scene, r *Reading) []string {
	var signs []string
	lately, span := k.lately(s)
	if lately.failed >= 1-slack && lately.failed >= failShare*lately.opened {
		signs = append(signs, fmt.Sprintf("%.0f of %.0f connects failed in %ds", lately.failed, max(lately.opened, lately.failed), span))
	}
	if s.waiting >= waitingSign {
		signs = append(signs, fmt.Sprintf("%.1f requests wait for a connection", s.waiting))
	}
	if r.Members > 0 && float64(r.Healthy) < float64(p.Below)*float64(r.Members) {
		signs = append(signs, fmt.Sprintf("%d of %d hosts are healthy", r.Healthy, r.Members))
	}
	// As much to do as usual, on so few connections that each bears more than
	// 1/below of its usual.
	if s.usual >= leastUsual && s.load >= float64(p.Above)*s.usual && s.load*s.normal*float64(p.Below) > s.usual*s.known {
		signs = append(signs, fmt.Sprintf("%.1f requests under way on them where %.1f are usual", s.load, s.usual))
	}
	return signs
}
