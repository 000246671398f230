package extproc

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/extproc/body"
	"github.com/weirproxy/weir/identity"
	"github.com/weirproxy/weir/policy"
)

// call is what request_headers establish.
type call struct {
	id            string // made by weir
	received      time.Time
	method, path  string
	grpc          bool
	api           *policy.API
	kind          policy.Kind // the API's, or Opaque for an upgrade
	effective     *policy.Effective
	rule          *policy.TenantRule // the policy's for the caller; nil = none
	identity      *identity.Identity
	function      string
	handed        policy.Overrides // by ext_authz, beside the identity
	badHanded     error
	standing      standing
	priority      bool   // P8
	attempts      int    // that came before, by the caller's word
	session       string // "" = none
	deadline      time.Time
	modes         *modes
	forged        []string // headers of the caller that go no further
	marks         []string // priority headers of the caller: they go no further than another weir
	parent, state string   // W3C headers to hand on; "" = unchanged
	bodyJudged    bool
	bodyless      bool // the headers are all of the request
	paramsHeld    bool // the body complies with the key's parameter scopes
	gzip          bool // the caller takes gzip
	form          bool // the content type says a form, as curl -d does; the body is JSON
	request       *admission.Request
	edit          edit
}

// about is the request for observers and metadata, also where the desk is not
// asked; what is not known yet is empty, never nil.
func (c *conversation) about() *admission.Request {
	k := &c.call
	if k.request != nil {
		return k.request
	}
	r := k.build("")
	if r.Identity == nil {
		r.Identity = &identity.Identity{Class: policy.Standard}
	}
	if r.API == nil {
		r.API = &policy.API{}
	}
	if r.Policy == nil {
		if e, err := c.policy.For(policy.Overrides{}); err == nil { // no overrides, no error
			r.Policy = e
		}
	}
	k.request = r
	return r
}

// build makes the desk's request from what the headers say.
func (k *call) build(model string) *admission.Request {
	return &admission.Request{
		ID: k.id, Received: k.received, Identity: k.identity, Policy: k.effective,
		API: k.api, Function: k.function, Model: model,
		Class: k.standing.class, Colour: k.standing.colour,
		Priority: k.priority, Attempt: k.attempts, Session: k.session,
		GRPC: k.grpc, Deadline: k.deadline,
		Timed: (k.bodyJudged || k.bodyless) && (k.modes == nil || k.modes.response != modeNone),
	}
}

// newID is 128 random bits in hexadecimal.
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return hex.EncodeToString(b[:])
}

// judgeHeaders judges a request as far as its headers allow and answers:
// refused, passed, decided (kinds without a body to read), or go on.
func (c *conversation) judgeHeaders(now time.Time, m *message) {
	c.policy = c.o.Policy()
	k := &c.call
	k.id, k.received, k.modes = newID(), now, m.modes
	k.standing.class = policy.Standard
	k.method = strings.Clone(m.header.get(":method")) // all texts of a message keep each other
	k.grpc = isGRPC(m.header.get("content-type"))
	k.forged = forged(m.header)
	k.bodyless = m.endOfStream
	k.gzip = takesGzip(m.header.values("accept-encoding"))
	if !c.policy.Envoy.TrustCallers {
		k.forged = append(k.forged, untrusted(m.header)...)
	}
	c.trace(m)
	if f := c.establish(now, m); f != nil {
		c.refuse(now, requestHeaders, f)
		return
	}
	if c.state != opening { // a preflight passed
		return
	}
	if f := c.beforeKind(); f != nil {
		c.refuse(now, requestHeaders, f)
		return
	}
	switch k.kind {
	case policy.Free:
		c.pass(requestHeaders, c.free())
	case policy.ModelList:
		c.listModels(c.free())
	case policy.GRPC, policy.Opaque:
		c.judgeWithoutBody(now)
	default:
		c.expectBody(now, m)
	}
}

// free decides a call that needs no seat: the desk is told, not asked.
func (c *conversation) free() *admission.Decision {
	d := admission.Decide(admission.AdmittedFree, "")
	d.Policy = c.call.effective.ID()
	c.o.Desk.Refused(c.about(), &d)
	return &d
}

