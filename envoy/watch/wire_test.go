package watch

import (
	"fmt"
	"math"
	"strings"
	"testing"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	metricspb "github.com/envoyproxy/go-control-plane/envoy/service/metrics/v3"
	prompb "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/proto"
)

// family makes a family as Envoy does; labels are name, value, ...
func family(name string, kind prompb.MetricType, value float64, stamp int64, labels ...string) *prompb.MetricFamily {
	m := &prompb.Metric{TimestampMs: proto.Int64(stamp)}
	switch kind {
	case prompb.MetricType_COUNTER:
		m.Counter = &prompb.Counter{Value: &value}
	case prompb.MetricType_GAUGE:
		m.Gauge = &prompb.Gauge{Value: &value}
	case prompb.MetricType_SUMMARY:
		m.Summary = &prompb.Summary{SampleSum: &value}
	case prompb.MetricType_HISTOGRAM:
		m.Histogram = &prompb.Histogram{SampleSum: &value}
	case prompb.MetricType_UNTYPED, prompb.MetricType_GAUGE_HISTOGRAM:
	}
	for i := 0; i < len(labels); i += 2 {
		m.Label = append(m.Label, &prompb.LabelPair{Name: &labels[i], Value: &labels[i+1]})
	}
	return &prompb.MetricFamily{Name: &name, Type: &kind, Metric: []*prompb.Metric{m}}
}

func message(node string, families ...*prompb.MetricFamily) *metricspb.StreamMetricsMessage {
	m := &metricspb.StreamMetricsMessage{EnvoyMetrics: families}
	if node != "" {
		m.Identifier = &metricspb.StreamMetricsMessage_Identifier{Node: &corepb.Node{Id: node, Cluster: "street"}}
	}
	return m
}

