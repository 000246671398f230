package extproc

import (
	"fmt"
	"slices"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/extproc/body"
	"github.com/weirproxy/weir/policy"
)

// fitting decides which edits a body has room for: Envoy refuses what is longer
// than server.maxBody also where it became so here. What a key or an engine
// demands is needed, and a body without room for it is refused; the usage of
// a stream is worth having, and estimated where there is no room to ask.
//
// told says that some pool takes a priority: the body has to fit as it goes to
// that one and as it goes to others.
func (c *conversation) fitting(b *body.Body, edits []body.Edit, told bool) ([]body.Edit, *refusal) {
	k, most := &c.call, c.policy.Server.MaxBody
	forms := [][]body.Edit{k.toPool(edits, false)}
	if told {
		forms = append(forms, k.toPool(edits, true))
	}
	ask := c.wantsUsage(b)
	for _, needed := range forms {
		if len(needed) > 0 && !b.Fits(most, needed...) {
			return nil, refuse(admission.BodyTooLarge, fmt.Sprintf("%d bytes with what is set in it, at most %d are accepted.", len(b.Rewrite(needed...)), most))
		}
		ask = ask && b.Fits(most, append(needed, body.IncludeUsage())...)
	}
	if !ask {
		return edits, nil
	}
	k.edit.hideUsage = true
	return append(edits, body.IncludeUsage()), nil
}

// toPool are the edits of a body that goes to a pool which is told a priority,
// or to one which is not.
func (k *call) toPool(edits []body.Edit, told bool) []body.Edit {
	edits, cuts := slices.Clone(edits), slices.Clone(k.edit.cuts)
	switch {
	case told:
		cuts = slices.DeleteFunc(cuts, body.Edit.CutsTop)
		edits = append(edits, body.SetInt(body.Priority, k.standing.engine())) // the last on a field holds
	case k.effective.Body.Priority != policy.KeepPriority:
		edits = slices.DeleteFunc(edits, func(e body.Edit) bool { return e.Field() == body.Priority })
	}
	return append(edits, cuts...)
}
