package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

var self = os.Getpid()

// results is bench/results.json. The first five keys are the figures to hold
// a change against: CPU ratios to the no-op server (of two forms of identity
// the dearer), heap objects of one Check, and Redis round trips of one
// admission with the memory store.
type results struct {
	CheckCPU       float64 `json:"check_cpu"`
	HeadersBodyCPU float64 `json:"headers_body_cpu"`
	FullStreamCPU  float64 `json:"full_stream_cpu"`
	AllocsCheck    float64 `json:"allocs_check"`
	RedisTrips     int     `json:"redis_trips"`

	Shapes      []shapeResult `json:"shapes"`
	Allocations struct {
		Weir allocations `json:"weir"`
		Noop allocations `json:"noop"`
	} `json:"allocations_of_a_check"`
	Trips    trips             `json:"redis_trips_counted"`
	Rounds   int               `json:"rounds"`
	Date     string            `json:"date"`
	Machine  map[string]string `json:"machine"`
	Versions map[string]string `json:"versions"`
	Command  string            `json:"command"`
}

// shapeResult is one shape: the median ratio of the rounds that count, their
// spread (upper less lower quartile, over the median), and the medians in µs of
// CPU a call.
type shapeResult struct {
	Name    string  `json:"name"`
	Ratio   float64 `json:"ratio"`
	Spread  float64 `json:"spread"`
	WeirUS  float64 `json:"weir_us"`
	NoopUS  float64 `json:"noop_us"`
	Rounds  int     `json:"rounds"`
	Foreign float64 `json:"foreign_cpus"` // used by others meanwhile, median
}

type allocations struct {
	Objects float64 `json:"objects"`
	Bytes   float64 `json:"bytes"`
}

// trips is how redis_trips was counted.
type trips struct {
	MemoryCalls       int64   `json:"memory_calls"`       // under way while connections were counted
	MemoryConnections int     `json:"memory_connections"` // that weir had opened
	RedisControl      float64 `json:"redis_control"`      // trips a call with the Redis store; 0 = no redis-server here
}

func newResults(o *options) *results {
	r := &results{
		Date:    time.Now().UTC().Format(time.RFC3339),
		Machine: map[string]string{"cpu": cpuModel(), "cpus": fmt.Sprint(runtime.NumCPU()), "kernel": firstLine("/proc/sys/kernel/osrelease"), "os": runtime.GOOS + "/" + runtime.GOARCH},
		Command: strings.Join(append([]string{"bench"}, os.Args[1:]...), " "),
	}
	r.Versions = map[string]string{"go": runtime.Version()}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, d := range info.Deps {
			switch d.Path {
			case "google.golang.org/grpc", "google.golang.org/protobuf", "github.com/envoyproxy/go-control-plane/envoy":
				r.Versions[d.Path] = d.Version
			}
		}
	}
	if out, err := exec.Command("git", "describe", "--always", "--dirty").Output(); err == nil { // else it is not known
		r.Versions["weir"] = strings.TrimSpace(string(out))
	}
	return r
}

// add takes the rounds of a shape that count.
func (r *results) add(name string, list []sample) {
	ratios := each(list, sample.ratio)
	s := shapeResult{
		Name: name, Rounds: len(list), Ratio: round(median(ratios)),
		Spread:  round((quantile(ratios, 0.75) - quantile(ratios, 0.25)) / median(ratios)),
		WeirUS:  round(median(each(list, func(s sample) float64 { return s.weir }))),
		NoopUS:  round(median(each(list, func(s sample) float64 { return s.noop }))),
		Foreign: round(median(each(list, func(s sample) float64 { return s.foreign }))),
	}
	r.Shapes = append(r.Shapes, s)
	kind, _, _ := strings.Cut(name, "/")
	switch kind {
	case "check":
		r.CheckCPU = max(r.CheckCPU, s.Ratio)
	case "headers_body":
		r.HeadersBodyCPU = max(r.HeadersBodyCPU, s.Ratio)
	case "full_stream":
		r.FullStreamCPU = max(r.FullStreamCPU, s.Ratio)
	}
}

// print shows the results as a table.
func (r *results) print(w io.Writer) {
	fmt.Fprintf(w, "%-22s %10s %10s %8s %8s %8s\n", "shape", "weir µs", "noop µs", "ratio", "spread", "others")
	for _, s := range r.Shapes {
		fmt.Fprintf(w, "%-22s %10.1f %10.1f %8.2f %7.0f%% %8.2f\n", s.Name, s.WeirUS, s.NoopUS, s.Ratio, 100*s.Spread, s.Foreign)
	}
	a := r.Allocations
	fmt.Fprintf(w, "a Check allocates      %.0f objects, %.0f bytes (no-op: %.0f, %.0f)\n", a.Weir.Objects, a.Weir.Bytes, a.Noop.Objects, a.Noop.Bytes)
	control := "no redis-server for a control"
	if r.Trips.RedisControl > 0 {
		control = fmt.Sprintf("control: %.2f with the Redis store", r.Trips.RedisControl)
	}
	fmt.Fprintf(w, "Redis trips a call     %d with the memory store (%s)\n", r.RedisTrips, control)
}

// write replaces the file.
func (r *results) write(path string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}

func each(list []sample, f func(sample) float64) []float64 {
	out := make([]float64, len(list))
	for i, s := range list {
		out[i] = f(s)
	}
	return out
}

func median(v []float64) float64 { return quantile(v, 0.5) }

// quantile interpolates between the two values next to it.
func quantile(v []float64, q float64) float64 {
	s := slices.Sorted(slices.Values(v))
	at := q * float64(len(s)-1)
	low := int(at)
	high := min(low+1, len(s)-1)
	return s[low] + (s[high]-s[low])*(at-float64(low))
}

// round keeps three decimals; more would pretend to know.
func round(v float64) float64 { return math.Round(v*1000) / 1000 }

func cpuModel() string {
	data, _ := os.ReadFile("/proc/cpuinfo") // "" where there is none
	for line := range strings.Lines(string(data)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

func firstLine(path string) string {
	data, _ := os.ReadFile(path) // "" where there is none
	line, _, _ := strings.Cut(string(data), "\n")
	return line
}