// beforeKind refuses what no kind can serve. The desk blocks tenants of the
// calls that it sees; those without a seat are judged here.
func (c *conversation) beforeKind() *refusal {
	k := &c.call
	seatless := k.kind == policy.Free || k.kind == policy.ModelList
	if seatless {
		if k.rule != nil && k.rule.Block && c.mode() == policy.Enforce {
			return refuse(admission.TenantBlocked, "")
		}
		return nil
	}
	if k.modes != nil && k.modes.response == modeDuplex {
		return c.misfit("response_body_mode is FULL_DUPLEX_STREAMED, which is not served")
	}
	return nil
}

// misfit is a route whose Envoy configuration cannot work: the operator hears
// what is wrong, the caller that it is.
func (c *conversation) misfit(what string) *refusal {
	what = "route of " + c.call.api.Path + ": " + what
	c.o.fault(c.ctx, FaultConfig, what)
	return &refusal{reason: admission.OverrideInvalid, operator: what}
}

// trace hands the W3C headers to the hook.
func (c *conversation) trace(m *message) {
	begin := c.o.Hooks.Begin
	if begin == nil {
		return
	}
	c.ctx, c.call.parent, c.call.state = begin(c.ctx, m.header.get("traceparent"), m.header.get("tracestate"))
}

// establish finds out who asks for what, by which rules.
func (c *conversation) establish(now time.Time, m *message) *refusal {
	k := &c.call
	path, clean := policy.CleanPath(m.header.get(":path"))
	id, err := c.identify(c.ctx, now, m)
	switch {
	case errors.Is(err, errPreflight):
		d := admission.Decide(admission.AdmittedFree, "")
		c.pass(requestHeaders, &d)
		return nil
	case err != nil:
		return identityRefusal(err)
	}
	k.identity, k.path = id, strings.Clone(path)
	k.standing = standing{class: id.Class, colour: id.Colour}
	if !clean {
		f := refuse(admission.HeaderInvalid, "The path can be read in more than one way.")
		f.firm = true // scopes are held against paths
		return f
	}
	if k.effective, err = c.rules(m); err != nil {
		return c.misled(m, err)
	}
	k.rule = k.effective.Tenant(id.Tenant)
	if f := c.route(m); f != nil {
		return f
	}
	if k.rule != nil && k.rule.Class != nil {
		k.standing.class = k.standing.class.Lower(*k.rule.Class)
	}
	k.standing = judgeStanding(k.standing, k.effective.ClassCap, k.effective.PriorityHeaders, m.header)
	k.marks = marks(k.effective.PriorityHeaders, m.header)
	k.priority = asksPriority(k.standing, k.effective.PriorityHeaders, m.header)
	k.attempts, k.session = attempts(m.header, c.policy.Envoy.TrustCallers), sessionOf(k.effective.Variants.Session, m.header)
	if k.deadline, err = callerDeadline(now, m.header); err != nil {
		return refuse(admission.HeaderInvalid, sentence(err.Error()))
	}
	return nil
}

// rules is the effective policy of this route, under all channels of E2: what
// the route's metadata says, what ext_authz read and handed on, and what came
// with the stream.
func (c *conversation) rules(m *message) (*policy.Effective, error) {
	if c.badStart != nil {
		return nil, &policy.OverrideError{Channel: policy.InitialMetadata, Err: c.badStart}
	}
	route, err := routeOverrides(m, c.policy.Envoy.Namespace)
	if err != nil {
		return nil, &policy.OverrideError{Channel: policy.RouteMetadata, Err: err}
	}
	if err = c.call.badHanded; err != nil {
		return nil, &policy.OverrideError{Channel: policy.ContextExtensions, Err: err}
	}
	return c.policy.ForAll(
		policy.Given{Channel: policy.RouteMetadata, Overrides: route},
		policy.Given{Channel: policy.ContextExtensions, Overrides: c.call.handed},
		policy.Given{Channel: policy.InitialMetadata, Overrides: c.initial})
}

// misled is a route whose overrides were refused: loud for the operator, no
// details for the caller. Where the policy does not enforce, the call will
// pass (O4), so the scopes that the policy itself demands are held first.
func (c *conversation) misled(m *message, err error) *refusal {
	var bad *policy.OverrideError
	if !errors.As(err, &bad) {
		bad = &policy.OverrideError{Err: err}
	}
	if h := c.o.Hooks.OverrideRejected; h != nil {
		h(c.ctx, bad)
	}
	f := &refusal{reason: admission.OverrideInvalid, operator: bad.Error()}
	if c.call.effective, err = c.policy.For(policy.Overrides{}); err != nil || c.mode() == policy.Enforce {
		return f
	}
	if g := c.route(m); g != nil && !c.lifts(g) {
		return g
	}
	return f
}

