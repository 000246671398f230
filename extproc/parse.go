package extproc

import (
	"slices"
	"strconv"
	"time"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/extproc/body"
	"github.com/weirproxy/weir/policy"
)

// edit is what admission changes in the request's body and expects of the
// answer's.
type edit struct {
	body      *body.Body // the bytes wait for the pool; nil = they go on as they are, whatever pool it is
	edits     []body.Edit
	cuts      []body.Edit // what the caller says of priority is taken out
	told      bool        // there is room for the priority that a pool takes
	hideUsage bool        // the usage chunk was asked for by us, not by the caller
}

// judgeBody judges a whole request body and takes the request to the desk.
func (c *conversation) judgeBody(now time.Time, m *message) {
	c.call.bodyJudged = true
	r, f := c.readBody(m)
	if f != nil {
		c.refuse(now, requestBody, f)
		return
	}
	c.submit(now, requestBody, r)
}

// readBody holds the body against its API, the caller's parameter scopes
// (K1) and the models open to the caller, and describes it to the desk.
func (c *conversation) readBody(m *message) (*admission.Request, *refusal) {
	k := &c.call
	if k.modes == nil && !m.endOfStream {
		return nil, c.misfit("the request body comes in pieces; request_body_mode BUFFERED is needed")
	}
	if n := int64(len(m.body)); n > c.policy.Server.MaxBody {
		return nil, c.tooLarge(n)
	}
	if len(m.body) == 0 {
		return nil, refuse(admission.BodyMissing, "")
	}
	b, bad := body.Parse(k.kind, m.body)
	if bad != nil {
		return nil, bodyRefusal(bad)
	}
	asks := &k.effective.Body
	edits, bad := b.CheckParams(k.identity.Params, true, asks.UnknownNames)
	if bad != nil {
		return nil, bodyRefusal(bad)
	}
	if bad := b.CheckBounds(edits, asks); bad != nil {
		return nil, bodyRefusal(bad)
	}
	k.paramsHeld = len(edits) == 0 // what is lifted passes as it came
	model, f := c.bodyModel(b)
	if f != nil {
		return nil, f
	}
	told := k.tellsPriority(model)
	if k.effective.Body.Priority != policy.KeepPriority {
		k.edit.cuts, bad = b.WithoutPriority()
	} else if told {
		bad = b.CheckTwins(body.Priority)
	}
	if bad != nil {
		return nil, bodyRefusal(bad)
	}
	r := k.build(model)
	work := b.WorkAfter(edits)
	r.Stream, r.Prompt, r.Tokens, r.Media = b.Stream, b.PromptBytes, b.PromptTokens, b.Media
	r.Prompts, r.Choices, r.MaxOut, r.MinOut, r.ToTheEnd = b.Prompts, work.Choices, work.MaxOut, work.MinOut, work.ToTheEnd
	r.Body = int64(len(m.body))
	if k.kind == policy.JSON {
		r.Fixed = k.api.Cost
	}
	if edits, f = c.fitting(b, edits, told); f != nil {
		return nil, f
	}
	if len(edits) > 0 || len(k.edit.cuts) > 0 || told {
		k.edit.body, k.edit.edits, k.edit.told = b, edits, told
		r.Body += int64(b.Index())
	}
	return r, nil
}

// tellsPriority reports whether a pool of the model takes a priority.
func (k *call) tellsPriority(model string) bool {
	m, ok := k.effective.FindModel(model)
	return ok && slices.ContainsFunc(m.Pools, func(name string) bool {
		p, ok := k.effective.Pool(name)
		return ok && p.Priority == policy.VLLMPriority
	})
}

// rewritten is the body as it goes to a pool; nil = unchanged. A pool that
// takes a priority is told the class, by its number, or red; a value of the
// caller's own, which would be a way past the others, is replaced there. To
// others it does not go, nor what a scope says of it, unless the policy keeps
// it.
func (k *call) rewritten(p *policy.Pool) []byte {
	b := k.edit.body
	if b == nil {
		return nil
	}
	edits := k.toPool(k.edit.edits, k.edit.told && p != nil && p.Priority == policy.VLLMPriority)
	k.edit.body, k.edit.edits, k.edit.cuts = nil, nil, nil // not needed while the answer runs
	if len(edits) == 0 {
		return nil
	}
	return b.Rewrite(edits...)
}

// engine is the standing as a number for engines: lower is served first.
func (s standing) engine() int64 {
	if s.colour == policy.Red {
		return -1
	}
	return int64(s.class)
}

func (c *conversation) bodyModel(b *body.Body) (string, *refusal) {
	if b.Model == "" { // kind JSON only
		return c.defaultModel()
	}
	return c.resolve(b.Model)
}

// wantsUsage reports a stream whose usage chunk has to be asked for, and
// hidden from the caller who did not ask.
func (c *conversation) wantsUsage(b *body.Body) bool {
	return c.call.effective.Metering.IncludeUsage && b.Stream && b.Usage != body.UsageAsked &&
		(b.Kind == policy.OpenAIChat || b.Kind == policy.OpenAICompletions)
}

