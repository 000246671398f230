package policy

import (
	"slices"
	"strings"
	"testing"
)

// What a body may ask for is bounded by default, by a file, and by a profile.
func TestBody(t *testing.T) {
	p := load(t, "w.yaml", minimal)
	if b := p.Body; b != (Body{MaxChoices: 128, MaxPrompts: 2048, UnknownNames: RefuseUnknown, Priority: RemovePriority}) {
		t.Errorf("default %+v", b)
	}
	p = load(t, "w.yaml", minimal+"body: {maxChoices: 4, priority: keep}\nprofiles: {batch: {body: {maxPrompts: 9, unknownNames: allow}}}\n")
	if b := p.profiles["batch"].Body; b != (Body{MaxChoices: 4, MaxPrompts: 9, UnknownNames: AllowUnknown, Priority: KeepPriority}) {
		t.Errorf("profile %+v", b)
	}
	if n := p.Notes(); !slices.ContainsFunc(n, func(s string) bool { return strings.Contains(s, "body.priority is keep") }) {
		t.Errorf("no note on the priority that is kept: %v", n)
	}
	for text, want := range map[string]string{
		"body: {maxChoices: 0}":                     "body.maxChoices",
		"body: {maxChoices: 1025}":                  "1 to 1024",
		"body: {unknownNames: ignore}":              "refuse",
		"estimate: {finalBytesPerToken: 7}":         "must not be below maxBytesPerToken, 8",
		"estimate: {tenants: 3}":                    "16 to 10000000",
		"estimate: {tenants: 10000000000000000000}": "estimate.tenants",
	} {
		if _, err := Load("w.yaml", []byte(minimal+text+"\n")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// The bound of what is final follows that of what is learnt.
func TestFinalBytesPerToken(t *testing.T) {
	for text, want := range map[string]float64{
		"":                                    16,
		"estimate: {maxBytesPerToken: 10}":    16,
		"estimate: {maxBytesPerToken: 40}":    40,
		"estimate: {finalBytesPerToken: 8}":   8,
		"estimate: {finalBytesPerToken: 100}": 100,
	} {
		if got := load(t, "w.yaml", minimal+text+"\n").Estimate.FinalBytesPerToken; got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}
