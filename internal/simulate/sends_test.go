package simulate

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

// Who sends a scenario to a real pool sends what a run plays: the requests of
// all streams, in the order of time, the warm-up's included.
func TestSendsAreWhatARunPlays(t *testing.T) {
	s := places(200, 10*time.Second, func(s *Scenario) {
		s.Warmup, s.Tenants = 2*time.Second, Tenants{Count: 7}
		s.Arrivals = append(s.Arrivals, Arrival{
			Kind: Pulse, Rate: 300, From: 2 * time.Second, To: 10 * time.Second, Length: time.Second, Every: 4 * time.Second,
		})
		s.Requests = []Mix{
			{Share: 0.4, Class: policy.Critical, Stream: 0.5, Prompt: Dist{Kind: Uniform, A: 10, B: 50}, Output: Dist{Kind: Uniform, A: 1, B: 40}, MaxTokens: 30},
			{Share: 0.6, Class: policy.Batch, Prompt: Dist{A: 10}, Output: Dist{A: 5}},
		}
	})
	list, err := Sends(s, false)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.IsSortedFunc(list, func(a, b Send) int { return int(a.At - b.At) }) {
		t.Error("they are not in the order of time")
	}
	r := play(t, s, one(120, pass))
	classes, tenants, counted := map[string]int{}, map[string]int{}, 0
	for _, x := range list {
		if x.At < -s.Warmup || x.At >= s.Duration || x.Client != &s.Clients[0] {
			t.Fatalf("%+v is not of this scenario", x)
		}
		if limit := x.MaxTokens; x.Prompt < 10 || x.Output < 1 || limit > 0 && x.Output > limit {
			t.Errorf("%+v has tokens that nobody draws", x)
		}
		if x.At >= 0 {
			classes[x.Identity.Class.String()]++
			tenants[x.Identity.Tenant]++
			counted++
		}
	}
	near(t, "requests", float64(counted), float64(r.Requests), 0)
	if len(list) == counted {
		t.Error("nothing is sent while warming up")
	}
	for name, n := range classes {
		near(t, name, float64(n), float64(r.Classes[name].Requests), 0)
	}
	for name, n := range tenants {
		near(t, name, float64(n), float64(r.Tenants[name].Requests), 0)
	}
}

// The text that a real weir is given is the policy that a run plays.
func TestTextIsWhatLayReads(t *testing.T) {
	s := scenario(t, "{queue: {headroom: 0%}}", "{queue: {perTenant: 10%, length: {min: 20}}, classes: [{name: batch, weight: 5}]}")
	text, err := s.Text("p.yaml", []byte(small))
	if err != nil {
		t.Fatal(err)
	}
	got, err := policy.Load("p.yaml", text, policy.WithoutSecrets())
	if err != nil {
		t.Fatal(err)
	}
	want, err := s.Lay("p.yaml", []byte(small))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) || got.Queue.PerTenant != 0.1 || got.Queue.Length.Max != 90 {
		t.Errorf("Text and Lay give different policies:\n%+v\n%+v", got, want)
	}
	if _, err := s.Text("p.yaml", []byte("[]")); err == nil {
		t.Error("what is no mapping has a text")
	}
	s.Overlay = nil
	if text, err := s.Text("p.yaml", []byte(small)); err != nil || string(text) != small {
		t.Errorf("with nothing to lay over: %v %s", err, text)
	}
}
