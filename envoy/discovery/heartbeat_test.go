package discovery

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/policy"
)

// pulse is a cluster's hosts as heartbeats find them.
type pulse struct {
	mu   sync.Mutex
	dead map[string]bool
	hang map[string]bool
	n    atomic.Int64 // connects
}

func (p *pulse) set(m *map[string]bool, hosts ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	*m = map[string]bool{}
	for _, h := range hosts {
		(*m)[h] = true
	}
}

func (p *pulse) connect(ctx context.Context, host netip.AddrPort) error {
	p.n.Add(1)
	p.mu.Lock()
	dead, hang := p.dead[host.String()], p.hang[host.String()]
	p.mu.Unlock()
	switch {
	case dead:
		return errors.New("refused")
	case hang:
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

func degraded(v View) (out []string) {
	for _, e := range v.Endpoints {
		if e.Health == Degraded {
			out = append(out, e.Address.String())
		}
	}
	return out
}

func twoRegions() *policy.Endpoints {
	return &policy.Endpoints{Heartbeat: 500 * time.Millisecond, Priorities: []policy.EndpointSet{
		{Region: "a", Static: []string{"10.0.0.1:80", "10.0.0.2:80"}}, {Region: "b", Static: []string{"10.1.0.1:80"}},
	}}
}

// G2: who misses three heartbeats in a row is degraded, by a refusal or by
// silence; one that comes makes it well. Each change is a new version and is
// told once.
func TestHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pulse
		var changes atomic.Int64
		c := start(t, twoRegions(), Options{Connect: p.connect, Changed: func() { changes.Add(1) }})
		first := c.View()
		pass := func(d time.Duration) { time.Sleep(d); synctest.Wait() }
		pass(time.Second + 100*time.Millisecond)
		p.set(&p.dead, "10.0.0.1:80")
		p.set(&p.hang, "10.0.0.2:80")
		pass(900 * time.Millisecond) // two rounds
		if got := degraded(c.View()); len(got) > 0 || c.View().Version != first.Version {
			t.Errorf("after two missed: %v", got)
		}
		pass(1200 * time.Millisecond) // the third, and what hangs
		v := c.View()
		if got := degraded(v); !slices.Equal(got, []string{"10.0.0.1:80", "10.0.0.2:80"}) || v.Version <= first.Version {
			t.Errorf("after three missed: %v, version %d after %d", got, v.Version, first.Version)
		}
		told := changes.Load()
		pass(5 * time.Second)
		if changes.Load() != told || told > 2 {
			t.Errorf("told %d times, and %d times that nothing changed", told, changes.Load()-told)
		}
		p.set(&p.dead)
		p.set(&p.hang)
		pass(1100 * time.Millisecond)
		if got := degraded(c.View()); len(got) > 0 || c.View().Version <= v.Version {
			t.Errorf("all answer: %v", got)
		}
	})
}

// A machine that is cut off says nothing of its hosts.
func TestHeartbeatsOfNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pulse
		p.set(&p.dead, "10.0.0.1:80", "10.0.0.2:80", "10.1.0.1:80")
		c := start(t, twoRegions(), Options{Connect: p.connect})
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if got := degraded(c.View()); len(got) > 0 {
			t.Errorf("nobody answers: %v", got)
		}
		p.set(&p.dead, "10.0.0.1:80", "10.0.0.2:80")
		time.Sleep(time.Second)
		synctest.Wait()
		if got := degraded(c.View()); len(got) != 2 {
			t.Errorf("region b answers: %v", got)
		}
	})
}

// One region has no heartbeats, nor has who switched them off.
func TestHeartbeatsOff(t *testing.T) {
	off, alone, same := twoRegions(), twoRegions(), twoRegions()
	off.Heartbeat = 0
	alone.Priorities = alone.Priorities[:1]
	first := 0
	same.Priorities[1].Priority = &first
	for name, e := range map[string]*policy.Endpoints{"off": off, "one region": alone, "one priority": same} {
		synctest.Test(t, func(t *testing.T) {
			var p pulse
			start(t, e, Options{Connect: p.connect})
			time.Sleep(10 * time.Second)
			if n := p.n.Load(); n > 0 {
				t.Errorf("%s: %d connects", name, n)
			}
		})
	}
}

// Heartbeats make nobody better than its source says.
func TestHeartbeatsAndSources(t *testing.T) {
	at := func(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }
	var b beats
	list := []Endpoint{{Address: at("10.0.0.1:80"), Health: Draining}, {Address: at("10.0.0.2:80"), Health: Unhealthy}, {Address: at("10.0.0.3:80")}}
	for range missedBeats {
		b.note(map[netip.AddrPort]bool{at("10.0.0.1:80"): false, at("10.0.0.2:80"): true, at("10.0.0.3:80"): true})
	}
	if got := b.judge(list); got[0].Health != Draining || got[1].Health != Unhealthy || got[2].Health != Healthy {
		t.Errorf("%v", got)
	}
	b.note(map[netip.AddrPort]bool{at("10.0.0.3:80"): true}) // the others left
	if len(b.missed) != 0 {
		t.Errorf("%v are remembered", b.missed)
	}
}
