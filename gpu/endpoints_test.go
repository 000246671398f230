package gpu_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/weirproxy/weir/gpu"
)

func TestEndpointsOf(t *testing.T) {
	var many []string
	for i := range 100 {
		many = append(many, fmt.Sprintf("pod-%02d", 99-i))
	}
	for _, tt := range []struct{ names, want []string }{
		{nil, nil},
		{[]string{""}, nil},
		{[]string{"", ""}, nil},
		{[]string{"a"}, []string{"a"}},
		{[]string{"b", "", "a", "b"}, []string{"a", "b"}},
		{[]string{"a\nb"}, []string{"a b"}},
		{[]string{"a\nb", "a"}, []string{"a", "a b"}},
		{many, func() (first []string) {
			for i := range 64 {
				first = append(first, fmt.Sprintf("pod-%02d", i))
			}
			return first
		}()},
	} {
		got := gpu.EndpointsOf(tt.names...)
		if !slices.Equal(got.All(), tt.want) {
			t.Errorf("%q: %q, want %q", tt.names, got.All(), tt.want)
		}
		if again := gpu.EndpointsOf(got.All()...); again != got {
			t.Errorf("%q: made again it is %q", tt.names, again)
		}
	}
	if a, b := gpu.EndpointsOf("x", "y"), gpu.EndpointsOf("y", "x", "x"); a != b || a.String() != "x, y" {
		t.Errorf("%v and %v differ", a, b)
	}
}

// A GPU that serves several endpoints makes all of them ill, and one of a GPU
// that is well stays well.
func TestSharedCard(t *testing.T) {
	r := newRack(t, 2)
	r.cards[0].Endpoints, r.cards[1].Endpoints = gpu.EndpointsOf("chat-0", "chat-1"), gpu.EndpointsOf("chat-2", "chat-1")
	r.look(3)
	r.cards[0].XID = gpu.Some(79)
	r.look(1)
	well := map[string]bool{}
	for _, e := range r.g.Reading().Endpoints(r.now) {
		well[e.Name] = e.Healthy
	}
	if want := map[string]bool{"chat-0": false, "chat-1": false, "chat-2": true}; fmt.Sprint(well) != fmt.Sprint(want) {
		t.Errorf("healthy: %v, want %v", well, want)
	}
}
