package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/internal/telemetry"
)

// gaugeEvery is how often the pools' telemetry is looked at for the log.
const gaugeEvery = time.Second

// maxCardLines bounds the lines of a pool and a look: a rack that loses power
// is one event.
const maxCardLines = 16

// gaugeLog says in the log that a GPU is ill or well again, and that a source
// is doubted or believed again: a line each, however long it lasts.
type gaugeLog struct {
	log   *slog.Logger
	pools map[string]gaugeWas
}

// gaugeWas is what was amiss at the last look.
type gaugeWas struct {
	cards   map[cardName]gpu.Health
	sources map[string]bool
}

type cardName struct{ id, instance string }

// follow looks until ctx ends.
func (l *gaugeLog) follow(ctx context.Context, readings func() []telemetry.PoolGauge) {
	ticker := time.NewTicker(gaugeEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			l.look(readings())
		}
	}
}

// look tells what is new; a pool, source or GPU that is gone is forgotten.
func (l *gaugeLog) look(readings []telemetry.PoolGauge) {
	next := make(map[string]gaugeWas, len(readings))
	for _, g := range readings {
		was := l.pools[g.Pool]
		next[g.Pool] = gaugeWas{l.cards(g, was.cards), l.sources(g, was.sources)}
	}
	l.pools = next
}

func (l *gaugeLog) sources(g telemetry.PoolGauge, was map[string]bool) map[string]bool {
	amiss := map[string]bool{}
	for i := range g.Reading.Sources {
		s := &g.Reading.Sources[i]
		if s.Suspect != "" {
			amiss[s.Name] = true
		}
		switch {
		case amiss[s.Name] && !was[s.Name]:
			l.log.Warn("telemetry source is doubted", "pool", g.Pool, "source", s.Name, "why", s.Suspect)
		case !amiss[s.Name] && was[s.Name]:
			l.log.Info("telemetry source is believed again", "pool", g.Pool, "source", s.Name)
		}
	}
	return amiss
}

func (l *gaugeLog) cards(g telemetry.PoolGauge, was map[cardName]gpu.Health) map[cardName]gpu.Health {
	amiss := map[cardName]gpu.Health{}
	news := 0
	cards := g.Reading.Cards()
	for i := range cards {
		c := &cards[i]
		name := cardName{c.ID, c.Instance}
		if c.Health != gpu.Healthy {
			amiss[name] = c.Health
		}
		if c.Health == was[name] {
			continue
		}
		if news++; news > maxCardLines {
			continue
		}
		about := l.log.With("pool", g.Pool, "gpu", c.ID, "host", c.Host, "index", c.Index, "mig", c.Instance)
		if c.Health == gpu.Healthy {
			about.Info("GPU is well again")
		} else {
			about.Warn("GPU is not well", "health", c.Health.String(), "reason", c.Reason)
		}
	}
	if news > maxCardLines {
		l.log.Warn("more GPUs changed their health than are logged", "pool", g.Pool, "more", news-maxCardLines)
	}
	return amiss
}
