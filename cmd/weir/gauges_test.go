package main

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/policy"
)

// What a pool says of its load reaches its own gauge, across a reload too, and
// no other; a pool that does not listen, or is not there, is no mistake.
func TestGaugesHear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := policy.Default()
		for i := range 2 {
			p.Pools[i].Telemetry = []policy.TelemetrySource{{Kind: policy.KindORCA, Every: 100 * time.Millisecond}}
		}
		p = p.Finish()
		listens, other, deaf := p.Pools[0].Name, p.Pools[1].Name, p.Pools[2].Name
		g := newGauges(slog.New(slog.DiscardHandler))
		defer g.close()
		if err := g.swap(p); err != nil {
			t.Fatal(err)
		}
		say := func(text string) {
			for _, pool := range []string{listens, deaf, "nowhere"} {
				g.hear(pool, text)
			}
			time.Sleep(150 * time.Millisecond)
		}
		say("TEXT named_metrics.num_requests_waiting=3.0")
		if got := g.reading(listens).Engine(time.Now()).Waiting; got != gpu.Some(3) {
			t.Errorf("waiting = %v, want 3", got)
		}
		if got := g.reading(other).Engine(time.Now()); got.Waiting.OK {
			t.Errorf("another pool's gauge heard %+v", got)
		}
		if g.reading(deaf) != nil {
			t.Error("a pool without telemetry has a reading")
		}
		changed := policy.Default()
		changed.Pools[0].Telemetry = []policy.TelemetrySource{{Kind: policy.KindORCA, Every: 50 * time.Millisecond}}
		if err := g.swap(changed.Finish()); err != nil {
			t.Fatal(err)
		}
		say("TEXT named_metrics.num_requests_waiting=7.0")
		if got := g.reading(listens).Engine(time.Now()).Waiting; got != gpu.Some(7) {
			t.Errorf("waiting after a reload = %v, want 7", got)
		}
	})
}

// A kind whose settings make no sense is refused with the pool and the place.
func TestGaugesRefuseTokenInTheClear(t *testing.T) {
	p := policy.Default()
	p.Pools[0].Telemetry = []policy.TelemetrySource{{Kind: policy.KindORCAGRPC, URL: "engine:9000", Token: policy.NewSecret("", "s3cret")}}
	g := newGauges(slog.New(slog.DiscardHandler))
	defer g.close()
	if err := g.swap(p.Finish()); err == nil {
		t.Error("a token in the clear was taken")
	}
}