func bytesOf(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

const (
	counter = prompb.MetricType_COUNTER
	gauge   = prompb.MetricType_GAUGE
	summary = prompb.MetricType_SUMMARY
	tag     = "envoy.cluster_name"
	class   = "envoy.response_code_class"
)

// TestDecode: what is read of names with tags and without, and what is not.
func TestDecode(t *testing.T) {
	for _, c := range []struct {
		name    string
		family  *prompb.MetricFamily
		cluster string
		stat    stat
		want    int64
		garbage Garbage // numGarbage = none
	}{
		{"tags", family("cluster.upstream_cx_close_notify", counter, 7, 0, tag, "chat"), "chat", cxCloseNotify, 7, numGarbage},
		{"no tags", family("cluster.chat.upstream_cx_close_notify", counter, 7, 0), "chat", cxCloseNotify, 7, numGarbage},
		{"a dotted name without tags", family("cluster.chat.svc.local.upstream_cx_active", gauge, 7, 0), "chat.svc.local", cxActive, 7, numGarbage},
		{"a dotted name that tags cut", family("cluster.svc.local.upstream_cx_active", gauge, 7, 0, tag, "chat"), "chat.svc.local", cxActive, 7, numGarbage},
		{"Istio's label", family("cluster.upstream_rq_total", counter, 7, 0, "cluster_name", "outbound|80||a.b"), "outbound|80||a.b", rqTotal, 7, numGarbage},
		{"answers of 5xx with tags", family("cluster.upstream_rq_xx", counter, 7, 0, tag, "chat", class, "5"), "chat", rqErrors, 7, numGarbage},
		{"answers of 2xx with tags", family("cluster.upstream_rq_xx", counter, 7, 0, tag, "chat", class, "2"), "chat", rqErrors, 0, numGarbage},
		{"answers of 5xx without", family("cluster.chat.upstream_rq_5xx", counter, 7, 0), "chat", rqErrors, 7, numGarbage},
		{"external answers are counted already", family("cluster.external.upstream_rq_xx", counter, 7, 0, tag, "chat", class, "5"), "chat", rqErrors, 0, numGarbage},
		{"a summary", family("cluster.chat.upstream_rq_total", summary, 7, 0), "chat", rqTotal, 0, numGarbage},
		{"another cluster", family("cluster.other.upstream_rq_total", counter, 7, 0), "other", rqTotal, 0, numGarbage},
		{"a listener's", family("listener.chat.upstream_rq_total", counter, 7, 0), "chat", rqTotal, 0, numGarbage},
		{"no cluster at all", family("cluster.upstream_rq_total", counter, 7, 0), "", rqTotal, 0, numGarbage},
		{"negative", family("cluster.chat.upstream_rq_total", counter, -7, 0), "chat", rqTotal, 0, GarbageValue},
		{"NaN", family("cluster.chat.upstream_rq_total", counter, math.NaN(), 0), "chat", rqTotal, 0, GarbageValue},
		{"too large", family("cluster.chat.upstream_rq_total", counter, 1e300, 0), "chat", rqTotal, 0, GarbageValue},
	} {
		d := &decoder{table: newTable(set([]string{"chat", "chat.svc.local", "outbound|80||a.b"}))}
		d.table.begin(false)
		d.message(bytesOf(t, message("", c.family)))
		var got int64
		if r := d.table.rows[c.cluster]; r != nil {
			got = r.values[c.stat]
		}
		var garbage [numGarbage]uint64
		if c.garbage < numGarbage {
			garbage[c.garbage] = 1
		}
		if got != c.want || d.garbage != garbage {
			t.Errorf("%s: %d, garbage %v; want %d, %v", c.name, got, d.garbage, c.want, garbage)
		}
	}
}

// TestStatNames: the table of names and the lookup are one.
func TestStatNames(t *testing.T) {
	for s, name := range statNames() {
		if name == "" || statOf([]byte(name)) != stat(s) {
			t.Errorf("%d %q is found as %d", s, name, statOf([]byte(name)))
		}
	}
	if statOf([]byte("upstream_cx_activ")) != numStats || statOf(nil) != numStats {
		t.Error("a name that is none is found")
	}
}

// slow reads a message by its generated type; FuzzDecode holds wire.go
// against it.
func slow(m *metricspb.StreamMetricsMessage, watched map[string]struct{}) map[string][numStats]int64 {
	out := map[string][numStats]int64{}
	for _, f := range m.GetEnvoyMetrics() {
		name, isCluster := strings.CutPrefix(f.GetName(), "cluster.")
		if !isCluster {
			continue
		}
		in, last := "", name
		if i := strings.LastIndexByte(name, '.'); i >= 0 {
			in, last = name[:i], name[i+1:]
		}
		classes := last == "upstream_rq_xx"
		if classes {
			last = "upstream_rq_5xx"
		}
		s := statOf([]byte(last))
		if s == numStats {
			continue
		}
		for _, m := range f.GetMetric() {
			cluster, hasTag, class := in, false, ""
			for _, l := range m.GetLabel() {
				if l.GetValue() == "" {
					continue
				}
				switch l.GetName() {
				case "envoy.cluster_name", "cluster_name":
					cluster, hasTag = l.GetValue(), true
				case "envoy.response_code_class", "response_code_class":
					class = l.GetValue()
				}
			}
			if hasTag && in != "" {
				cluster += "." + in
			}
			if classes && class != "5" || m.Counter == nil && m.Gauge == nil {
				continue
			}
			value := m.GetCounter().GetValue()
			if m.Counter == nil {
				value = m.GetGauge().GetValue()
			}
			if _, ok := watched[cluster]; ok && value >= 0 && value <= most {
				row := out[cluster]
				row[s] = int64(value)
				out[cluster] = row
			}
		}
	}
	return out
}

// flush is what Envoy sends of clusters.
func flush(clusters, others int, tags bool, stamp int64) []*prompb.MetricFamily {
	var out []*prompb.MetricFamily
	for c := range clusters {
		name := fmt.Sprintf("cluster-%d", c)
		for s, stat := range statNames() {
			kind := counter
			if strings.Contains(stat, "active") || strings.HasPrefix(stat, "membership") {
				kind = gauge
			}
			if tags {
				out = append(out, family("cluster."+stat, kind, float64(100*c+s), stamp, tag, name))
			} else {
				out = append(out, family("cluster."+name+"."+stat, kind, float64(100*c+s), stamp))
			}
		}
		for i := range others {
			out = append(out, family(fmt.Sprintf("cluster.%s.upstream_other_statistic_%d", name, i), counter, 1, stamp))
		}
		out = append(out, family("cluster."+name+".upstream_rq_time", summary, 1, stamp))
	}
	return out
}

// FuzzDecode: no bytes make it panic; and what protobuf reads, it reads alike,
// unless fields are merged from several places, which no Envoy does.
func FuzzDecode(f *testing.F) {
	watched := set([]string{"chat", "cluster-0", "cluster-1", "cluster-0.x"})
	f.Add(bytesOf(f, message("one", flush(2, 1, true, 5)...)))
	f.Add(bytesOf(f, message("", flush(2, 1, false, 5)...)))
	f.Add(bytesOf(f, message("one", family("cluster.x.upstream_rq_xx", counter, 3, 1, tag, "cluster-0", class, "5"))))
	f.Fuzz(func(t *testing.T, b []byte) {
		d := &decoder{table: newTable(watched)}
		d.table.begin(false)
		d.message(b)
		for _, row := range d.table.end("n", instant) {
			if row.Connections < 0 || row.Connections > most {
				t.Fatalf("%+v", row)
			}
		}
		var m metricspb.StreamMetricsMessage
		if proto.Unmarshal(b, &m) != nil {
			return
		}
		again, err := proto.MarshalOptions{Deterministic: true}.Marshal(&m)
		if err != nil {
			t.Fatal(err)
		}
		d = &decoder{table: newTable(watched)}
		d.table.begin(false)
		d.message(again)
		want := slow(&m, watched)
		for cluster, values := range want {
			if r := d.table.rows[cluster]; r == nil || r.values != values {
				t.Fatalf("%s: %+v, want %v", cluster, r, values)
			}
		}
		if len(d.table.rows) > len(want) {
			t.Fatalf("%d clusters, want %d", len(d.table.rows), len(want))
		}
	})
}

// FuzzText: no page makes it panic or believe a number that is none.
func FuzzText(f *testing.F) {
	f.Add([]byte("cluster.chat.upstream_cx_active: 3\ncluster.chat.upstream_rq_time: P0(nan,1)\r\nserver.version: 1\n\nno colon"))
	f.Add([]byte("cluster.chat.upstream_cx_active: 99999999999999999999\ncluster.upstream_cx_total: 1\ncluster.chat.membership_total: -1"))
	f.Fuzz(func(t *testing.T, b []byte) {
		tab := newTable(set([]string{"chat"}))
		tab.begin(true)
		var garbage [numGarbage]uint64
		readText(b, tab, &garbage)
		for _, row := range tab.end("n", instant) {
			if row.ActiveConnections < 0 || row.ActiveConnections > most || row.Cluster != "chat" {
				t.Fatalf("%+v", row)
			}
		}
	})
}

// TestText: the lines of Envoy's page.
func TestText(t *testing.T) {
	tab := newTable(set([]string{"chat", "a.b"}))
	tab.begin(true)
	var garbage [numGarbage]uint64
	readText([]byte("cluster.chat.upstream_cx_active: 3\r\ncluster.a.b.upstream_cx_close_notify: 12\ncluster.chat.upstream_rq_time: P0(nan,1.0)\n"+
		"cluster.chat.external.upstream_rq_5xx: 9\ncluster.chat.membership_total: three\nnonsense\ncluster.chat.upstream_rq_total: 18446744073709551615\ncluster.other.upstream_rq_total: 1"), tab, &garbage)
	rows := tab.end("n", instant)
	if len(rows) != 2 || rows[0].ActiveConnections != 3 || rows[0].Errors != 0 || rows[1].Cluster != "a.b" || rows[1].CloseNotify != 12 {
		t.Errorf("%+v", rows)
	}
	if garbage[GarbageValue] != 2 || garbage[GarbageForm] != 1 {
		t.Errorf("garbage %v", garbage)
	}
}
