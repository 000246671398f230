package main

import (
	"slices"
	"strings"
	"time"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/internal/telemetry"
)

// gpuView is /debug/gpu: what the telemetry of each pool comes to, and from
// what (O1). null = not known.
type gpuView struct {
	At    time.Time      `json:"at"`
	Pools []gaugePicture `json:"pools"`
}

type gaugePicture struct {
	Name       string         `json:"name"`
	Pressure   float64        `json:"pressure"`
	AgeSeconds float64        `json:"age_seconds"`
	Stale      bool           `json:"stale"`
	Capacity   float64        `json:"capacity"`
	NodeLoad   *float64       `json:"node_load"`
	Parts      []partView     `json:"parts"`
	Sources    []sourceView   `json:"sources"`
	Endpoints  []endpointView `json:"endpoints"`
	Cards      []cardView     `json:"cards"`
}

// partView is one signal of one source (Q8).
type partView struct {
	Source     string   `json:"source"`
	Signal     string   `json:"signal"`
	Engine     bool     `json:"engine"`
	Suspect    bool     `json:"suspect"`
	Raw        *float64 `json:"raw"`
	Smoothed   float64  `json:"smoothed"`
	Value      float64  `json:"value"` // smoothed, decayed once it is stale
	AgeSeconds float64  `json:"age_seconds"`
	Used       bool     `json:"used"`
}

type sourceView struct {
	Name         string            `json:"name"`
	Engine       bool              `json:"engine"`
	EverySeconds float64           `json:"every_seconds"`
	AgeSeconds   *float64          `json:"age_seconds"`
	Samples      uint64            `json:"samples"`
	Repeated     uint64            `json:"repeated"`
	Missed       uint64            `json:"missed"`
	Misses       int               `json:"missed_in_a_row"`
	Error        string            `json:"error,omitempty"`
	Dropped      uint64            `json:"dropped"`
	Faults       map[string]uint64 `json:"faults"`
	Blank        bool              `json:"blank"`
	GPUs         int               `json:"gpus"`
	MostGPUs     int               `json:"most_gpus"`
	Running      *float64          `json:"running"`
	Load         *float64          `json:"load"`
	Suspect      string            `json:"suspect,omitempty"`
}

type endpointView struct {
	Name    string `json:"name"`
	Healthy bool   `json:"healthy"`
	Reason  string `json:"reason,omitempty"`
}

type cardView struct {
	ID         string    `json:"id"`
	Host       string    `json:"host,omitempty"`
	Index      string    `json:"index,omitempty"`
	Instance   string    `json:"instance,omitempty"`
	Endpoints  []string  `json:"endpoints,omitempty"`
	Source     string    `json:"source"`
	AgeSeconds float64   `json:"age_seconds"`
	Health     string    `json:"health"`
	Since      time.Time `json:"since"`
	Reason     string    `json:"reason,omitempty"`
	Suspect    string    `json:"suspect,omitempty"`

	Util         *float64 `json:"util"`
	Active       *float64 `json:"active"`
	SM           *float64 `json:"sm_active"`
	Occupancy    *float64 `json:"sm_occupancy"`
	Tensor       *float64 `json:"tensor_active"`
	DRAM         *float64 `json:"dram_active"`
	MemoryUsed   *float64 `json:"memory_used_bytes"`
	MemoryTotal  *float64 `json:"memory_total_bytes"`
	PCIeReceived *float64 `json:"pcie_received_bytes_per_second"`
	PCIeSent     *float64 `json:"pcie_sent_bytes_per_second"`
	Power        *float64 `json:"power_watts"`
	Temperature  *float64 `json:"temperature_celsius"`
	XID          *float64 `json:"xid"`
	Clocks       *float64 `json:"clock_reasons"`
	ClockNames   []string `json:"clock_reason_names"`
}

// known is a value's form in JSON.
func known(v gpu.Value) *float64 {
	if !v.OK {
		return nil
	}
	return &v.V
}

