package policy

import "testing"

// Each colour claims less than the ones before it.
func TestColoursByClaim(t *testing.T) {
	order := []Colour{Red, NoColour, Yellow, Green}
	for i, a := range order {
		for j, b := range order {
			if got, want := a.Lower(b), order[max(i, j)]; got != want {
				t.Errorf("the lower of %q and %q is %q, want %q", a, b, got, want)
			}
		}
	}
}
