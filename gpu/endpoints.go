package gpu

import (
	"slices"
	"strings"
)

// MaxEndpoints bounds the endpoints of one card.
const MaxEndpoints = 64

// Endpoints names the model endpoints that a card serves: several where it is
// shared by time slices or MPS. It is a plain value that can be compared; its
// zero value says that none is known.
type Endpoints struct{ names string } // in order, a newline between

// EndpointsOf names endpoints in any order; empty and repeated names count
// once or not at all. Of more than MaxEndpoints the first by name stay.
func EndpointsOf(names ...string) Endpoints {
	switch len(names) {
	case 0:
		return Endpoints{}
	case 1:
		return Endpoints{oneLine(names[0])}
	}
	list := make([]string, 0, len(names))
	for _, n := range names {
		if n != "" {
			list = append(list, oneLine(n))
		}
	}
	slices.Sort(list)
	list = slices.Compact(list)
	return Endpoints{strings.Join(list[:min(len(list), MaxEndpoints)], "\n")}
}

func oneLine(name string) string { return strings.ReplaceAll(name, "\n", " ") }

// All are the names, in order.
func (e Endpoints) All() []string {
	if e.names == "" {
		return nil
	}
	return strings.Split(e.names, "\n")
}

// String is the names with commas between, for people.
func (e Endpoints) String() string { return strings.Join(e.All(), ", ") }
