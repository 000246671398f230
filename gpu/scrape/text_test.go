package scrape

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/weirproxy/weir/policy"
)

// all takes every series, as text: name, labels in order, value.
type all struct {
	lines []string
	types map[string]string
}

func (a *all) want([]byte) bool { return true }

func (a *all) typed(name, kind []byte) {
	if a.types == nil {
		a.types = map[string]string{}
	}
	a.types[string(name)] = string(kind)
}

func (a *all) take(s *series) {
	var labels []string
	for _, l := range s.labels {
		labels = append(labels, fmt.Sprintf("%q=%q", l.name, l.value))
	}
	a.lines = append(a.lines, line(string(s.name), labels, s.value))
}

func line(name string, labels []string, v float64) string {
	value := fmt.Sprintf("%x", math.Float64bits(v))
	if math.IsNaN(v) {
		value = "nan"
	}
	slices.Sort(labels)
	return fmt.Sprintf("%q %v %s", name, labels, value)
}

func scanAll(text string) ([]string, error) {
	var a all
	err := new(scanner).scan([]byte(text), &a)
	slices.Sort(a.lines)
	return a.lines, err
}

// oracle is what the reference parser reads; plain is false where it found a
// histogram or summary, whose series it folds.
func oracle(text string) (lines []string, plain bool, err error) {
	p := expfmt.NewTextParser(model.UTF8Validation)
	families, err := p.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		return nil, false, err
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var v float64
			switch f.GetType() {
			case dto.MetricType_GAUGE:
				v = m.GetGauge().GetValue()
			case dto.MetricType_COUNTER:
				v = m.GetCounter().GetValue()
			case dto.MetricType_UNTYPED:
				v = m.GetUntyped().GetValue()
			default:
				return nil, false, nil
			}
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%q=%q", l.GetName(), l.GetValue()))
			}
			lines = append(lines, line(f.GetName(), labels, v))
		}
	}
	slices.Sort(lines)
	return lines, true, nil
}

func TestScanner(t *testing.T) {
	tests := []struct {
		name, text string
		want       []string
	}{
		{"empty", "", nil},
		{"comments and blank lines", "# HELP a b\n\n  \n#\n# TYPE a gauge\n", nil},
		{"bare", "a 1\n", []string{line("a", nil, 1)}},
		{"tabs and blanks", "\ta\t{ b = \"c\" , }\t 1\n", []string{line("a", []string{`"b"="c"`}, 1)}},
		{"timestamp", "a 1 1700000000000\n", []string{line("a", nil, 1)}},
		{"negative timestamp", "a 1 -5\n", []string{line("a", nil, 1)}},
		{"escapes", `a{b="x\\y\"z\nw"} 1` + "\n", []string{line("a", []string{`"b"="x\\y\"z\nw"`}, 1)}},
		{"brace and comma in a value", `a{b="},="} 1` + "\n", []string{line("a", []string{`"b"="},="`}, 1)}},
		{"no labels in braces", "a{} 2\n", []string{line("a", nil, 2)}},
		{"specials", "a NaN\nb +Inf\nc -Inf\nd 1e3\n", []string{line("a", nil, math.NaN()), line("b", nil, math.Inf(1)), line("c", nil, math.Inf(-1)), line("d", nil, 1000)}},
		{"quoted name", `{"a.b",c="d"} 1` + "\n", []string{line("a.b", []string{`"c"="d"`}, 1)}},
		{"quoted label", `a{"c.d"="e"} 1` + "\n", []string{line("a", []string{`"c.d"="e"`}, 1)}},
		{"value right after the brace", `a{b="c"}1` + "\n", []string{line("a", []string{`"b"="c"`}, 1)}},
		{"carriage returns", "a 1\r\nb 2\r\n", []string{line("a", nil, 1), line("b", nil, 2)}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := scanAll(tt.text)
			if err != nil || !slices.Equal(got, tt.want) {
				t.Errorf("scan = %v, %v; want %v", got, err, tt.want)
			}
		})
	}
}

func TestScannerRefuses(t *testing.T) {
	for _, text := range []string{
		"<html>\n", "{\"error\":\"down\"}\n", "a\n", "a 1", "a 1\nb 2", "a x\n", "a 0x1p4\n", "a 1_0\n", "a 1e999\n",
		"a 1 x\n", "a 1 2 3\n", "a{ 1\n", "a{b} 1\n", "a{b=c} 1\n", "a{b=\"c} 1\n", "a{b=\"c\"\n", "a{b=\"\\t\"} 1\n",
		"a{,} 1\n", "a{b=\"c\",,} 1\n", "a{b=\"c\" d=\"e\"} 1\n", "{} 1\n", "{b=\"c\"} 1\n", "{\"a\",\"b\"} 1\n", "a{\"b\"} 1\n",
		"a{b=\"c\"}\n", "\xff\xfe\n", "a{b=\"c\\", "é 1\n",
	} {
		if got, err := scanAll(text); err == nil {
			t.Errorf("scan(%q) = %v, want an error", text, got)
		}
	}
}

// What is not wanted is not judged, as long as it begins like a metric.
func TestScannerSkips(t *testing.T) {
	got, err := parse(t, policy.KindVLLM, nil, "other{ broken\nvllm:num_requests_waiting 2\n")
	if err != nil || got.Waiting.V != 2 {
		t.Errorf("sample = %+v, %v", got, err)
	}
}

// A second look at the same text allocates nothing but the list of its cards.
func TestScanAllocates(t *testing.T) {
	for file, kind := range map[string]string{"dcgm_4gpu_normal.prom": policy.KindDCGMExporter, "vllm_two_engines.prom": policy.KindVLLM} {
		want := 0.0
		if kind == policy.KindDCGMExporter {
			want = 1
		}
		text, err := os.ReadFile(filepath.Join("testdata", file))
		if err != nil {
			t.Fatal(err)
		}
		s, err := New("s", policy.TelemetrySource{Kind: kind, URL: "http://127.0.0.1:1/metrics", Match: map[string]string{"absent": ""}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if n := testing.AllocsPerRun(100, func() {
			if _, err := s.parse(text, time.Now()); err != nil {
				t.Fatal(err)
			}
		}); n != want {
			t.Errorf("%s: %v allocations a look, want %v", file, n, want)
		}
	}
}
