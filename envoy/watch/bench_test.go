package watch

import (
	"fmt"
	"testing"
	"time"

	metricspb "github.com/envoyproxy/go-control-plane/envoy/service/metrics/v3"
	"google.golang.org/protobuf/proto"
)

// Volumes that weir is made for: 50 Envoys that tell of 1,000 clusters once a
// second. A second of them must cost a small part of a core.
const (
	benchEnvoys   = 50
	benchClusters = 1000
)

// BenchmarkObserve: one row of one Envoy and cluster, whose counters moved.
func BenchmarkObserve(b *testing.B) {
	names := make([]string, benchClusters)
	for i := range names {
		names[i] = fmt.Sprintf("cluster-%d", i)
	}
	core := NewCore(defaults(), names, instant)
	rows := make([][]Counters, benchEnvoys)
	for e := range rows {
		for _, name := range names {
			rows[e] = append(rows[e], Counters{Node: fmt.Sprint("envoy-", e), Cluster: name, ActiveConnections: 8, Connections: 8, ActiveRequests: 20, Members: 4, Healthy: 4})
		}
	}
	now, turn := instant, 0
	b.ReportAllocs()
	for b.Loop() {
		e := turn % benchEnvoys
		if turn++; e == 0 {
			now = now.Add(time.Second)
		}
		for i := range rows[e] {
			r := &rows[e][i]
			r.At = now
			r.Requests += 20
			if i%50 == 0 {
				r.CloseNotify, r.Destroyed, r.Connections = r.CloseNotify+1, r.Destroyed+1, r.Connections+1
			}
		}
		core.Observe(now, rows[e])
	}
	each := float64(b.Elapsed().Nanoseconds()) / float64(b.N) / benchClusters
	b.ReportMetric(each, "ns/row")
	b.ReportMetric(each*benchEnvoys*benchClusters/1e9*100, "%core/s")
}

// BenchmarkStep: judging 1,000 clusters of 50 Envoys each, five times a second.
func BenchmarkStep(b *testing.B) {
	names := make([]string, benchClusters)
	for i := range names {
		names[i] = fmt.Sprintf("cluster-%d", i)
	}
	core, now := NewCore(defaults(), names, instant), instant
	feed := func() {
		now = now.Add(time.Second)
		for e := range benchEnvoys {
			var rows []Counters
			for i, name := range names {
				rows = append(rows, Counters{Node: fmt.Sprint("envoy-", e), Cluster: name, At: now, ActiveConnections: 8, Connections: 8, CloseNotify: int64(now.Sub(instant)/time.Second) * int64(i%10/9)})
			}
			core.Observe(now, rows)
		}
	}
	for range 3 {
		feed()
	}
	b.ReportAllocs()
	for b.Loop() {
		core.Step(now)
	}
	b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N)*5/10, "%core/s")
}

// BenchmarkDecode: one flush of an Envoy with 1,000 clusters: what is wanted
// alone, as with an inclusion list, and beside eighty others of each cluster.
func BenchmarkDecode(b *testing.B) {
	for _, c := range []struct {
		name   string
		others int
		tags   bool
	}{{"wanted", 0, false}, {"wanted, tags", 0, true}, {"all", 80, false}} {
		b.Run(c.name, func(b *testing.B) {
			raw := bytesOf(b, message("", flush(benchClusters, c.others, c.tags, 5)...))
			var names []string
			for i := range benchClusters {
				names = append(names, fmt.Sprintf("cluster-%d", i))
			}
			d := &decoder{table: newTable(set(names))}
			var wire frame // as the stream does
			b.SetBytes(int64(len(raw)))
			b.ReportAllocs()
			for b.Loop() {
				if err := proto.Unmarshal(raw, &wire); err != nil {
					b.Fatal(err)
				}
				d.table.begin(false)
				d.message(wire.bytes)
				d.table.stamp = 0
				if got := len(d.table.end("n", instant)); got != benchClusters {
					b.Fatal(got)
				}
			}
			each := float64(b.Elapsed().Nanoseconds()) / float64(b.N) / float64(benchClusters*(int(numStats)+1+c.others))
			b.ReportMetric(each, "ns/family")
		})
	}
}

// BenchmarkDecodeGenerated: the same by protobuf's generated types, for
// comparison; they are why wire.go is.
func BenchmarkDecodeGenerated(b *testing.B) {
	raw := bytesOf(b, message("", flush(benchClusters, 0, true, 5)...))
	b.SetBytes(int64(len(raw)))
	b.ReportAllocs()
	for b.Loop() {
		var m metricspb.StreamMetricsMessage
		if err := proto.Unmarshal(raw, &m); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkText: a page of 1,000 clusters.
func BenchmarkText(b *testing.B) {
	var page []byte
	var names []string
	for i := range benchClusters {
		name := fmt.Sprintf("cluster-%d", i)
		names = append(names, name)
		for s, stat := range statNames() {
			page = fmt.Appendf(page, "cluster.%s.%s: %d\n", name, stat, 1000*i+s)
		}
	}
	tab := newTable(set(names))
	b.SetBytes(int64(len(page)))
	b.ReportAllocs()
	for b.Loop() {
		var garbage [numGarbage]uint64
		tab.begin(true)
		readText(page, tab, &garbage)
		if got := len(tab.end("n", instant)); got != benchClusters {
			b.Fatal(got, garbage)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(benchClusters*int(numStats)), "ns/line")
}
