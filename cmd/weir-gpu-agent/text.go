package main

import (
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/gpu/agent"
)

// stalePeriods is how many periods a look is shown for: then it is older than
// nothing, and an agent never freezes a reading.
const stalePeriods = 3

// pages serve what is on a board over HTTP.
type pages struct {
	board    *board
	guard    guard
	every    time.Duration
	watchers func() int64
	version  string
}

func (p *pages) handler() http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(&collector{pages: p, fields: agent.Fields(), labels: cardLabels()})
	metrics := promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		if err := p.guard.request(r); err != nil {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
		metrics.ServeHTTP(w, r)
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if last, _, _ := p.board.newest(); last == nil {
			http.Error(w, "no look yet", http.StatusServiceUnavailable)
		} else if err := p.state(last, time.Now()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		} else {
			fmt.Fprintln(w, "ok")
		}
	})
	return mux
}

// cardLabels are the names of agent.Labels in one order.
func cardLabels() []string {
	return []string{"gpu", "UUID", "device", "Hostname", "GPU_I_ID", "GPU_I_PROFILE"}
}

// state is why a look is not to be believed now; nil = it is.
func (p *pages) state(s *seen, now time.Time) error {
	if s.err != nil {
		return s.err
	}
	if age := now.Sub(s.at); age > stalePeriods*max(p.every, minLook) {
		return fmt.Errorf("the last look is %v old", age.Round(time.Second))
	}
	return nil
}

// collector makes metrics of the newest look: of each card while it is to be
// believed, of the agent always.
type collector struct {
	*pages
	fields []agent.Field
	labels []string
}

// Describe says nothing: which series there are depends on the cards.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// Collect reads the board.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	now := time.Now()
	last, totals, _ := c.board.newest()
	own := func(kind prometheus.ValueType, name, help string, value float64, labels ...string) {
		var names, values []string
		for i := 0; i+1 < len(labels); i += 2 {
			names, values = append(names, labels[i]), append(values, labels[i+1])
		}
		out <- prometheus.MustNewConstMetric(prometheus.NewDesc("weir_gpu_agent_"+name, help, names, nil), kind, value, values...)
	}
	own(prometheus.GaugeValue, "info", "What runs.", 1, "version", c.version)
	own(prometheus.CounterValue, "looks_total", "Looks at the GPUs.", float64(totals.looks))
	own(prometheus.CounterValue, "looks_failed_total", "Looks that saw nothing.", float64(totals.failed))
	for kind, n := range totals.dropped {
		if n > 0 {
			own(prometheus.CounterValue, "dropped_total", "Readings that were no numbers or out of their range.", float64(n), "kind", gpu.Fault(kind).String())
		}
	}
	own(prometheus.GaugeValue, "watchers", "Streams open now.", float64(c.watchers()))
	if last == nil || c.state(last, now) != nil {
		own(prometheus.GaugeValue, "up", "1 while the GPUs are read.", 0)
		return
	}
	own(prometheus.GaugeValue, "up", "1 while the GPUs are read.", 1)
	own(prometheus.GaugeValue, "source", "Who reads the GPUs.", 1, "source", last.source)
	own(prometheus.GaugeValue, "age_seconds", "Age of the last look.", now.Sub(last.at).Seconds())
	own(prometheus.GaugeValue, "look_seconds", "Time that the last look took.", last.took.Seconds())
	c.cards(out, last.cards)
}

// xidTime is when the last XID error of a card occurred; dcgm-exporter has no
// name for it.
const xidTime = "weir_gpu_agent_xid_time_seconds"

// cards are the figures of each card that are known.
func (c *collector) cards(out chan<- prometheus.Metric, cards []gpu.Card) {
	values := make([]string, len(c.labels))
	put := func(desc *prometheus.Desc, card *gpu.Card, v float64) {
		labels := agent.Labels(card)
		for k, name := range c.labels {
			values[k] = labels[name]
		}
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v, values...)
	}
	for _, f := range c.fields {
		desc := prometheus.NewDesc(f.Name, f.Help, c.labels, nil)
		for i := range cards {
			card := cards[i]
			if v := f.Of(&card); v.OK {
				put(desc, &card, v.V*f.Scale)
			}
		}
	}
	when := prometheus.NewDesc(xidTime, "When the last XID error occurred, in Unix time.", c.labels, nil)
	for i := range cards {
		if at := cards[i].XIDAt; !at.IsZero() {
			put(when, &cards[i], float64(at.UnixMicro())/1e6)
		}
	}
}
