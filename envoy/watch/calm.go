package watch

import (
	"fmt"
	"time"
)

// The likeness of a server that throws out pings, over two minutes. What was
// seen with grpc-go 1.85 and Envoy 1.36.4 and 1.40.0: an idle connection gets
// GOAWAY at about the fifth ping and is closed by Envoy at once; one with a
// stream that says nothing gets it as well and is cut by the server. See
// grpc-go's keepalive.EnforcementPolicy and gRFC A8.
const (
	calmGoAways  = 6.0
	calmPulses   = 3                        // stretches of two seconds with a GOAWAY
	calmEach     = 1.5                      // GOAWAYs for each connection
	calmCloses   = 0.8                      // of the closes came with a GOAWAY
	calmRequests = 3.0                      // requests a connection, at most
	calmCut      = 0.5                      // or so many of the connections were cut
	calmPings    = 5                        // a connection lives about so many pings
	leastLife    = 2 * ticksPerPulse * tick // below, how long they live cannot be told
	calmFor      = 30 * time.Second
)

// pattern is what the pulses show of GOAWAYs.
type pattern struct {
	counts
	peak  int64
	first int64         // tick
	beats int           // pulses with a GOAWAY
	life  time.Duration // of a connection, about
}

func (k *cluster) pattern(now int64) pattern {
	var p pattern
	p.counts, p.peak = k.pulses.last(now, pulsesKept-1)
	p.first = now
	var live float64
	var pulses int
	for i := max(now/ticksPerPulse-pulsesKept+1, k.pulses.oldest()); i <= k.pulses.head; i++ {
		c := k.pulses.at(i)
		if c.goaways > slack && p.beats == 0 {
			p.first = max(0, i*ticksPerPulse)
		}
		if c.goaways > slack {
			p.beats++
		}
		if p.beats > 0 {
			live += float64(c.live)
			pulses++
		}
	}
	if p.goaways > 0 && pulses > 0 {
		p.life = time.Duration(live / float64(pulses) * float64(time.Duration(now-p.first)*tick) / p.goaways)
	}
	return p
}

// pings tells whether a pattern looks like that of a server that throws out
// pings.
func (p *pattern) pings() bool {
	return p.goaways >= calmGoAways-slack && p.beats >= calmPulses &&
		p.goaways >= calmEach*float64(max(1, p.peak)) &&
		p.goaways >= calmCloses*p.closed &&
		(p.requests <= calmRequests*p.goaways || p.cut >= calmCut*p.goaways)
}

// judgeCalm looks for the likeness, and lets it go when it was not seen for
// calmFor.
func (k *cluster) judgeCalm(t time.Duration, s *scene) {
	if !k.calm.on && k.told.newest == 0 {
		return
	}
	p := k.pattern(s.now)
	switch {
	case p.pings():
		k.likeness = t
		k.calm.set(true, t, p.text(s.now))
	case k.calm.on && t-k.likeness >= calmFor:
		k.calm.set(false, t, fmt.Sprintf("not seen for %s", calmFor))
	}
}

func (p *pattern) text(now int64) string {
	how := fmt.Sprintf("on connections that carried %.1f requests each", p.requests/p.goaways)
	if p.cut >= calmCut*p.goaways {
		how = fmt.Sprintf("%.0f%% of whose connections were cut with requests under way", min(100, 100*p.cut/p.goaways))
	}
	text := fmt.Sprintf("%.0f GOAWAYs in %s %s", p.goaways, (time.Duration(now-p.first) * tick).Round(time.Second), how)
	if p.life >= leastLife {
		text += fmt.Sprintf(", after about %s each, which would be pings each %s", round(p.life), round(p.life/calmPings))
	}
	return text + ": likely ENHANCE_YOUR_CALM (too_many_pings), which Envoy does not tell from other GOAWAYs (a short MaxConnectionAge looks alike); " +
		"raise the cluster's connection_keepalive.interval above what the server permits (gRPC servers by default: 5m and no pings without a stream), or permit it there"
}

func round(d time.Duration) time.Duration {
	if d < 10*time.Second {
		return d.Round(100 * time.Millisecond)
	}
	return d.Round(time.Second)
}
