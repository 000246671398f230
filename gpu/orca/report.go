package orca

import (
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	orcav3 "github.com/cncf/xds/go/xds/data/orca/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/weirproxy/weir/gpu"
)

// MaxReport bounds one report, in bytes of the header or message.
const MaxReport = 16 << 10

// maxCount is the largest number of requests that is believed.
const maxCount = 1e7

// Errors of a report, wrapped with the source's name.
var (
	ErrTooLarge = errors.New("load report is larger than 16 KiB")
	ErrNoSignal = errors.New("no known metric in the load reports")
)

// signal is what a metric means to the gauge.
type signal uint8

const (
	noSignal signal = iota
	kvUse
	waiting
	running
	cpuUse
)

// The names of a report: of a field, and of the map that engines put their own
// metrics in, which the text form writes before each.
const (
	cpuField   = "cpu_utilization"
	namedField = "named_metrics."
)

// named is the signal of a named metric.
func named(name string) signal {
	switch name {
	case "kv_cache_usage_perc", // vLLM
		"kv_cache_utilization": // Triton with TensorRT-LLM
		return kvUse
	case "num_requests_waiting":
		return waiting
	case "num_requests_running":
		return running
	}
	return noSignal
}

// reading is what one report says.
type reading struct {
	kv, waiting, running, load gpu.Value

	known  bool // a known metric was there, readable or not
	faults gpu.Faults
}

// take judges one value. ORCA lets the CPU's go beyond 1, past a soft limit.
func (r *reading) take(s signal, v float64) {
	if s == noSignal {
		return
	}
	r.known = true
	top := float64(maxCount)
	if s == kvUse {
		top = 1
	}
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		r.faults[gpu.FaultNumber]++
	case v < 0 || v > top:
		r.faults[gpu.FaultRange]++
	case s == kvUse:
		r.kv = gpu.Some(max(r.kv.V, v))
	case s == waiting:
		r.waiting = gpu.Some(r.waiting.V + v)
	case s == running:
		r.running = gpu.Some(r.running.V + v)
	case s == cpuUse:
		r.load = gpu.Some(max(r.load.V, min(v, 1)))
	}
}

// parse reads a report in a header.
func parse(value string) (reading, error) {
	if len(value) > MaxReport {
		return reading{}, gpu.Missed(gpu.FaultSize, ErrTooLarge)
	}
	var r reading
	var err error
	switch form, rest, _ := strings.Cut(value, " "); form {
	case "TEXT":
		r, err = parseText(rest)
	case "JSON":
		r, err = parseJSON(rest)
	case "BIN":
		r, err = parseBinary(rest)
	default:
		err = fmt.Errorf("load report begins with %.20q, want TEXT, JSON or BIN", form)
	}
	if err != nil {
		return reading{}, gpu.Missed(gpu.FaultForm, err)
	}
	return r, nil
}

// parseText reads "name=value, name=value".
func parseText(text string) (reading, error) {
	const blank = " \t"
	var r reading
	for pair := range strings.SplitSeq(text, ",") {
		if pair = strings.Trim(pair, blank); pair == "" {
			continue
		}
		name, value, ok := strings.Cut(pair, "=")
		if name = strings.TrimRight(name, blank); !ok || name == "" {
			return reading{}, fmt.Errorf("load report: %.40q is no name=value", pair)
		}
		s := noSignal
		if inner, ok := strings.CutPrefix(name, namedField); ok {
			s = named(inner)
		} else if name == cpuField {
			s = cpuUse
		}
		if s == noSignal {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimLeft(value, blank), 64)
		if err != nil {
			v = math.NaN()
		}
		r.take(s, v)
	}
	return r, nil
}

// parseJSON reads the JSON of the protobuf message.
func parseJSON(text string) (reading, error) {
	var m orcav3.OrcaLoadReport
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal([]byte(text), &m); err != nil {
		return reading{}, errors.New("load report as JSON: " + clip(err.Error()))
	}
	return read(&m), nil
}

// clip bounds what is told of a report.
func clip(s string) string { return s[:min(len(s), 200)] }

// parseBinary reads the protobuf message in base64, padded or not.
func parseBinary(text string) (reading, error) {
	data, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(text, "="))
	if err != nil {
		return reading{}, fmt.Errorf("load report in base64: %w", err)
	}
	var m orcav3.OrcaLoadReport
	if err := proto.Unmarshal(data, &m); err != nil {
		return reading{}, fmt.Errorf("load report: %w", err)
	}
	return read(&m), nil
}

// read takes a message's values. A field that is 0 was not said, or was 0: the
// form does not tell.
func read(m *orcav3.OrcaLoadReport) reading {
	var r reading
	if v := m.GetCpuUtilization(); v != 0 {
		r.take(cpuUse, v)
	}
	for name, v := range m.GetNamedMetrics() {
		r.take(named(name), v)
	}
	return r
}
