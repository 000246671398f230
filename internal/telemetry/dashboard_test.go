package telemetry

import (
	"fmt"
	"slices"
	"testing"

	dto "github.com/prometheus/client_model/go"

	"github.com/weirproxy/weir/internal/dashboard"
)

// family is what the registry knows of a metric.
type family struct {
	kind   dto.MetricType
	labels map[string]bool
}

func families(t *testing.T) map[string]family {
	t.Helper()
	gathered, err := everything(t).Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]family{}
	for _, f := range gathered {
		labels := map[string]bool{}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = true
			}
		}
		all[f.GetName()] = family{f.GetType(), labels}
	}
	return all
}

// wrong says what a query asks for that does not exist.
func wrong(q *dashboard.Query, all map[string]family) error {
	metrics := []string{q.Metric}
	if q.Over != "" {
		metrics = append(metrics, q.Over)
	}
	for _, name := range metrics {
		f, ok := all[name]
		if !ok {
			return fmt.Errorf("there is no metric %s", name)
		}
		for _, l := range append(append([]string{"pool"}, q.By...), q.Matched()...) {
			if !f.labels[l] {
				return fmt.Errorf("%s has no label %s", name, l)
			}
		}
		if (f.kind == dto.MetricType_COUNTER) != q.Rate {
			return fmt.Errorf("%s is a %s, asked for as a rate: %v", name, f.kind, q.Rate)
		}
	}
	if !slices.Contains([]string{"sum", "max", "min"}, q.Agg) {
		return fmt.Errorf("%s comes together by %q", q.Metric, q.Agg)
	}
	return nil
}

// TestDashboardAsksForWhatExists holds each query of the resource dashboard
// against the registry: metric, labels and kind; and the dashboard shows what
// it is for.
func TestDashboardAsksForWhatExists(t *testing.T) {
	all, asked := families(t), map[string]bool{}
	for _, r := range dashboard.Resources().Rows {
		for _, p := range r.Panels {
			for i := range p.Queries {
				q := &p.Queries[i]
				asked[q.Metric] = true
				if err := wrong(q, all); err != nil {
					t.Errorf("%s: %v", p.Title, err)
				}
			}
		}
	}
	for _, name := range []string{
		"weir_gpu_memory_used_bytes", "weir_gpu_sm_active_ratio", "weir_gpu_sm_occupancy_ratio", "weir_gpu_clock_reason", "weir_gpu_tensor_active_ratio", "weir_gpu_pcie_received_bytes_per_second",
		"weir_gpu_pcie_sent_bytes_per_second", "weir_gpu_power_watts", "weir_gpu_health", "weir_gauge_kv_use", "weir_gauge_engine_waiting",
		"weir_gauge_pressure", "weir_gauge_part", "weir_queue_length", "weir_seats", "weir_seats_used",
	} {
		if !asked[name] {
			t.Errorf("%s is not shown", name)
		}
	}
}

// TestWrongQueriesAreSeen guards the guard.
func TestWrongQueriesAreSeen(t *testing.T) {
	all := families(t)
	for name, q := range map[string]dashboard.Query{
		"metric":      {Agg: "max", Metric: "weir_gauge_presure"},
		"divisor":     {Agg: "max", Metric: "weir_gauge_pressure", Over: "weir_nothing"},
		"label":       {Agg: "max", Metric: "weir_gauge_pressure", By: []string{"source"}},
		"matcher":     {Agg: "sum", Metric: "weir_queue_length", Match: `currency="requests"`},
		"rate":        {Agg: "sum", Metric: "weir_queue_length", Rate: true},
		"counter":     {Agg: "sum", Metric: "weir_gauge_faults_total"},
		"no pool":     {Agg: "sum", Metric: "weir_extproc_streams"},
		"aggregation": {Agg: "avrage", Metric: "weir_gauge_pressure"},
	} {
		if wrong(&q, all) == nil {
			t.Errorf("a wrong %s went through", name)
		}
	}
}
