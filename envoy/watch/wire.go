package watch

import (
	"bytes"
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

// A StreamMetricsMessage is read from its bytes. Envoy sends each statistic it
// has used as a family of its own, some hundred for each cluster, of which 18
// are wanted: made into messages, they would cost the process that decides
// more than the decisions (BenchmarkDecode).
//
//	StreamMetricsMessage  1 identifier {1 node}, 2 envoy_metrics (repeated MetricFamily)
//	Node                  1 id, 2 cluster
//	MetricFamily          1 name, 3 type, 4 metric (repeated)
//	Metric                1 label (repeated {1 name, 2 value}), 2 gauge {1 value}, 3 counter {1 value}, 6 timestamp_ms
//
// Sources: envoy/service/metrics/v3/metrics_service.proto,
// io/prometheus/client/metrics.proto.

// fields calls do with each field of a message; val is the value of a field of
// bytes, num that of a varint or a fixed one. False = it is no message.
func fields(b []byte, do func(n protowire.Number, val []byte, num uint64)) bool {
	for len(b) > 0 {
		n, kind, size := protowire.ConsumeTag(b)
		if size < 0 {
			return false
		}
		b = b[size:]
		var val []byte
		var num uint64
		switch kind {
		case protowire.BytesType:
			val, size = protowire.ConsumeBytes(b)
		case protowire.VarintType:
			num, size = protowire.ConsumeVarint(b)
		case protowire.Fixed64Type:
			num, size = protowire.ConsumeFixed64(b)
		default:
			size = protowire.ConsumeFieldValue(n, kind, b)
		}
		if size < 0 {
			return false
		}
		b = b[size:]
		do(n, val, num)
	}
	return true
}

// Node is who an Envoy says it is.
type Node struct {
	ID, Cluster string
}

// decoder reads messages of one stream into a table. Not safe for concurrent
// use.
type decoder struct {
	table   *table
	garbage [numGarbage]uint64
	node    Node
	named   bool // the message has a node

	// of the metric that is read
	cluster []byte
	class   []byte // of an answer's status
}

// message reads one message. What cannot be used is counted, and the rest is
// read.
func (d *decoder) message(b []byte) {
	d.named, d.node = false, Node{}
	if !fields(b, func(n protowire.Number, val []byte, _ uint64) {
		switch n {
		case 1:
			d.identifier(val)
		case 2:
			d.family(val)
		}
	}) {
		d.garbage[GarbageForm]++
	}
}

func (d *decoder) identifier(b []byte) {
	ok := fields(b, func(n protowire.Number, node []byte, _ uint64) {
		if n != 1 {
			return
		}
		d.named = true
		if !fields(node, func(n protowire.Number, val []byte, _ uint64) {
			switch n {
			case 1:
				d.node.ID = string(val)
			case 2:
				d.node.Cluster = string(val)
			}
		}) {
			d.garbage[GarbageForm]++
		}
	})
	if !ok {
		d.garbage[GarbageForm]++
	}
}

// maxStatName is the longest name that is looked at: of the names of clusters,
// policies have 256 bytes at most.
const maxStatName = 1024

// family reads a MetricFamily. Its name comes first on the wire of every
// writer that was seen, and must: what comes before it is not read.
func (d *decoder) family(b []byte) {
	var in []byte // the cluster, as far as it is in the name
	s := numStats
	classes := false
	ok := fields(b, func(n protowire.Number, val []byte, _ uint64) {
		switch {
		case n == 1 && len(val) > maxStatName:
			s = numStats
		case n == 1:
			in, s = parts(val)
			if s == numStats && bytes.HasSuffix(val, []byte(".upstream_rq_xx")) {
				in, s = parts(append(bytes.Clone(val[:len(val)-len("xx")]), "5xx"...))
				classes = true
			}
		case n == 4 && s < numStats:
			d.metric(in, s, classes, val)
		}
	})
	if !ok {
		d.garbage[GarbageForm]++
	}
}

// metric reads a Metric: a counter or a gauge; a summary or a histogram of
// such a name is none of ours.
func (d *decoder) metric(in []byte, s stat, classes bool, b []byte) {
	d.cluster, d.class = nil, nil
	var value float64
	var stamp int64
	found := false
	ok := fields(b, func(n protowire.Number, val []byte, num uint64) {
		switch n {
		case 1:
			d.label(val)
		case 2, 3:
			found = true
			value = d.value(val)
		case 6:
			stamp = int64(num)
		}
	})
	switch {
	case !ok:
		d.garbage[GarbageForm]++
		return
	case !found || classes && string(d.class) != "5":
		return
	case !(value >= 0 && value <= most):
		d.garbage[GarbageValue]++
		return
	}
	d.table.stamp = max(d.table.stamp, stamp)
	cluster, rest := d.cluster, in
	if cluster == nil {
		cluster, rest = in, nil
	}
	if cluster != nil && len(cluster) <= maxStatName {
		d.table.put(cluster, rest, s, int64(value))
	}
}

func (d *decoder) value(b []byte) float64 {
	var value float64
	if !fields(b, func(n protowire.Number, _ []byte, num uint64) {
		if n == 1 {
			value = math.Float64frombits(num)
		}
	}) {
		return math.NaN()
	}
	return value
}

// label keeps the two tags that are of use.
func (d *decoder) label(b []byte) {
	var name, value []byte
	if !fields(b, func(n protowire.Number, val []byte, _ uint64) {
		switch n {
		case 1:
			name = val
		case 2:
			value = val
		}
	}) {
		d.garbage[GarbageForm]++
		return
	}
	if len(value) == 0 {
		return
	}
	switch string(name) {
	case "envoy.cluster_name", "cluster_name": // the second: Istio's
		d.cluster = value
	case "envoy.response_code_class", "response_code_class":
		d.class = value
	}
}
