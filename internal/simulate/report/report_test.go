package report

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/simulate"
)

func render(t *testing.T, s *simulate.Scenario, results []*simulate.Result) string {
	t.Helper()
	var b strings.Builder
	if err := Write(&b, s, results); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func sample() (*simulate.Scenario, []*simulate.Result) {
	s := &simulate.Scenario{
		Name: `</script><b>pulse`, Duration: 3 * time.Second, Seed: 1,
		Arrivals: []simulate.Arrival{{Kind: simulate.Pulse, Rate: 5, From: time.Second, Length: time.Second, To: 3 * time.Second, Burst: true}},
	}
	series := []simulate.Sample{
		{At: time.Second, Waiting: 17, Seats: 120, Running: 90, Length: 200, Pressure: 0.5, Admitted: [3]float64{1, 2, 3}},
		{At: 2 * time.Second, Waiting: 19, Seats: 120, Running: 120, Length: 100, Pressure: 0.75, Wait: [3]time.Duration{0, 0, 250 * time.Millisecond}},
	}
	return s, []*simulate.Result{
		{Policy: "default", Requests: 10, Series: series, Reasons: map[string]int{"admitted": 10}},
		{Policy: `<img src=x onerror=1>"`, Requests: 10, Series: series[:1], Reasons: map[string]int{"queue_full": 3}, Advice: "no policy can help", Violated: []string{"a seat leaked"}},
	}
}

func TestChartsOfEveryPolicy(t *testing.T) {
	s, results := sample()
	html := render(t, s, results)
	m := regexp.MustCompile(`(?s)const data = (\{.*?\});\n`).FindStringSubmatch(html)
	if m == nil {
		t.Fatal("no data in the page")
	}
	var d chartData
	if err := json.Unmarshal([]byte(m[1]), &d); err != nil {
		t.Fatal(err)
	}
	if len(d.Policies) != 2 || len(d.Times) != 2 || d.Times[1] != 2 || len(d.Bursts) != 1 || d.Bursts[0][0] != 1 || d.Bursts[0][1] != 2 {
		t.Errorf("%+v", d)
	}
	titles := map[string]chart{}
	for _, c := range d.Charts {
		titles[c.Title] = c
		if len(c.Values) != 2 || len(c.Values[0]) != len(c.Labels) || len(c.Values[0][0]) != 2 || len(c.Values[1][0]) != 2 {
			t.Errorf("%s: every policy has every line over all times: %+v", c.Title, c)
		}
	}
	for title, want := range map[string][]float64{
		"Queue depth": {17, 19}, "Admitted by class": {1, 0}, "Pressure": {50, 75}, "Seats": {90, 120},
	} {
		if c, ok := titles[title]; !ok || c.Values[0][0][0] != want[0] || c.Values[0][0][1] != want[1] {
			t.Errorf("%s: %+v, want first line %v", title, c, want)
		}
	}
	if c := titles["Mean wait for a seat"]; len(c.Labels) != 3 || c.Labels[2] != "batch" || c.Values[0][2][1] != 250 {
		t.Errorf("waits: %+v", c)
	}
	for _, want := range []string{"new uPlot(", "no policy can help", "a seat leaked", "queue_full", "Copyright (c) 2022 Leon Sorokin"} {
		if !strings.Contains(html, want) {
			t.Errorf("no %q in the page", want)
		}
	}
}

func TestNamesAreEscaped(t *testing.T) {
	s, results := sample()
	html := render(t, s, results)
	for _, bad := range []string{"<b>pulse", "<img"} {
		if strings.Contains(html, bad) {
			t.Errorf("%s went through as it stands", bad)
		}
	}
	if got := strings.Count(html, "</script>"); got != 2 {
		t.Errorf("%d scripts end, the page has 2", got)
	}
}

// TestPageNeedsNothing: no file, font, image or server but the page itself.
func TestPageNeedsNothing(t *testing.T) {
	s, results := sample()
	html := render(t, s, results)
	for _, bad := range []string{"http://", "https://", "src=\"", "<link", "@import", "url(", "fetch(", "XMLHttpRequest", "import("} {
		if strings.Contains(html, bad) {
			t.Errorf("the page has %s", bad)
		}
	}
	if !strings.Contains(html, `default-src 'none'`) {
		t.Error("connections are not forbidden")
	}
}

func TestLongRunsAreMeans(t *testing.T) {
	series := make([]simulate.Sample, 3*maxPoints)
	for i := range series {
		series[i] = simulate.Sample{At: time.Duration(i) * time.Second, Waiting: i % 3}
	}
	d := charts(&simulate.Scenario{}, []*simulate.Result{{Policy: "a", Series: series}})
	if len(d.Times) != maxPoints || d.Times[1] != 3 {
		t.Fatalf("%d points, the second at %v", len(d.Times), d.Times[1])
	}
	for i, v := range d.Charts[0].Values[0][0] {
		if v != 1 {
			t.Fatalf("point %d is %v, the mean is 1", i, v)
		}
	}
}

func TestNoRuns(t *testing.T) {
	if html := render(t, &simulate.Scenario{Name: "empty"}, nil); !strings.Contains(html, "empty") {
		t.Error("no page")
	}
}
