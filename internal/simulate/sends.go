package simulate

import (
	"cmp"
	"slices"
	"time"

	"github.com/weirproxy/weir/identity"
)

// Send is a request at its first try, as the scenario draws it.
type Send struct {
	At        time.Duration // since the start of the run; negative while warming up
	Identity  *identity.Identity
	Model     string // "" = the policy's first
	Stream    bool
	Prompt    int64   // tokens
	Output    int64   // tokens that it will get
	MaxTokens int64   // tokens that the call says; 0 = none
	Client    *Client // how it takes a refusal
}

// Sends are the first tries of a scenario in the order of time: the very ones
// that Run plays, for who sends them to a real pool. skipBad is as Run's.
func Sends(s *Scenario, skipBad bool) (list []Send, err error) {
	for i := range s.Arrivals {
		t, err := newStream(s, i, skipBad)
		if err != nil {
			return nil, err
		}
		more, err := t.next()
		for ; more; more, err = t.next() {
			c := t.draw()
			list = append(list, Send{
				At: c.first, Identity: c.identity, Model: c.model, Stream: c.stream,
				Prompt: c.prompt, Output: c.output, MaxTokens: c.maxOut, Client: c.client,
			})
		}
		t.close()
		if err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(list, func(a, b Send) int { return cmp.Compare(a.At, b.At) })
	return list, nil
}
