package scrape

import (
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/policy"
)

// strict is a text without the reference parser's liberties: quotes inside of
// names, unquoted names inside of braces.
var strict = regexp.MustCompile(`^(?:[ \t]*(?:#.*)?|[ \t]*[a-zA-Z_:][a-zA-Z0-9_:]*[ \t]*` +
	`(?:\{(?:[ \t]*[a-zA-Z_][a-zA-Z0-9_]*[ \t]*=[ \t]*"(?:\\.|[^"\\])*"[ \t]*,?)*[ \t]*\})?[ \t]*[^ \t"{}]+(?:[ \t]+[^ \t]+)?)$`)

// FuzzScanner: whatever both parsers accept they read alike; what the
// reference parser accepts of plain text, the scanner accepts.
func FuzzScanner(f *testing.F) {
	files, err := filepath.Glob("testdata/*.prom")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	f.Add("a{b=\"c\\\"d\\\\e\\nf\"} NaN -1\n{\"q.r\",s=\"t\"} +Inf\n")
	f.Add("# TYPE a counter\na 1\na{x=\"\"} 0x\n")
	f.Fuzz(func(t *testing.T, text string) {
		got, err := scanAll(text)
		want, plain, oracleErr := oracle(text)
		switch {
		case oracleErr != nil || !plain:
		case err != nil:
			for row := range strings.SplitSeq(text, "\n") {
				if !strict.MatchString(row) {
					return
				}
			}
			t.Errorf("scan(%q): %v; the reference parser reads %v", text, err, want)
		case !slices.Equal(got, want):
			t.Errorf("scan(%q) = %v, the reference parser reads %v", text, got, want)
		}
	})
}

// FuzzTypes: a total that the reference parser sees by its type, the readers
// see too, and no other metric.
func FuzzTypes(f *testing.F) {
	f.Add("# TYPE a counter\na 1\n#  TYPE\tb  gauge \nb 2\n# TYPE c CoUnTeR\n# HELP d counter\nd 1\n")
	f.Fuzz(func(t *testing.T, text string) {
		p := expfmt.NewTextParser(model.UTF8Validation)
		families, err := p.TextToMetricFamilies(strings.NewReader(text))
		if err != nil {
			return
		}
		totals := takeTotals{newPage(nil)}
		if new(scanner).scan([]byte(text), &totals) != nil {
			return
		}
		for name, family := range families {
			if nameLength([]byte(name)) != len(name) || len(family.GetMetric()) == 0 || strings.HasSuffix(name, "_total") {
				continue
			}
			if got, want := totals.total([]byte(name)), family.GetType() == dto.MetricType_COUNTER; got != want {
				t.Errorf("%q: %s is a total: %v, want %v", text, name, got, want)
			}
		}
	})
}

type takeTotals struct{ page }

func (*takeTotals) want([]byte) bool { return true }
func (*takeTotals) take(*series)     {}

// FuzzSelector: the series that a selector picks are those whose labels the
// reference parser finds to fit; what it takes for a selector is one.
func FuzzSelector(f *testing.F) {
	f.Add(`a{b="c"}`, "a{b=\"c\",d=\"e\"} 1\na{b=\"x\"} 2\na 3\n")
	f.Add(`a{b=""}`, "a{b=\"c\"} 1\na{b=\"\"} 2\na 3\n")
	f.Add(`{"a.b",c="\"d\\"}`, "{\"a.b\",c=\"\\\"d\\\\\"} 1\n")
	f.Fuzz(func(t *testing.T, selector, text string) {
		p := expfmt.NewTextParser(model.UTF8Validation)
		e, err := newEngine(policy.EngineMetrics{Waiting: []string{selector}})
		parsed, oracleErr := p.TextToMetricFamilies(strings.NewReader(selector + " 0 0\n"))
		if err != nil || oracleErr != nil || len(parsed) != 1 {
			return
		}
		families, err := p.TextToMetricFamilies(strings.NewReader(text))
		picked := picks{engine: e}
		if err != nil || new(scanner).scan([]byte(text), &picked) != nil {
			return
		}
		want := 0
		for name, family := range parsed {
			if len(family.GetMetric()) != 1 || families[name].GetType() > dto.MetricType_GAUGE && families[name].GetType() != dto.MetricType_UNTYPED {
				return
			}
			for _, m := range families[name].GetMetric() {
				if fits(m, family.GetMetric()[0]) {
					want++
				}
			}
		}
		if picked.n != want {
			t.Errorf("%q picks %d series of %q, want %d", selector, picked.n, text, want)
		}
	})
}