// route finds the API and holds the function scope against it (K1).
func (c *conversation) route(m *message) *refusal {
	k := &c.call
	api, ok := k.effective.Route(k.method, k.path)
	if !ok {
		return refuse(admission.PathUnknown, "")
	}
	k.api, k.kind = api, api.Kind
	k.function = k.effective.FunctionOf(api)
	if missing := k.identity.MissingFunction(k.effective.FunctionsOf(api)); missing != "" {
		denial := identity.MissingScope(c.policy.Identity.Realm, missing)
		return &refusal{reason: admission.ScopeFunction, detail: denial.Message, challenge: denial.Challenge}
	}
	switch upgrade := isUpgrade(m.header); {
	case upgrade && k.effective.Upgrade == policy.RefuseUpgrade:
		return refuse(admission.UpgradeRefused, "")
	case upgrade:
		k.kind = policy.Opaque
	case k.grpc && k.kind != policy.GRPC && k.kind != policy.Free && k.kind != policy.Opaque:
		return refuse(admission.BodyType, "This path does not serve gRPC.")
	case !k.grpc && k.kind == policy.GRPC:
		return refuse(admission.BodyType, "This path serves gRPC only (content-type application/grpc).")
	}
	return nil
}

// judgeWithoutBody decides gRPC calls, uploads and upgrades at their headers:
// their bodies are not read, and they are charged the API's stated cost.
func (c *conversation) judgeWithoutBody(now time.Time) {
	k := &c.call
	model, f := c.defaultModel()
	if f != nil {
		c.refuse(now, requestHeaders, f)
		return
	}
	r := k.build(model)
	r.Fixed = k.api.Cost
	r.Stream = k.grpc
	if c.precheck(now, r) {
		return
	}
	c.submit(now, requestHeaders, r)
}

// precheck asks the desk for a cheap refusal; true = it was one.
func (c *conversation) precheck(now time.Time, r *admission.Request) bool {
	d, refused := c.o.Desk.Precheck(now, r)
	if !refused {
		return false
	}
	c.call.request, c.decision = r, d
	c.close(now, requestHeaders, &d, &refusal{})
	return true
}

// expectBody refuses at headers what the body cannot mend, and otherwise lets
// Envoy go on to the body.
func (c *conversation) expectBody(now time.Time, m *message) {
	if f := c.bodyHeaders(m); f != nil {
		c.refuse(now, requestHeaders, f)
		return
	}
	if c.await(now, m) {
		return
	}
	c.state = reading
	r := reply{phase: requestHeaders}
	if c.mode() != policy.Enforce { // trailers in place of the body pass, and change no headers
		r.remove = c.kept()
	}
	c.reply(r)
}

// kept are the headers that go no further.
func (c *conversation) kept() []string {
	if c.policy.Identity.Forward {
		return c.call.forged
	}
	return append(slices.Clip(c.call.forged), "authorization")
}

func (c *conversation) bodyHeaders(m *message) *refusal {
	if k := c.call.modes; k != nil && k.request != modeBuffered {
		return c.misfit("request_body_mode is " + k.request.String() + "; a body that is read whole needs BUFFERED")
	}
	if m.endOfStream {
		return refuse(admission.BodyMissing, "")
	}
	contentType := strings.Join(m.header.values("content-type"), ",")
	encoding := strings.Join(m.header.values("content-encoding"), ",")
	if err := body.CheckHeaders(contentType, encoding); err != nil {
		return bodyRefusal(err)
	}
	c.call.form = body.SaysForm(contentType)
	if v := m.header.get("content-length"); v != "" {
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil || n < 0 {
			return refuse(admission.HeaderInvalid, fmt.Sprintf("Header content-length: %q is not a length.", clip(v)))
		}
		if n > c.policy.Server.MaxBody {
			return c.tooLarge(n)
		}
	}
	return nil
}

func (c *conversation) tooLarge(n int64) *refusal {
	return refuse(admission.BodyTooLarge, fmt.Sprintf("%d bytes, at most %d are accepted.", n, c.policy.Server.MaxBody))
}

// forged lists the headers that only we may set, or that are not for the other
// side, each once.
func forged(h header) []string {
	var out []string
	for i := range h {
		if strings.HasPrefix(h[i].name, policy.HeaderPrefix) || strings.HasPrefix(h[i].name, headerLoad) {
			out = append(out, h[i].name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
