package dashboard

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"testing"
)

var update = flag.Bool("update", false, "write examples/dashboards anew")

const file = "../../examples/dashboards/weir-resources.json"

// TestFileIsFresh: the file is what the table makes.
func TestFileIsFresh(t *testing.T) {
	want, err := Resources().JSON()
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(file, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if have, err := os.ReadFile(file); err != nil || !bytes.Equal(have, want) {
		t.Errorf("%s is not what the table makes (%v); write it anew: go test ./internal/dashboard -run TestFileIsFresh -update", file, err)
	}
}

// loaded is what Grafana needs of a dashboard.
type loaded struct {
	UID           string
	Title         string
	SchemaVersion int
	Time          struct{ From, To string }
	Templating    struct {
		List []struct {
			Name, Type string
			Query      any
		}
	}
	Panels []struct {
		ID         int
		Type       string
		Title      string
		GridPos    struct{ H, W, X, Y int }
		Datasource struct{ Type, UID string }
		Targets    []struct {
			RefID, Expr string
			Datasource  struct{ Type, UID string }
		}
		FieldConfig struct {
			Defaults struct {
				Mappings []struct {
					Type    string
					Options map[string]struct{ Text, Color string }
				}
			}
		}
	}
}

// TestGrafanaCanLoadIt: the file has what the dashboard model demands: a uid,
// a schema version, the data source as a variable that each panel and target
// uses, ids that differ, and a grid without overlap.
func TestGrafanaCanLoadIt(t *testing.T) {
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var d loaded
	if err := json.Unmarshal(raw, &d); err != nil {
		t.Fatal(err)
	}
	if d.UID != "weir-resources" || d.Title == "" || d.SchemaVersion != 39 || d.Time.From == "" || d.Time.To == "" {
		t.Errorf("uid %q, title %q, schema %d, time %v", d.UID, d.Title, d.SchemaVersion, d.Time)
	}
	if v := d.Templating.List; len(v) != 2 || v[0].Name != "datasource" || v[0].Type != "datasource" || v[0].Query != "prometheus" || v[1].Name != "pool" || v[1].Type != "query" {
		t.Errorf("variables %+v: want the data source, then the pool", v)
	}
	ids, taken := map[int]bool{}, map[[2]int]string{}
	for _, p := range d.Panels {
		if ids[p.ID] || p.ID < 1 {
			t.Errorf("%s: id %d twice or below 1", p.Title, p.ID)
		}
		ids[p.ID] = true
		g := p.GridPos
		if g.W < 4 || g.H < 1 || g.X < 0 || g.X+g.W > columns {
			t.Errorf("%s stands at %+v, outside of the grid or too narrow to read", p.Title, g)
		}
		for x := g.X; x < g.X+g.W; x++ {
			for y := g.Y; y < g.Y+g.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" {
					t.Fatalf("%s stands on %s", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if p.Datasource.Type != "prometheus" || p.Datasource.UID != "${datasource}" || len(p.Targets) == 0 {
			t.Errorf("%s: data source %+v, %d targets", p.Title, p.Datasource, len(p.Targets))
		}
		refs := map[string]bool{}
		for _, q := range p.Targets {
			if refs[q.RefID] || q.Expr == "" || q.Datasource.UID != "${datasource}" {
				t.Errorf("%s: target %+v", p.Title, q)
			}
			refs[q.RefID] = true
		}
		if p.Type == "state-timeline" {
			m := p.FieldConfig.Defaults.Mappings
			if len(m) != 1 || m[0].Type != "value" || m[0].Options["0"].Text == "" || m[0].Options["1"].Color == "" {
				t.Errorf("%s: states %+v", p.Title, m)
			}
		}
	}
}

// TestExpr: a query is PromQL that brings replicas together.
func TestExpr(t *testing.T) {
	for _, c := range []struct {
		q            Query
		expr, legend string
	}{
		{Query{Name: "waiting", Agg: "max", Metric: "a"}, `max by (pool) (a{pool=~"$pool"})`, "waiting {{pool}}"},
		{Query{Agg: "sum", Metric: "a", Match: `currency="requests"`, By: []string{"class"}}, `sum by (pool, class) (a{pool=~"$pool",currency="requests"})`, "{{pool}} {{class}}"},
		{Query{Agg: "max", Metric: "a", Over: "b"}, `max by (pool) (a{pool=~"$pool"} / b{pool=~"$pool"})`, "{{pool}}"},
		{Query{Agg: "sum", Metric: "a_total", Rate: true}, `sum by (pool) (rate(a_total{pool=~"$pool"}[$__rate_interval]))`, "{{pool}}"},
	} {
		if got := c.q.expr(); got != c.expr {
			t.Errorf("%s, want %s", got, c.expr)
		}
		if got := c.q.legend(); got != c.legend {
			t.Errorf("legend %s, want %s", got, c.legend)
		}
	}
}
