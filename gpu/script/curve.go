package script

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weirproxy/weir/gpu"
)

// errHang says that a look does not come back.
var errHang = errors.New("the script says that this look hangs")

// Curve is a checked script. The zero value knows nothing at any time.
type Curve struct {
	points      []point
	interpolate bool
	repeat      bool
	gpus        int
	engine      bool
}

// point is the state from an instant on.
type point struct {
	At      offset `yaml:"at"`
	Util    ratio  `yaml:"util"`
	KV      ratio  `yaml:"kv"`
	Waiting count  `yaml:"waiting"`
	Running count  `yaml:"running"`
	Cards   []card `yaml:"cards"`
	Fail    bool   `yaml:"fail"`
	Hang    bool   `yaml:"hang"`
}

// offset is a time since the start of the script.
type offset struct {
	time.Duration
	line int
}

// UnmarshalYAML reads a duration with its unit.
func (o *offset) UnmarshalYAML(n *yaml.Node) error {
	d, err := time.ParseDuration(n.Value)
	if err != nil || d < 0 {
		return fmt.Errorf("line %d: at must be a duration >= 0s, got %q", n.Line, n.Value)
	}
	*o = offset{d, n.Line}
	return nil
}

// reading is a value of a point; NaN stands for a reading that is no number.
type reading struct {
	v   float64
	set bool
}

// ratio is a reading of 0..1 or a percentage.
type ratio struct{ reading }

// UnmarshalYAML reads "0.3", "30%" or "nan".
func (r *ratio) UnmarshalYAML(n *yaml.Node) error {
	text, percent := strings.CutSuffix(n.Value, "%")
	unit := 1.0
	if percent {
		unit = 100
	}
	return r.read(n, text, unit, 1, "a ratio of 0..1, a percentage of 0%..100% or nan")
}

// count is a reading of 0 or more.
type count struct{ reading }

// UnmarshalYAML reads "12" or "nan".
func (c *count) UnmarshalYAML(n *yaml.Node) error {
	return c.read(n, n.Value, 1, maxCount, "a number of 0..1e7 or nan")
}

// maxCount is the largest number of requests of a script.
const maxCount = 1e7

func (r *reading) read(n *yaml.Node, text string, unit, top float64, form string) error {
	v, err := strconv.ParseFloat(strings.TrimPrefix(text, "."), 64) // YAML writes .nan
	if strings.HasPrefix(text, ".") && !math.IsNaN(v) {
		v, err = strconv.ParseFloat(text, 64)
	}
	if v /= unit; err != nil || v < 0 || v > top {
		return fmt.Errorf("line %d: must be %s, got %q", n.Line, form, n.Value)
	}
	*r = reading{v, true}
	return nil
}

// newCurve checks a document.
func newCurve(d document) (Curve, error) {
	c := Curve{points: d.Points, interpolate: d.Interpolate, repeat: d.Repeat, gpus: 1}
	if d.GPUs != nil {
		if *d.GPUs < 0 || *d.GPUs > 1_000_000 {
			return Curve{}, fmt.Errorf("script: gpus must be in 0..1000000, got %d", *d.GPUs)
		}
		c.gpus = *d.GPUs
	}
	if len(c.points) == 0 {
		return Curve{}, errors.New("script: points must not be empty")
	}
	for i, p := range c.points {
		if p.At.line == 0 {
			return Curve{}, fmt.Errorf("script: point %d: at is missing", i+1)
		}
	}
	if c.points[0].At.Duration != 0 {
		return Curve{}, fmt.Errorf("script: line %d: the first point must be at 0s, got %v", c.points[0].At.line, c.points[0].At)
	}
	for i, p := range c.points {
		if i > 0 && p.At.Duration <= c.points[i-1].At.Duration {
			return Curve{}, fmt.Errorf("script: line %d: at must be later than the point before (%v), got %v", p.At.line, c.points[i-1].At, p.At)
		}
		if err := checkCards(p); err != nil {
			return Curve{}, fmt.Errorf("script: line %d: %w", p.At.line, err)
		}
		c.engine = c.engine || p.KV.set || p.Waiting.set || p.Running.set
	}
	return c, nil
}

// At is the curve at a time since its start: a sample without name and
// instant, or the failure that the script wants.
func (c Curve) At(d time.Duration) (gpu.Sample, error) {
	if len(c.points) == 0 {
		return gpu.Sample{}, nil
	}
	d = max(d, 0)
	if last := c.points[len(c.points)-1].At.Duration; c.repeat && last > 0 {
		d %= last
	}
	i, found := slices.BinarySearchFunc(c.points, d, func(p point, d time.Duration) int {
		return int(min(max(p.At.Duration-d, -1), 1))
	})
	if !found {
		i--
	}
	p := c.points[i]
	switch {
	case p.Hang:
		return gpu.Sample{}, errHang
	case p.Fail:
		return gpu.Sample{}, ErrScripted
	}
	next, share := p, 0.0
	if c.interpolate && i+1 < len(c.points) {
		next = c.points[i+1]
		share = float64(d-p.At.Duration) / float64(next.At.Duration-p.At.Duration)
	}
	var s gpu.Sample
	s.Util = between(p.Util.reading, next.Util.reading, share, &s.Dropped)
	s.KV = between(p.KV.reading, next.KV.reading, share, &s.Dropped)
	s.Waiting = between(p.Waiting.reading, next.Waiting.reading, share, &s.Dropped)
	s.Running = between(p.Running.reading, next.Running.reading, share, &s.Dropped)
	if p.Util.set {
		s.GPUs = c.gpus
	}
	if len(p.Cards) > 0 {
		deal(&s, p.Cards)
	}
	return s, nil
}

// between is the value a share of the way from a to b, or a's where b has
// none. What is no number is dropped and counted.
func between(a, b reading, share float64, dropped *int) gpu.Value {
	switch {
	case !a.set:
		return gpu.Value{}
	case math.IsNaN(a.v):
		*dropped++
		return gpu.Value{}
	case !b.set || math.IsNaN(b.v):
		return gpu.Some(a.v)
	}
	return gpu.Some(a.v + (b.v-a.v)*share)
}
