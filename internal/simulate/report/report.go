// Package report writes the runs of a scenario as one HTML file that needs
// nothing else: numbers as a table, and what happened over time as charts,
// the policies side by side on common scales.
//
// The charts are drawn by uPlot 1.6.32 (MIT), which stands in this folder as
// it was released: uPlot.iife.min.js, uPlot.min.css, uPlot.LICENSE. Its text
// goes into the file; a content security policy in the file's head forbids
// every connection. All names are escaped by html/template.
package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirproxy/weir/internal/simulate"
	"github.com/weirproxy/weir/policy"
)

//go:embed uPlot.iife.min.js
var library string

//go:embed uPlot.min.css
var style string

//go:embed uPlot.LICENSE
var licence string

//go:embed report.html
var page string

// maxPoints bounds a chart; of longer runs it shows means.
const maxPoints = 2000

// view is what the page is made of.
type view struct {
	Scenario *simulate.Scenario
	Results  []*simulate.Result
	Table    string
	Charts   chartData
	Licence  string
	Library  template.JS
	Style    template.CSS
}

// chartData is what the page's script reads.
type chartData struct {
	Policies []string    `json:"policies"`
	Times    []float64   `json:"times"` // seconds
	Bursts   [][]float64 `json:"bursts"`
	Charts   []chart     `json:"charts"`
}

// chart is one row of the page: the same values of every policy.
type chart struct {
	Title  string        `json:"title"`
	Unit   string        `json:"unit"`
	Labels []string      `json:"labels"`
	Values [][][]float64 `json:"values"` // by policy, by label, by time
}

// Write writes the page.
func Write(w io.Writer, s *simulate.Scenario, results []*simulate.Result) error {
	t, err := template.New("report").Parse(page)
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	var table strings.Builder
	if err := simulate.WriteTable(&table, results); err != nil {
		return err
	}
	_, code, _ := strings.Cut(library, "*/") // its first line is a link
	return t.Execute(w, view{
		Scenario: s, Results: results, Table: table.String(), Charts: charts(s, results),
		Licence: "uPlot 1.6.32\n" + licence, Library: template.JS(code), Style: template.CSS(style),
	})
}

// line is one line of a chart: how it is read from a sample.
type line struct {
	label string
	value func(*simulate.Sample) float64
}

func charts(s *simulate.Scenario, results []*simulate.Result) chartData {
	d := chartData{Bursts: [][]float64{}, Times: []float64{}}
	for i := range s.Arrivals {
		if a := &s.Arrivals[i]; a.Burst {
			for _, span := range a.Spans() {
				d.Bursts = append(d.Bursts, []float64{span.From.Seconds(), span.To.Seconds()})
			}
		}
	}
	n := 0
	for _, r := range results {
		d.Policies = append(d.Policies, r.Policy)
		n = max(n, len(r.Series))
	}
	step := max((n+maxPoints-1)/maxPoints, 1)
	for _, r := range results {
		if len(r.Series) == n {
			for at := 0; at < n; at += step {
				d.Times = append(d.Times, r.Series[at].At.Seconds())
			}
			break
		}
	}
	add := func(title, unit string, lines ...line) {
		c := chart{Title: title, Unit: unit}
		for _, l := range lines {
			c.Labels = append(c.Labels, l.label)
		}
		for _, r := range results {
			var values [][]float64
			for _, l := range lines {
				values = append(values, means(r.Series, step, len(d.Times), l.value))
			}
			c.Values = append(c.Values, values)
		}
		d.Charts = append(d.Charts, c)
	}
	add("Queue depth", "requests",
		line{"waiting", func(s *simulate.Sample) float64 { return float64(s.Waiting) }},
		line{"in the retry queue", func(s *simulate.Sample) float64 { return float64(s.Retrying) }},
		line{"length of the line", func(s *simulate.Sample) float64 { return float64(s.Length) }})
	add("Admitted by class", "per second", append(byClass(func(s *simulate.Sample, c int) float64 { return s.Admitted[c] }),
		line{"refused", func(s *simulate.Sample) float64 { return s.Refused }})...)
	add("Mean wait for a seat", "ms", byClass(func(s *simulate.Sample, c int) float64 {
		return float64(s.Wait[c]) / float64(time.Millisecond)
	})...)
	add("Pressure", "%", line{"fullest pool", func(s *simulate.Sample) float64 { return 100 * s.Pressure }})
	add("Seats", "requests",
		line{"in use", func(s *simulate.Sample) float64 { return float64(s.Running) }},
		line{"seats", func(s *simulate.Sample) float64 { return float64(s.Seats) }})
	return d
}

func byClass(value func(s *simulate.Sample, class int) float64) (lines []line) {
	for c := range policy.NumClasses {
		lines = append(lines, line{policy.Class(c).String(), func(s *simulate.Sample) float64 { return value(s, c) }})
	}
	return lines
}

// means is the mean of each step samples, to three digits; a run that ended
// earlier than another ends with zeroes.
func means(series []simulate.Sample, step, n int, value func(*simulate.Sample) float64) []float64 {
	out := make([]float64, n)
	for i := range out {
		lo, hi := min(i*step, len(series)), min((i+1)*step, len(series))
		for j := range series[lo:hi] {
			out[i] += value(&series[lo+j])
		}
		if hi > lo {
			out[i] = round(out[i] / float64(hi-lo))
		}
	}
	return out
}

func round(f float64) float64 {
	short, _ := strconv.ParseFloat(strconv.FormatFloat(f, 'f', 3, 64), 64)
	return short
}

// ReasonNames are the reasons that any run has, in order.
func (v view) ReasonNames() []string {
	var names []string
	for _, r := range v.Results {
		for name := range r.Reasons {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}
