package simulate

import (
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weirproxy/weir/policy"
)

// Bounds of a scenario, so that no file can ask for more than a machine has.
const (
	longest  = 7 * 24 * time.Hour
	mostRate = 1_000_000 // requests a second
	mostSent = 1e8       // first sends of a run, traces not counted
)

// LoadFile reads and checks a scenario file.
func LoadFile(path string) (*Scenario, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("scenario: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxScenario+1))
	if err != nil {
		return nil, fmt.Errorf("scenario: %w", err)
	}
	return Parse(path, data)
}

// Parse reads and checks a scenario. file stands in errors and is what names
// in it are relative to. The error is policy.Errors: all violations at once,
// in the order of the file.
func Parse(file string, data []byte) (*Scenario, error) {
	r := &reader{file: file}
	s := &Scenario{
		Name:     stem(file),
		File:     file,
		Seed:     1,
		Tenants:  Tenants{Name: "tenant", Count: 1, Keys: 1},
		Clients:  []Client{{Share: 1, Patience: time.Minute, Tries: 10, Early: 1}},
		Policies: []string{"default", "source"},
	}
	if root := r.document(data); root != nil {
		r.scenario(root, s)
	}
	if err := r.result(); err != nil {
		return nil, err
	}
	return s, nil
}

// stem is a file's name without directory and extension.
func stem(file string) string {
	base := filepath.Base(file)
	return strings.TrimSuffix(base, filepath.Ext(base))
}

func (r *reader) scenario(root *yaml.Node, s *Scenario) {
	var topology, overlay *yaml.Node
	var policies []string
	var clients []Client
	has := r.object(root, "", map[string]value{
		"name":     r.text(&s.Name),
		"seed":     whole(r, &s.Seed, 0, math.MaxInt64),
		"duration": r.duration(&s.Duration, time.Second, longest),
		"warmup":   r.duration(&s.Warmup, 0, time.Hour),
		"capacity": r.number(&s.Capacity, 0.001, mostRate),
		"topology": r.keep(&topology, true),
		"overlay":  r.keep(&overlay, false),
		"engines":  func(n *yaml.Node, at string) { s.Engines = r.engines(n, at) },
		"arrivals": listOf(r, &s.Arrivals, 1, 100, r.arrival),
		"requests": listOf(r, &s.Requests, 1, 100, r.mix),
		"tenants":  func(n *yaml.Node, at string) { s.Tenants = r.tenants(n, at) },
		"clients":  listOf(r, &clients, 1, 100, r.client),
		"reload":   listOf(r, &s.Reloads, 0, 1000, r.reload),
		"clock":    listOf(r, &s.Clock, 0, 1000, r.clockStep),
		"policies": listOf(r, &policies, 1, 32, func(n *yaml.Node, at string) (name string) {
			r.text(&name)(n, at)
			return name
		}),
	}, "duration", "engines", "arrivals", "requests")
	s.Overlay = unite(topology, overlay)
	if clients != nil {
		s.Clients = clients
		sumsToOne(r, has["clients"], "clients", clients, shareOfClient)
	}
	if policies != nil {
		s.Policies = policies
	}
	if s.Requests != nil {
		sumsToOne(r, has["requests"], "requests", s.Requests, shareOfMix)
	}
	if len(r.errs) == 0 { // what holds between sections
		r.fit(has, s)
	}
}

// keep takes a part of a policy as it stands, for the policy's own parser:
// what there is to share out (capacity), or anything else.
func (r *reader) keep(v **yaml.Node, capacity bool) value {
	keys := []string{"models", "pools", "tenants", "tiers"}
	return func(n *yaml.Node, at string) {
		if n.Kind != yaml.MappingNode {
			r.report(n, at, n.Value, "must be a mapping (key: value) as in a policy")
			return
		}
		for i := 0; i < len(n.Content); i += 2 {
			k := n.Content[i]
			switch belongs := slices.Contains(keys, k.Value); {
			case capacity && !belongs:
				r.report(k, join(at, k.Value), "", "unknown key; the keys here are "+strings.Join(keys, ", ")+"; other keys of a policy belong to overlay")
			case !capacity && belongs:
				r.report(k, join(at, k.Value), "", "belongs to topology")
			}
		}
		*v = n
	}
}

// sumsToOne holds that shares are of one whole.
func sumsToOne[T any](r *reader, n *yaml.Node, at string, list []T, share func(*T) float64) {
	sum := 0.0
	for i := range list {
		sum += share(&list[i])
	}
	if math.Abs(sum-1) > 1e-6 && n != nil {
		r.report(n, at, "", fmt.Sprintf("the shares must add up to 1 (100%%), not %.4g", sum))
	}
}

// fit checks and completes what depends on other sections.
func (r *reader) fit(has map[string]*yaml.Node, s *Scenario) {
	for i := range s.Arrivals {
		a, n := &s.Arrivals[i], has["arrivals"].Content[i]
		at := fmt.Sprintf("arrivals[%d]", i)
		if a.To == 0 {
			a.To = s.Duration
		}
		if a.From >= a.To || a.To > s.Duration {
			r.report(n, at, "", fmt.Sprintf("lasts from %v to %v, must begin before it ends and end within duration, %v", a.From, a.To, s.Duration))
		}
	}
	if n := s.expected(); n > mostSent {
		r.report(has["arrivals"], "arrivals", "", fmt.Sprintf("come to about %.0f requests, at most %.0f are sent", n, mostSent))
	}
	if s.Overlay != nil {
		r.fitPools(has["engines"], s)
	}
	slices.SortStableFunc(s.Reloads, func(a, b Reload) int { return int(a.At - b.At) })
	slices.SortStableFunc(s.Clock, func(a, b ClockStep) int { return int(a.At - b.At) })
}

// fitPools finds engines of pools that the topology does not have.
func (r *reader) fitPools(n *yaml.Node, s *Scenario) {
	var names []string
	pools := child(s.Overlay, "pools")
	if pools == nil {
		return
	}
	for _, p := range pools.Content {
		if name := child(p, "name"); name != nil {
			names = append(names, name.Value)
		}
	}
	for i := 0; i < len(n.Content); i += 2 {
		if k := n.Content[i]; !slices.Contains(names, k.Value) {
			r.report(k, join("engines", k.Value), "", "no such pool in topology; it has "+strings.Join(names, ", "))
		}
	}
}

func (r *reader) reload(n *yaml.Node, at string) (l Reload) {
	r.object(n, at, map[string]value{
		"at":     r.duration(&l.At, 0, longest),
		"policy": r.text(&l.Policy),
	}, "at", "policy")
	return l
}

func (r *reader) clockStep(n *yaml.Node, at string) (c ClockStep) {
	r.object(n, at, map[string]value{
		"at":   r.duration(&c.At, 0, longest),
		"step": r.duration(&c.Step, -24*time.Hour, 24*time.Hour),
	}, "at", "step")
	return c
}

func (r *reader) tenants(n *yaml.Node, at string) Tenants {
	t := Tenants{Name: "tenant", Count: 1, Keys: 1}
	equal := uint8(0)
	has := r.object(n, at, map[string]value{
		"name":    r.text(&t.Name),
		"count":   whole(r, &t.Count, 1, 1_000_000),
		"keys":    whole(r, &t.Keys, 1, 1_000_000),
		"pattern": oneOf(r, &equal, "equal", "zipf"),
		"zipf":    r.number(&t.Zipf, 0.01, 10),
		"highFrequency": func(n *yaml.Node, at string) {
			r.object(n, at, map[string]value{
				"share": r.ratio(&t.HighPart, 0.000001),
				"load":  r.ratio(&t.HighLoad, 0.000001),
			}, "share", "load")
		},
	})
	if p := has["pattern"]; p != nil && p.Value == "zipf" && t.Zipf == 0 {
		t.Zipf = 1
	} else if p != nil && p.Value == "equal" && t.Zipf > 0 {
		r.report(has["zipf"], join(at, "zipf"), "", "is used by pattern zipf only")
	}
	if t.Zipf > 0 && t.HighPart > 0 {
		r.report(n, at, "", "has zipf or highFrequency, not both")
	}
	return t
}

func (r *reader) client(n *yaml.Node, at string) Client {
	c := Client{Patience: time.Minute, Tries: 10, Early: 1}
	r.object(n, at, map[string]value{
		"share":    r.ratio(&c.Share, 0),
		"kind":     oneOf(r, &c.Kind, "obedient", "backoff", "stubborn", "impatient"),
		"marks":    r.truth(&c.Marks),
		"patience": r.duration(&c.Patience, time.Millisecond, longest),
		"tries":    whole(r, &c.Tries, 1, 1000),
		"early":    r.ratio(&c.Early, 0.001),
		"every":    r.duration(&c.Every, time.Millisecond, time.Hour),
	}, "share", "kind")
	switch {
	case c.Every > 0:
	case c.Kind == Stubborn:
		c.Every = 100 * time.Millisecond
	case c.Kind == Backoff:
		c.Every = 500 * time.Millisecond
	}
	return c
}

func (r *reader) mix(n *yaml.Node, at string) (m Mix) {
	m.Class = policy.Standard
	has := r.object(n, at, map[string]value{
		"share":      r.ratio(&m.Share, 0),
		"class":      oneOf(r, &m.Class, "critical", "standard", "batch"),
		"colour":     oneOf(r, &m.Colour, "none", "red", "yellow", "green"),
		"tier":       r.text(&m.Tier),
		"model":      r.text(&m.Model),
		"embedding":  r.truth(&m.Embedding),
		"stream":     r.share(&m.Stream),
		"priority":   r.truth(&m.Priority),
		"deadline":   r.duration(&m.Deadline, time.Millisecond, time.Hour),
		"prompt":     r.dist(&m.Prompt),
		"output":     r.dist(&m.Output),
		"maxTokens":  whole(r, &m.MaxTokens, 1, 10_000_000),
		"understate": r.ratio(&m.Understate, 0.000001),
	}, "share", "prompt")
	if m.Embedding == (has["output"] != nil) {
		r.report(n, join(at, "output"), "", "is missing, or must not be there: an embedding has no output, everything else has")
	}
	return m
}

// dist reads 200, {uniform: [50, 400]} or {lognormal: {median: 200, p95: 900}}.
func (r *reader) dist(d *Dist) value {
	const most = 10_000_000
	return func(n *yaml.Node, at string) {
		if n.Kind != yaml.MappingNode {
			r.number(&d.A, 1, most)(n, at)
			return
		}
		has := r.object(n, at, map[string]value{
			"fixed": r.number(&d.A, 1, most),
			"uniform": func(n *yaml.Node, at string) {
				var ends []float64
				listOf(r, &ends, 2, 2, func(n *yaml.Node, at string) (v float64) {
					r.number(&v, 1, most)(n, at)
					return v
				})(n, at)
				if len(ends) == 2 {
					d.Kind, d.A, d.B = Uniform, ends[0], ends[1]
				}
			},
			"lognormal": func(n *yaml.Node, at string) {
				d.Kind = LogNormal
				r.object(n, at, map[string]value{
					"median": r.number(&d.A, 1, most),
					"p95":    r.number(&d.B, 1, most),
				}, "median", "p95")
			},
		})
		if len(has) != 1 {
			r.report(n, at, "", "must be a number, or one of fixed, uniform, lognormal")
		} else if d.Kind != Fixed && d.B < d.A {
			r.report(n, at, "", fmt.Sprintf("the larger end, %v, must not be below %v", d.B, d.A))
		}
	}
}
