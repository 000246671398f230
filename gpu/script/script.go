// Package script is a telemetry source that plays a curve from a YAML file:
// for tests, demos and simulations of GPUs and engines that behave well or
// badly.
//
//	interpolate: true          # values move in a line from point to point; default false: they jump
//	repeat: true               # start again after the last point; default false: the last one stays
//	gpus: 4                    # behind the utilisation; default 1 when there is any
//	points:                    # in order of time; the first one at 0s
//	  - {at: 0s, util: 30%, kv: 0.2, waiting: 0, running: 3}
//	  - {at: 10s, util: 95%, kv: 0.8, waiting: 12}
//	  - {at: 20s, fail: true}  # looks fail until the next point
//	  - {at: 25s, hang: true}  # looks do not come back until their time is up
//	  - {at: 30s, util: nan}   # a reading that is no number: dropped and counted
//	  - {at: 40s}              # the source answers and knows nothing
//	  - at: 50s                # single GPUs or MIG instances: held until the next point, never interpolated
//	    cards: [{id: GPU-0, index: 0, util: 80%, memoryUsed: 7e10, xid: 79}, {id: GPU-1, index: 1, instance: 2, active: 0.4}]
//
// A value that a point does not name is absent from that point on. util and
// kv are ratios, 0..1 or a percentage; waiting and running are counts. A card
// has gpu.Card's figures in its units (card.go); where a point has cards and no
// util, util is their mean. The script also plays the reader of GPUs to
// weir-gpu-agent (Cards).
package script

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/policy"
)

// ErrScripted is the failure of a look that the script wants to fail.
var ErrScripted = errors.New("the script says that this look fails")

// maxFile bounds a script's size.
const maxFile = 1 << 20

// Source plays a script. Its time begins with the first look. It is safe for
// concurrent use.
type Source struct {
	name  string
	curve Curve
	once  sync.Once
	start time.Time
}

var _ gpu.Source = (*Source)(nil)

// Load makes a source of a file.
func Load(name, path string) (*Source, error) {
	text, err := policy.ReadFile(path, maxFile)
	if err != nil {
		return nil, fmt.Errorf("telemetry source %s: %w", name, err)
	}
	c, err := Parse(text)
	if err != nil {
		return nil, fmt.Errorf("telemetry source %s: %s: %w", name, path, err)
	}
	return New(name, c), nil
}

// New makes a source of a curve.
func New(name string, c Curve) *Source { return &Source{name: name, curve: c} }

// Name is the configured name.
func (s *Source) Name() string { return s.name }

// Engine reports whether the curve has an engine's signals.
func (s *Source) Engine() bool { return s.curve.engine }

// Sample is the curve now.
func (s *Source) Sample(ctx context.Context) (gpu.Sample, error) {
	if err := ctx.Err(); err != nil {
		return gpu.Sample{}, err
	}
	now := time.Now()
	s.once.Do(func() { s.start = now })
	sample, err := s.curve.At(now.Sub(s.start))
	if errors.Is(err, errHang) {
		<-ctx.Done()
		return gpu.Sample{}, ctx.Err()
	}
	if err != nil {
		return gpu.Sample{}, err
	}
	sample.Source, sample.At = s.name, now
	return sample, nil
}

// Cards are the GPUs now; without cards in the script, as many alike as it has
// GPUs.
func (s *Source) Cards(ctx context.Context) ([]gpu.Card, error) {
	sample, err := s.Sample(ctx)
	if err != nil || len(sample.Cards) > 0 {
		return sample.Cards, err
	}
	cards := make([]gpu.Card, sample.GPUs)
	for i := range cards {
		cards[i] = gpu.Card{ID: fmt.Sprintf("GPU-script-%d", i), Index: strconv.Itoa(i), Util: sample.Util}
	}
	return cards, nil
}

// Close does nothing: a script holds nothing open.
func (s *Source) Close() error { return nil }

// document is the file.
type document struct {
	Interpolate bool    `yaml:"interpolate"`
	Repeat      bool    `yaml:"repeat"`
	GPUs        *int    `yaml:"gpus"`
	Points      []point `yaml:"points"`
}

// Parse reads a script. Unknown keys, values out of bounds and points out of
// order are errors.
func Parse(text []byte) (Curve, error) {
	if len(text) > maxFile {
		return Curve{}, fmt.Errorf("script is larger than %d bytes", maxFile)
	}
	var d document
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	if err := dec.Decode(&d); err != nil {
		return Curve{}, fmt.Errorf("script: %w", err)
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return Curve{}, errors.New("script: more than one document")
	}
	return newCurve(d)
}
