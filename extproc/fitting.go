package extproc

import (
	"fmt"
	"slices"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/extproc/body"
)

// fitting decides which edits a body has room for: Envoy refuses what is longer
// than server.maxBody also where it became so here. What a key or an engine
// demands is needed, and a body without room for it is refused; the usage of
// a stream is worth having, and estimated where there is no room to ask.
func (c *conversation) fitting(b *body.Body, edits []body.Edit, told bool) ([]body.Edit, *refusal) {
	k, most := &c.call, c.policy.Server.MaxBody
	needed := slices.Concat(edits, k.edit.cuts)
	if told {
		needed = append(slices.DeleteFunc(needed, body.Edit.CutsTop), body.SetInt(body.Priority, k.standing.engine()))
	}
	if len(needed) > 0 && !b.Fits(most, needed...) {
		return nil, refuse(admission.BodyTooLarge, fmt.Sprintf("%d bytes with what is set in it, at most %d are accepted.", len(b.Rewrite(needed...)), most))
	}
	if !c.wantsUsage(b) || !b.Fits(most, append(slices.Clip(needed), body.IncludeUsage())...) {
		return edits, nil
	}
	k.edit.hideUsage = true
	return append(edits, body.IncludeUsage()), nil
}
