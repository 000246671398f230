package discovery

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/weirproxy/weir/policy"
)

func TestSubsetsInFiles(t *testing.T) {
	many := make([]string, maxLabels+1)
	for i := range many {
		many[i] = fmt.Sprintf("k%d: v", i)
	}
	for _, c := range []struct {
		name, subset string
		want         map[string]string
		err          string
	}{
		{"one", "{variant: int8}", map[string]string{"variant": "int8"}, ""},
		{"two, and quotes", `{b: "8", a: 'x"y'}`, map[string]string{"a": `x"y`, "b": "8"}, ""},
		{"empty value", `{a: ""}`, map[string]string{"a": ""}, ""},
		{"none", "{}", nil, ""},
		{"as many as there may be", "{" + strings.Join(many[1:], ", ") + "}", nil, "-"},
		{"more", "{" + strings.Join(many, ", ") + "}", nil, "f:1: subset must have at most 64 entries (got 65)"},
		{"no map", "int8", nil, "f:1: subset must be a map of strings"},
		{"null", "", nil, "f:1: subset must be a map of strings"},
		{"number", "{variant: 8}", nil, `f:1: subset.variant must be a string of at most 256 bytes without control characters (got "8"): a number is one in quotes`},
		{"bool", "{variant: true}", nil, "subset.variant must be a string"},
		{"nested", "{variant: {a: b}}", nil, "subset.variant must be a string"},
		{"twice", "{a: b, a: c}", nil, `subset has "a" twice`},
		{"control character", `{a: "b\u0001"}`, nil, "without control characters"},
		{"key with one", `{"a\n": b}`, nil, "without control characters"},
		{"empty key", `{"": b}`, nil, "a key of subset must have 1 to 256 bytes"},
		{"long value", "{a: " + strings.Repeat("x", 257) + "}", nil, "at most 256 bytes"},
		{"long key", "{" + strings.Repeat("x", 257) + ": a}", nil, "1 to 256 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			list, err := parseList("f", []byte("- {address: \"10.0.0.1:80\", subset: "+c.subset+"}\n"))
			switch {
			case c.err == "-":
				if err != nil || len(list[0].Subset.Labels()) != maxLabels {
					t.Errorf("%v %v", list, err)
				}
			case c.err != "":
				if err == nil || !strings.Contains(err.Error(), c.err) || list != nil {
					t.Errorf("%v, want %s", err, c.err)
				}
			case err != nil || !maps.Equal(list[0].Subset.Labels(), c.want):
				t.Errorf("%v %v, want %v", list, err, c.want)
			}
		})
	}
}

// Equal labels are equal subsets, whatever their order, and come back as they
// were.
func TestSubsetsCompare(t *testing.T) {
	a := SubsetOf(map[string]string{"v": "1", "w": "<&>"})
	b := SubsetOf(map[string]string{"w": "<&>", "v": "1"})
	if a != b || a == SubsetOf(map[string]string{"v": "1"}) || SubsetOf(nil) != "" || SubsetOf(map[string]string{}) != "" {
		t.Errorf("%q %q", a, b)
	}
	if got, err := ParseSubset(`{"w": "<&>", "v": "1"}`); got != a || err != nil {
		t.Errorf("%q %v, want %q", got, err, a)
	}
	for _, bad := range []string{"x", "[]", `{"a":1}`, `{"a":"b"} {}`} {
		if got, err := ParseSubset(bad); err == nil || got != "" {
			t.Errorf("%s is %q", bad, got)
		}
	}
}

// Labels of a set are those of its hosts; a file's own go before them. Sets
// may share a priority: the first has an address that both have.
func TestSetsOfOnePriority(t *testing.T) {
	zeroth := 0
	e := &policy.Endpoints{Priorities: []policy.EndpointSet{
		{Region: "r", Static: []string{"10.0.0.9:80", "10.0.0.1:80"}, Subset: map[string]string{"v": "a"}},
		{Region: "r", File: "f", Subset: map[string]string{"v": "b", "zone": "z"}, Priority: &zeroth},
		{Static: []string{"10.0.0.1:80", "10.0.0.5:80"}},
	}}
	if got := []int{e.Priority(0), e.Priority(1), e.Priority(2)}; !slices.Equal(got, []int{0, 0, 2}) {
		t.Fatalf("priorities %v", got)
	}
	first := 1
	e.Priorities[2].Priority = &first
	c, err := New(e, Options{})
	if err != nil {
		t.Fatal(err)
	}
	at := func(address string, priority int, region string, subset map[string]string) Endpoint {
		return Endpoint{Address: netip.MustParseAddrPort(address), Priority: priority, Region: region, Subset: SubsetOf(subset)}
	}
	a := map[string]string{"v": "a"}
	five := at("10.0.0.5:80", 1, "", nil)
	if v, want := c.View(), []Endpoint{at("10.0.0.1:80", 0, "r", a), at("10.0.0.9:80", 0, "r", a), five}; !slices.Equal(v.Endpoints, want) || !slices.Equal(v.Unread, []int{0}) {
		t.Errorf("%+v, want %+v and 0 not read", v, want)
	}
	list, err := parseList("f", []byte("[{address: \"10.0.0.2:80\", subset: {v: c}}, \"10.0.0.1:80\", \"10.0.0.3:80\"]"))
	if err != nil {
		t.Fatal(err)
	}
	if !c.ledger.put(1, list) || c.ledger.put(1, list) {
		t.Error("a change is one once")
	}
	want := []Endpoint{
		at("10.0.0.1:80", 0, "r", a),
		at("10.0.0.2:80", 0, "r", map[string]string{"v": "c", "zone": "z"}),
		at("10.0.0.3:80", 0, "r", map[string]string{"v": "b", "zone": "z"}),
		at("10.0.0.9:80", 0, "r", a),
		five,
	}
	if v := c.ledger.view; !slices.Equal(v.Endpoints, want) || len(v.Unread) != 0 {
		t.Errorf("%+v, want %+v", v, want)
	}
	list[0].Subset = ""
	if !c.ledger.put(1, list) {
		t.Error("another subset is a change")
	}
}
