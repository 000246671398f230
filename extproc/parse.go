package extproc

import (
	"strconv"
	"time"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/extproc/body"
	"github.com/weirproxy/weir/policy"
)

// edit is what admission changes in the request's body and expects of the
// answer's.
type edit struct {
	body      []byte // nil = unchanged
	hideUsage bool   // the usage chunk was asked for by us, not by the caller
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
	edits, bad := b.CheckParams(k.identity.Params, true)
	if bad != nil {
		return nil, bodyRefusal(bad)
	}
	k.paramsHeld = true
	model, f := c.bodyModel(b)
	if f != nil {
		return nil, f
	}
	r := k.build(model)
	r.Stream, r.Prompt, r.MaxOut = b.Stream, b.Prompt(), b.MaxOutAfter(edits)
	r.Body = int64(len(m.body))
	if k.kind == policy.JSON {
		r.Fixed = k.api.Cost
	}
	if c.wantsUsage(b) {
		k.edit.hideUsage = true
		edits = append(edits, body.IncludeUsage())
	}
	if len(edits) > 0 {
		k.edit.body = b.Rewrite(edits...)
	}
	return r, nil
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
	if d.Pool != "" {
		r.set = append(r.set, field{headerPool, d.Pool})
		if subset := c.subset(d.Pool); subset != nil {
			r.metadata = append(r.metadata, subsetOf(subset))
		} else {
			r.clearRoute = true
		}
	}
	if edited := c.call.edit.body; edited != nil {
		r.replace, r.body = true, edited
		c.call.edit.body = nil // it is not needed while the answer runs
		r.set = append(r.set, field{"content-length", strconv.Itoa(len(edited))})
	}
	if c.call.edit.hideUsage {
		r.remove = append(r.remove, "accept-encoding") // a coded chunk could not be hidden
	}
	return r
}

// upstream is the reply that hands a request on: who it is from, nothing
// forged, no credentials where the policy keeps them back.
func (c *conversation) upstream(at phase, d *admission.Decision) reply {
	k := &c.call
	r := reply{phase: at, set: make([]field, 0, 8)}
	r.set = append(r.set, field{headerRequestID, k.id}, field{headerReason, d.Reason.String()})
	if k.identity != nil {
		r.set = append(r.set, field{headerTenant, k.identity.Tenant}, field{headerClass, k.standing.class.String()})
	}
	if k.parent != "" {
		r.set = append(r.set, field{"traceparent", k.parent})
	}
	if k.state != "" {
		r.set = append(r.set, field{"tracestate", k.state})
	}
	for _, name := range k.forged {
		if !sets(r.set, name) && (name != headerPool || d.Pool == "") {
			r.remove = append(r.remove, name)
		}
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

// subset is what picks a pool inside a cluster it shares; nil = it has one of
// its own and is reached by its route.
func (c *conversation) subset(name string) map[string]string {
	p, ok := c.call.effective.Pool(name)
	if !ok || len(p.Subset) == 0 {
		return nil
	}
	return p.Subset
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