// fits says whether a series has the labels of a selector.
func fits(m, selector *dto.Metric) bool {
	value := func(name string) string {
		for _, l := range m.GetLabel() {
			if l.GetName() == name {
				return l.GetValue()
			}
		}
		return ""
	}
	for _, l := range selector.GetLabel() {
		if value(l.GetName()) != l.GetValue() {
			return false
		}
	}
	return true
}

// picks counts the series that a table picks.
type picks struct {
	engine engine
	n      int
}

func (p *picks) want([]byte) bool  { return true }
func (p *picks) typed(_, _ []byte) {}

func (p *picks) take(s *series) {
	for _, c := range p.engine.names[string(s.name)] {
		if c.selector.pass(s) {
			p.n++
		}
	}
}

// FuzzSample: no text makes a sample out of range, or panics, at any look.
func FuzzSample(f *testing.F) {
	kinds := []string{
		policy.KindDCGMExporter, policy.KindVLLM, policy.KindSGLang, policy.KindTGI, policy.KindTriton,
		policy.KindTritonLLM, policy.KindTRTLLM, policy.KindNodeExporter, policy.KindCAdvisor,
	}
	files, err := filepath.Glob("testdata/*.prom")
	if err != nil {
		f.Fatal(err)
	}
	for i, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text), string(text), uint8(i))
	}
	f.Add("DCGM_FI_DEV_GPU_UTIL{gpu=\"0\"} 1e400\n", "", uint8(0))
	f.Add("vllm:kv_cache_usage_perc NaN\nvllm:num_requests_waiting -0\n", "", uint8(1))
	f.Add("node_cpu_seconds_total{mode=\"idle\"} 1\n", "node_cpu_seconds_total{mode=\"idle\"} 0.5\n", uint8(7))
	f.Add("machine_cpu_cores 1\ncontainer_cpu_usage_seconds_total{id=\"/\"} 1\n", "machine_cpu_cores 1\ncontainer_cpu_usage_seconds_total{id=\"/\"} 9 -1\n", uint8(8))
	f.Fuzz(func(t *testing.T, first, second string, kind uint8) {
		s, err := New("s", policy.TelemetrySource{Kind: kinds[int(kind)%len(kinds)], URL: "http://127.0.0.1:1/", EndpointLabel: "pod"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i, text := range []string{first, second} {
			got, err := s.parse([]byte(text), instant.Add(time.Duration(i)*time.Second))
			if err == nil {
				inRange(t, got)
			}
		}
	})
}

func inRange(t *testing.T, s gpu.Sample) {
	t.Helper()
	check := func(what string, v gpu.Value, top float64) {
		if !(v.V >= 0 && v.V <= top) || (!v.OK && v.V != 0) {
			t.Errorf("%s = %+v, want 0..%v or absent", what, v, top)
		}
	}
	for _, v := range []gpu.Value{s.Util, s.KV, s.Active, s.Load} {
		check("ratio", v, 1)
	}
	check("waiting", s.Waiting, math.MaxFloat64)
	check("running", s.Running, math.MaxFloat64)
	for _, d := range s.Cards {
		for _, v := range []gpu.Value{d.Util, d.Active, d.SM, d.Tensor, d.DRAM} {
			check("card's ratio", v, 1)
		}
		for _, v := range []gpu.Value{d.MemoryUsed, d.MemoryTotal, d.PCIeReceived, d.PCIeSent, d.Power, d.Temperature, d.XID, d.Clocks} {
			check("card's figure", v, 1e15)
		}
	}
}