// gpuPicture shows the pools of that name; "" = all.
func gpuPicture(readings []telemetry.PoolGauge, pool string, now time.Time) gpuView {
	v := gpuView{At: now, Pools: []gaugePicture{}}
	for _, g := range readings {
		if pool == "" || pool == g.Pool {
			v.Pools = append(v.Pools, gaugeOf(g.Pool, g.Reading, now))
		}
	}
	return v
}

func gaugeOf(pool string, r *gpu.Reading, now time.Time) gaugePicture {
	age, stale := r.Age(now)
	v := gaugePicture{
		Name: pool, Pressure: r.Pressure(now), AgeSeconds: age.Seconds(), Stale: stale, Capacity: r.Capacity(now), NodeLoad: known(r.Load(now)),
		Parts: []partView{}, Sources: []sourceView{}, Endpoints: []endpointView{}, Cards: []cardView{},
	}
	for _, p := range r.PartsAt(now) {
		v.Parts = append(v.Parts, partView{p.Source, p.Signal, p.Engine, p.Suspect, known(p.Raw), p.Smoothed, p.Value, now.Sub(p.At).Seconds(), p.Used})
	}
	for i := range r.Sources {
		v.Sources = append(v.Sources, sourceOf(&r.Sources[i], now))
	}
	for _, e := range r.Endpoints(now) {
		v.Endpoints = append(v.Endpoints, endpointView{e.Name, e.Healthy, e.Reason})
	}
	cards := r.Cards()
	for i := range cards {
		v.Cards = append(v.Cards, cardOf(&cards[i], now))
	}
	return v
}

func sourceOf(s *gpu.SourceState, now time.Time) sourceView {
	v := sourceView{
		Name: s.Name, Engine: s.Engine, EverySeconds: s.Every.Seconds(), Samples: s.Samples, Repeated: s.Repeated,
		Missed: s.Missed, Misses: s.Misses, Error: s.Error, Dropped: s.Dropped, Faults: map[string]uint64{},
		Blank: s.Blank, GPUs: s.GPUs, MostGPUs: s.MostGPUs, Running: known(s.Running), Load: known(s.Load), Suspect: s.Suspect,
	}
	if !s.At.IsZero() {
		age := now.Sub(s.At).Seconds()
		v.AgeSeconds = &age
	}
	for f := range gpu.NumFaults {
		if s.Faults[f] > 0 {
			v.Faults[f.String()] = s.Faults[f]
		}
	}
	return v
}

func cardOf(c *gpu.CardState, now time.Time) cardView {
	return cardView{
		ID: c.ID, Host: c.Host, Index: c.Index, Instance: c.Instance, Endpoints: c.Endpoints.All(), Source: c.Source,
		AgeSeconds: now.Sub(c.Seen).Seconds(), Health: c.Health.String(), Since: c.Since, Reason: c.Reason, Suspect: c.Suspect,
		Util: known(c.Util), Active: known(c.Active), SM: known(c.SM), Occupancy: known(c.Occupancy), Tensor: known(c.Tensor), DRAM: known(c.DRAM),
		MemoryUsed: known(c.MemoryUsed), MemoryTotal: known(c.MemoryTotal), PCIeReceived: known(c.PCIeReceived), PCIeSent: known(c.PCIeSent),
		Power: known(c.Power), Temperature: known(c.Temperature), XID: known(c.XID), Clocks: known(c.Clocks),
		ClockNames: gpu.ClockReasons(c.Clocks),
	}
}

// gaugeStats are the present readings of the pools with telemetry, by name.
func (h *house) gaugeStats() []telemetry.PoolGauge {
	var all []telemetry.PoolGauge
	h.gauges.each(func(pool string, g *poolGauge) {
		all = append(all, telemetry.PoolGauge{Pool: pool, Reading: g.gauge.Reading()})
	})
	slices.SortFunc(all, func(a, b telemetry.PoolGauge) int { return strings.Compare(a.Pool, b.Pool) })
	return all
}
