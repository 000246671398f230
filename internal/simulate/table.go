package simulate

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/weirproxy/weir/policy"
)

// WriteJSON writes the results as one array, an object a policy run.
func WriteJSON(w io.Writer, results []*Result) error {
	if results == nil {
		results = []*Result{}
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(results)
}

// WriteTable writes the results for people: a row a policy, then a row a
// policy and class, then how true the hints were, then advice.
func WriteTable(w io.Writer, results []*Result) error {
	const policyColumn = "policy"
	runs := table{{policyColumn, "requests", "failed", "goodput", "admitted", "at first", "latency p99", "wait p99", "of capacity", "utilisation"}}
	classes := table{{policyColumn, "class", "requests", "at first", "wait p99"}}
	hints := table{{policyColumn, "hints given", "in at first return", "median error", "second wave"}}
	var advice strings.Builder
	for _, r := range results {
		runs = append(runs, []string{
			r.Policy, fmt.Sprint(r.Requests), percentOf(r.Failed, r.Requests), fmt.Sprintf("%.0f/s", r.Goodput),
			percent(r.BurstAdmitted), percent(r.BurstAdmittedFirst), span(r.LatencyP99), span(r.WaitP99), percent(r.Throughput),
			fmt.Sprintf("%.0f-%.0f %%", 100*r.UtilisationMin, 100*r.UtilisationMax),
		})
		for c := range policy.NumClasses {
			name := policy.Class(c).String()
			if k := r.Classes[name]; k != nil {
				classes = append(classes, []string{r.Policy, name, fmt.Sprint(k.Requests), percent(&k.AdmittedFirst), span(&k.WaitP99)})
			}
		}
		h := &r.Hints
		row := []string{r.Policy, fmt.Sprint(h.Given), "-", "-", "-"}
		if h.Returned > 0 {
			row = []string{r.Policy, fmt.Sprint(h.Given), percent(&h.FirstReturn), percent(&h.MedianError), fmt.Sprintf("%.2f of the drain rate", h.WavePeakRatio)}
		}
		hints = append(hints, row)
		if r.Advice != "" {
			fmt.Fprintf(&advice, "\n%s: %s\n", r.Policy, r.Advice)
		}
	}
	note := ""
	if slices.ContainsFunc(results, func(r *Result) bool { return r.BurstAdmitted == nil }) {
		note = "-: judged by the burst; no stream of the scenario says burst: true\n"
	}
	_, err := io.WriteString(w, runs.String()+note+"\n"+classes.String()+"\n"+hints.String()+advice.String())
	return err
}

// table is rows of as many cells each; the first column stands left, the
// others right.
type table [][]string

func (t table) String() string {
	width := make([]int, len(t[0]))
	for _, row := range t {
		for i, cell := range row {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for _, row := range t {
		fmt.Fprintf(&b, "%-*s", width[0], row[0])
		for i, cell := range row[1:] {
			fmt.Fprintf(&b, "  %*s", width[i+1], cell)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func percent(v *float64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100**v)
}

func percentOf(n, of int) string {
	if of == 0 {
		return "-"
	}
	share := float64(n) / float64(of)
	return percent(&share)
}

func span(ms *float64) string {
	if ms == nil {
		return "-"
	}
	return fmt.Sprintf("%.0f ms", *ms)
}
