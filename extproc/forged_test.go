package extproc

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/weirproxy/weir/admission"
)

// TestForgedEachOnce: a caller who sends very many x-weir- headers costs no
// more than reading them does, and each name is removed once.
func TestForgedEachOnce(t *testing.T) {
	var h header
	for i := range 100_000 {
		h = append(h, field{fmt.Sprintf("x-weir-%d", i), "1"}, field{"x-weir-pool", "mine"}, field{"x-other", "1"})
	}
	start := time.Now()
	names := forged(h)
	if took := time.Since(start); took > 5*time.Second { // milliseconds; a minute where it is quadratic
		t.Errorf("took %v", took)
	}
	if len(names) != 100_001 || len(slices.Compact(slices.Clone(names))) != len(names) || slices.Contains(names, "x-other") {
		t.Errorf("%d names", len(names))
	}
}

// TestDetailIsNotSaidTwice: where the verifier has no more to say than the
// reason table, the caller reads it once.
func TestDetailIsNotSaidTwice(t *testing.T) {
	for reason, detail := range map[admission.Reason]string{
		admission.TokenMissing: admission.TokenMissing.Row().Message,
		admission.TokenExpired: "The token has expired.",
	} {
		d := admission.Decide(reason, detail)
		want := reason.Row().Message
		if detail != want {
			want += " " + detail
		}
		row := reason.Row()
		if got, want := string(render(&d, &scene{}).body), string(errorBody(want, row.Type, row.Code, "")); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