// sentence makes one of what a part says is wrong: it is read behind the
// reason's own words.
func sentence(s string) string {
	if s != "" && 'a' <= s[0] && s[0] <= 'z' {
		s = string(s[0]-'a'+'A') + s[1:]
	}
	return s + "."
}

// bodyRefusal finds the reason of a body that is refused.
func bodyRefusal(e *body.Error) *refusal {
	f := &refusal{detail: sentence(e.Msg), param: e.Field}
	switch e.Code {
	case body.CodeDuplicate:
		f.reason = admission.BodyDuplicate
	case body.CodeInvalid, body.CodeMissing:
		f.reason = admission.BodyField
	case body.CodeScope:
		f.reason = admission.ParameterDenied
	case body.CodeMediaType:
		f.reason = admission.BodyType
	case body.CodeEncoding:
		f.reason = admission.BodyEncoding
	default:
		f.reason = admission.BodyInvalid
	}
	return f
}

// admit is the reply that lets an admitted request go on to its pool.
func (c *conversation) admit(at phase, d *admission.Decision) reply {
	r := c.upstream(at, d)
	r.metadata = append(r.metadata, record(c.call.request, d))
	pool := c.pool(d.Pool)
	if d.Pool != "" {
		r.set = append(r.set, field{headerPool, d.Pool})
		// A subset picks a pool inside a cluster it shares; one that has a
		// cluster of its own is reached by its route.
		if pool != nil && len(pool.Subset) > 0 {
			r.metadata = append(r.metadata, subsetOf(pool.Subset))
		} else {
			r.clearRoute = true
		}
	}
	if edited := c.call.rewritten(pool); edited != nil {
		r.replace, r.body = true, edited
		r.set = append(r.set, field{"content-length", strconv.Itoa(len(edited))})
	}
	return r
}

// pool is the pool that the desk chose; nil = unknown. A request that was held
// may have been moved to one that only a policy knows which came meanwhile.
func (c *conversation) pool(name string) *policy.Pool {
	if name == "" {
		return nil
	}
	if p, ok := c.o.Policy().Pool(name); ok {
		return p
	}
	p, _ := c.call.effective.Pool(name)
	return p
}

// upstream is the reply that hands a request on: who it is from, nothing
// forged, no credentials where the policy keeps them back.
func (c *conversation) upstream(at phase, d *admission.Decision) reply {
	k := &c.call
	r := reply{phase: at, set: make([]field, 0, 8)}
	r.set = append(r.set, field{headerRequestID, k.id}, field{headerReason, d.Reason.String()}, k.offered())
	if k.identity != nil {
		r.set = append(r.set, field{headerTenant, k.identity.Tenant}, field{headerClass, k.standing.class.String()})
	}
	if k.parent != "" {
		r.set = append(r.set, field{"traceparent", k.parent})
	}
	if k.state != "" {
		r.set = append(r.set, field{"tracestate", k.state})
	}
	pool := c.pool(d.Pool)
	if pool != nil && asksLoad(pool) {
		r.set = append(r.set, field{headerLoadFormat, loadFormat})
	}
	for _, name := range k.forged {
		if !sets(r.set, name) && (name != headerPool || d.Pool == "") {
			r.remove = append(r.remove, name)
		}
	}
	if k.form {
		r.set = append(r.set, field{"content-type", "application/json"})
	}
	if pool == nil || !pool.Stage { // another weir reads them again
		r.remove = append(r.remove, k.marks...)
	}
	if !c.policy.Identity.Forward {
		r.remove = append(r.remove, "authorization")
	}
	return r
}

func sets(list []field, name string) bool {
	for i := range list {
		if list[i].name == name {
			return true
		}
	}
	return false
}

// subsetNamespace is what Envoy's subset load balancer reads.
const subsetNamespace = "envoy.lb"

func subsetOf(subset map[string]string) namespace {
	ns := namespace{name: subsetNamespace}
	for k, v := range subset {
		ns.fields = append(ns.fields, text(k, v))
	}
	return ns
}

// listModels answers GET /v1/models with what is open to the caller; nothing
// is charged. d is the decision that let the call in.
func (c *conversation) listModels(d *admission.Decision) {
	type model struct {
		ID      string `json:"id"`
		Object  string `json:"object"`
		Created int64  `json:"created"`
		OwnedBy string `json:"owned_by"`
	}
	list := struct {
		Object string  `json:"object"`
		Data   []model `json:"data"`
	}{Object: "list", Data: []model{}}
	for i := range c.call.effective.Policy.Models {
		if name := c.call.effective.Policy.Models[i].Name; c.open(name) {
			list.Data = append(list.Data, model{ID: name, Object: "model", OwnedBy: "weir"})
		}
	}
	c.decision = *d
	c.closeWith(requestHeaders, &immediate{
		status: 200, grpc: -1, details: "weir_models", body: encodeJSON(list),
		header: []field{{"content-type", "application/json"}, {headerRequestID, c.call.id}, {headerReason, d.Reason.String()}},
	}, record(c.about(), &c.decision))
}
