// Package dashboard makes the Grafana dashboards of examples/dashboards from
// tables of panels (O1), so that what they ask for can be held against the
// metrics that exist.
//
// The JSON is Grafana's classic dashboard model, schema 39 (Grafana 10 and
// later; documented in "Dashboard JSON model"). A dashboard works with any
// Prometheus data source, which is chosen at its top, and with any number of
// replicas of weir: what each replica has for itself is summed, what all see
// alike is taken once.
//
// Invariants: the same table makes the same bytes; panels do not overlap.
package dashboard

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// Dashboard is a table of rows.
type Dashboard struct {
	UID, Title, About string
	Rows              []Row
}

// Row is a title with the panels under it, from left to right.
type Row struct {
	Title  string
	Panels []Panel
}

// Panel is one chart over time.
type Panel struct {
	Title, About string
	Unit         string   // Grafana's unit id
	Top          float64  // of the axis; 0 = as far as the values go
	States       []string // names of the values 0, 1, ...: shown as bands of colour
	Queries      []Query
}

// Query asks for one metric of the chosen pools.
type Query struct {
	Name   string // before the labels in the legend; may be ""
	Agg    string // how replicas come together: sum, max, min
	Metric string
	Over   string   // a metric of the same labels that it is divided by; "" = none
	Match  string   // further matchers
	By     []string // labels that tell lines apart, beside pool
	Rate   bool     // per second, of a counter
}

// Matched are the labels that Match names.
func (q *Query) Matched() []string {
	var names []string
	for m := range strings.SplitSeq(q.Match, ",") {
		if name, _, ok := strings.Cut(m, "="); ok {
			names = append(names, strings.TrimRight(name, "!"))
		}
	}
	return names
}

// expr is the query in PromQL.
func (q *Query) expr() string {
	matchers := `{pool=~"$pool"`
	if q.Match != "" {
		matchers += "," + q.Match
	}
	matchers += "}"
	e := q.Metric + matchers
	if q.Over != "" {
		e += " / " + q.Over + matchers
	}
	if q.Rate {
		e = "rate(" + e + "[$__rate_interval])"
	}
	return fmt.Sprintf("%s by (%s) (%s)", q.Agg, strings.Join(append([]string{"pool"}, q.By...), ", "), e)
}

func (q *Query) legend() string {
	words := []string{q.Name, "{{pool}}"}
	for _, l := range q.By {
		words = append(words, "{{"+l+"}}")
	}
	return strings.TrimSpace(strings.Join(words, " "))
}

// The places of panels: Grafana's grid has 24 columns.
const (
	columns     = 24
	rowHeight   = 1
	panelHeight = 8
)

// JSON is the dashboard as Grafana loads it.
func (d *Dashboard) JSON() ([]byte, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(d.model()); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func (d *Dashboard) model() model {
	m := model{
		UID: d.UID, Title: d.Title, Description: d.About, Tags: []string{"weir"}, SchemaVersion: 39, Version: 1, Editable: true,
		GraphTooltip: 1, Refresh: "10s", Time: span{"now-1h", "now"}, Annotations: list{[]any{}}, Links: []any{},
		Templating: list{[]any{
			variable{Name: "datasource", Label: "Data source", Type: "datasource", Query: "prometheus"},
			variable{
				Name: "pool", Label: "Pool", Type: "query", Source: chosen(), Query: labelQuery{1, "label_values(weir_queue_length, pool)", "pools"},
				Refresh: 2, Sort: 1, Multi: true, All: true, AllValue: ".*", Current: map[string]any{"text": "All", "value": "$__all"},
			},
		}},
	}
	id, y := 0, 0
	for _, r := range d.Rows {
		id++
		m.Panels = append(m.Panels, panel{ID: id, Type: "row", Title: r.Title, Place: place{rowHeight, columns, 0, y}, Collapsed: new(bool), Panels: []any{}})
		y += rowHeight
		width := columns / max(len(r.Panels), 1)
		for i := range r.Panels {
			id++
			m.Panels = append(m.Panels, r.Panels[i].model(id, place{panelHeight, width, i * width, y}))
		}
		y += panelHeight
	}
	return m
}

func (p *Panel) model(id int, at place) panel {
	f := fields{Unit: p.Unit, Min: new(float64), Custom: map[string]any{"lineWidth": 1, "fillOpacity": 8, "showPoints": "never", "spanNulls": false}}
	m := panel{ID: id, Type: "timeseries", Title: p.Title, Description: p.About, Place: at, Source: chosen(), Options: map[string]any{
		"legend":  map[string]any{"displayMode": "list", "placement": "bottom", "showLegend": true, "calcs": []any{}},
		"tooltip": map[string]any{"mode": "multi", "sort": "desc"},
	}}
	if p.Top > 0 {
		f.Max = &p.Top
	}
	if len(p.States) > 0 {
		m.Type = "state-timeline"
		m.Options["showValue"], m.Options["mergeValues"], m.Options["rowHeight"], m.Options["alignValue"] = "never", true, 0.9, "left"
		f.Custom = map[string]any{"lineWidth": 0, "fillOpacity": 80}
		f.Mappings = []any{states(p.States)}
	}
	m.Fields = &fieldConfig{f, []any{}}
	for i := range p.Queries {
		q := &p.Queries[i]
		m.Targets = append(m.Targets, target{string(rune('A' + i)), chosen(), q.expr(), q.legend(), "code", true})
	}
	return m
}

// states gives the values 0, 1, ... a name and a colour each.
func states(names []string) map[string]any {
	colours := []string{"green", "yellow", "red", "purple"}
	options := map[string]any{}
	for i, name := range names {
		options[fmt.Sprint(i)] = map[string]any{"text": name, "color": colours[i%len(colours)], "index": i}
	}
	return map[string]any{"type": "value", "options": options}
}
