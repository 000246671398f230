package extproc

import (
	"testing"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/extproc/body"
)

// TestRefusalsReadAsSentences: what is wrong stands behind the reason's words.
func TestRefusalsReadAsSentences(t *testing.T) {
	for in, want := range map[string]string{
		"it ends where a value is expected": "It ends where a value is expected.",
		`"model" is missing`:                `"model" is missing.`,
		"header x: bad":                     "Header x: bad.",
		"":                                  ".",
	} {
		if got := sentence(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	f := bodyRefusal(&body.Error{Code: body.CodeInvalidJSON, Msg: "it ends at byte 9 of 9"})
	if f.reason != admission.BodyInvalid || f.detail != "It ends at byte 9 of 9." {
		t.Errorf("%v %q", f.reason, f.detail)
	}
}
