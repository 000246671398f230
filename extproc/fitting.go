package extproc

import (
	"fmt"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/extproc/body"
	"github.com/weirproxy/weir/policy"
)

// fitting decides which edits a body has room for: Envoy refuses what is longer
// than server.maxBody also where it became so here. What a key or an engine
// demands is needed, and a body without room for it is refused; the usage of
// a stream is worth having, and estimated where there is no room to ask.
func (c *conversation) fitting(b *body.Body, edits []body.Edit, told bool) ([]body.Edit, *refusal) {
	k, most := &c.call, c.policy.Server.MaxBody
	needed := edits
	if told {
		needed = append(edits[:len(edits):len(edits)], body.SetInt(fieldPriority, k.standing.engine()))
	}
	if len(needed) > 0 && !b.Fits(most, needed...) {
		return nil, refuse(admission.BodyTooLarge, fmt.Sprintf("%d bytes with what is set in it, at most %d are accepted.", len(b.Rewrite(needed...)), most))
	}
	if !c.wantsUsage(b) || !b.Fits(most, append(needed[:len(needed):len(needed)], body.IncludeUsage())...) {
		return edits, nil
	}
	k.edit.hideUsage = true
	return append(edits, body.IncludeUsage()), nil
}

// choicesOf is how many answers may come; 0 where it is not known.
func choicesOf(b *body.Body, edits []body.Edit) int64 {
	if b.Kind != policy.OpenAIChat && b.Kind != policy.OpenAICompletions {
		return 0
	}
	for _, e := range edits {
		if f := e.Field(); f == "n" || f == "best_of" {
			return 0
		}
	}
	return b.Choices
}
