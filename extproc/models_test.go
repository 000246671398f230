package extproc

import (
	"encoding/json"
	"strings"
	"testing"

	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/identity"
	"github.com/weirproxy/weir/policy"
)

// TestModelList: open models only, charged nothing.
func TestModelList(t *testing.T) {
	p := rules(func(p *policy.Policy) {
		p.Models = append(p.Models, policy.Model{Name: "small", Pools: []string{"chat-int8"}}, policy.Model{Name: "hidden", Pools: []string{"chat-int8"}})
		p.Tenants = []policy.TenantRule{{Match: policy.Match{Tenant: "acme"}, Models: []string{"deepseek-v4", "small"}}}
	})
	list := func(id *identity.Identity, md ...string) []string {
		d := newTestDesk()
		h := openWith(t, d, p)
		e := h.call(md...)
		e.send(head(id, true, ":method", "GET", ":path", "/v1/models"))
		im := e.next().GetImmediateResponse()
		var out struct {
			Object string
			Data   []struct{ ID, Object string }
		}
		if err := json.Unmarshal(im.GetBody(), &out); err != nil || out.Object != "list" || im.GetStatus().GetCode() != 200 {
			t.Fatalf("%v: %v", im, err)
		}
		_ = e.hangUp(true)
		h.ended()
		if len(d.visits) != 0 {
			t.Error("the desk was asked")
		}
		if len(d.refused) != 1 || d.refused[0].Reason != admission.AdmittedFree {
			t.Errorf("the desk heard %v, want one call that needs no seat", d.refused)
		}
		if h := im.GetHeaders().String(); !strings.Contains(h, headerReason) || !strings.Contains(h, "admitted_free") {
			t.Errorf("the answer does not say why it was given: %s", h)
		}
		names := []string{}
		for _, m := range out.Data {
			names = append(names, m.ID)
		}
		return names
	}
	if got := strings.Join(list(caller()), " "); got != "deepseek-v4 small" {
		t.Errorf("tenant's rule: %s", got)
	}
	scoped := caller()
	scoped.Params = params("model=small|hidden")
	if got := strings.Join(list(scoped), " "); got != "small" {
		t.Errorf("caller's scope: %s", got)
	}
	if got := strings.Join(list(caller(), "weir-models", "deepseek-v4,hidden"), " "); got != "deepseek-v4" {
		t.Errorf("route: %s", got)
	}
}

// TestShadowAndPass: refusals about what is asked are recorded and lifted,
// those about who asks stand (O4).
func TestShadowAndPass(t *testing.T) {
	for _, mode := range []policy.Mode{policy.Shadow, policy.Pass} {
		p := rules(func(p *policy.Policy) {
			p.Mode = mode
			for i := range p.Classes {
				p.Classes[i].Mode = mode
			}
		})
		d := newTestDesk()
		h := openWith(t, d, p)
		e := h.call()
		e.send(chatHead())
		e.want("request_headers")
		e.send(reqBody(`{"model":`, true))
		r := e.decided()
		log := r.GetDynamicMetadata().GetFields()[decisionNamespace].GetStructValue().GetFields()
		if log["intended"].GetStringValue() != "body_invalid" || !log["shadow"].GetBoolValue() {
			t.Errorf("metadata %v", log)
		}
		e.send(answered("400", via, true))
		e.want("response_headers")
		_ = e.hangUp(true)
		h.ended()

		e = h.call()
		e.send(head(nil, false, ":method", "POST", ":path", "/v1/chat/completions"))
		checkRefusal(t, e.next(), admission.IdentityMissing, "")
		_ = e.hangUp(true)
		h.ended()
	}
}

// TestShadowKeepsIdentity: where refusals are lifted, no mistake of the
// caller's is a way around its scopes (O4, K1).
func TestShadowKeepsIdentity(t *testing.T) {
	p := rules(func(p *policy.Policy) {
		p.Mode = policy.Shadow
		for i := range p.Classes {
			p.Classes[i].Mode = policy.Shadow
		}
	})
	bound, poor := caller(), caller()
	bound.Params = params("max_tokens<=16")
	poor.Scopes = []string{"llm_service"}
	for _, tc := range []struct {
		name string
		head *extprocv3.ProcessingRequest
		body string
		want admission.Reason // Admitted: passes
	}{
		{"broken body", chatHead(), `{"model":`, admission.Admitted},
		{"broken body of a bound key", chatHeadOf(bound), `{"max_tokens":1,"max_tokens":99}`, admission.BodyDuplicate},
		{"coded body of a bound key", withMetadata(chatHead("content-encoding", "gzip"), bound.Fields()), "", admission.BodyEncoding},
		{"bad header of a bound key", withMetadata(chatHead("x-request-timeout", "soon"), bound.Fields()), "", admission.HeaderInvalid},
		{"unknown model of a bound key that complies", chatHeadOf(bound), `{"model":"x","max_tokens":1,"messages":[]}`, admission.Admitted},
		{"unknown model of a bound key that leaves the field out", chatHeadOf(bound), `{"model":"x","messages":[]}`, admission.ModelUnknown},
		{"too many choices", chatHead(), `{"model":"deepseek-v4","n":500,"messages":[]}`, admission.Admitted},
		{"too many choices of a bound key", chatHeadOf(bound), `{"model":"deepseek-v4","n":500,"messages":[]}`, admission.BodyField},
		{"unknown path", post(caller(), "/nowhere"), "", admission.Admitted},
		{"path of two readings", post(caller(), "/x/../v1/chat/completions"), "", admission.HeaderInvalid},
		{"upgrade without the scope", withMetadata(chatHead("upgrade", "websocket"), poor.Fields()), "", admission.ScopeFunction},
		{"misconfigured route", attributes(chatHead(), cel("class"), "vip"), "", admission.Admitted},
		{"misconfigured route without the scope", attributes(chatHeadOf(poor), cel("class"), "vip"), "", admission.ScopeFunction},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := openWith(t, newTestDesk(), p)
			e := h.call()
			e.send(tc.head)
			r := e.next()
			if tc.body != "" {
				e.send(reqBody(tc.body, true))
				r = e.next()
			}
			if tc.want != admission.Admitted {
				checkRefusal(t, r, tc.want, "")
			} else if r.GetImmediateResponse() != nil {
				t.Errorf("refused: %v", r)
			}
			_ = e.hangUp(true)
			h.ended()
		})
	}
}

// TestPrecheck: a cheap refusal before the body is buffered.
func TestPrecheck(t *testing.T) {
	d := newTestDesk()
	no := admission.Decide(admission.BreakerOpen, "")
	d.precheck = &no
	h := open(t, d)
	for _, m := range []*extprocv3.ProcessingRequest{chatHead(), grpcHead()} {
		e := h.call()
		e.send(m)
		checkRefusal(t, e.next(), admission.BreakerOpen, "")
		_ = e.hangUp(true)
		h.ended()
	}
	if len(d.visits)+len(d.refused) != 0 {
		t.Error("the desk heard of its own refusal, or was asked")
	}
}

// TestBlockedTenant: also where the desk is not asked.
func TestBlockedTenant(t *testing.T) {
	p := rules(func(p *policy.Policy) {
		p.Tenants = []policy.TenantRule{{Match: policy.Match{Tenant: "acme"}, Block: true}}
	})
	for _, path := range []string{"/health", "/v1/models"} {
		h := openWith(t, newTestDesk(), p)
		e := h.call()
		e.send(head(caller(), true, ":method", "GET", ":path", path))
		checkRefusal(t, e.next(), admission.TenantBlocked, "")
		_ = e.hangUp(true)
		h.ended()
	}
}

// TestDuplexAnswerIsRefused: an answer that we would break is not begun.
func TestDuplexAnswerIsRefused(t *testing.T) {
	h := open(t, newTestDesk())
	for _, m := range []*extprocv3.ProcessingRequest{chatHead(), grpcHead()} {
		e := h.call()
		e.modes = bodies(filterv3.ProcessingMode_BUFFERED, filterv3.ProcessingMode_FULL_DUPLEX_STREAMED)
		e.send(m)
		checkRefusal(t, e.next(), admission.OverrideInvalid, "")
		_ = e.hangUp(true)
		h.ended()
		if f := <-h.faults; f.String() != "config" {
			t.Errorf("fault %v", f)
		}
	}
}

// TestDefaultModel: a call without a model gets the API's, or the first that
// is open to the caller here; none is a refusal.
func TestDefaultModel(t *testing.T) {
	p := rules(func(p *policy.Policy) {
		p.Models = append(p.Models, policy.Model{Name: "small", Pools: []string{"chat-int8"}})
		for i := range p.APIs {
			if p.APIs[i].Kind == policy.Opaque {
				p.APIs[i].Model = "small"
			}
		}
	})
	ask := func(m *extprocv3.ProcessingRequest, md ...string) (string, *extprocv3.ProcessingResponse) {
		d := newTestDesk()
		h := openWith(t, d, p)
		e := h.call(md...)
		e.send(m)
		r := e.next()
		_ = e.hangUp(true)
		h.ended()
		if v := d.last(); v != nil {
			return v.request.Model, r
		}
		return "", r
	}
	if got, _ := ask(post(caller(), "/v1/audio/transcriptions")); got != "small" {
		t.Errorf("the API's model: %q", got)
	}
	if got, _ := ask(grpcHead()); got != "deepseek-v4" {
		t.Errorf("the first model: %q", got)
	}
	if got, _ := ask(grpcHead(), "weir-models", "small"); got != "small" {
		t.Errorf("the route's model: %q", got)
	}
	_, r := ask(post(caller(), "/v1/audio/transcriptions"), "weir-models", "deepseek-v4")
	checkRefusal(t, r, admission.ModelUnknown, "")
	id := caller()
	id.Params = params("model=other")
	m := withMetadata(grpcHead(), id.Fields())
	_, r = ask(m)
	if im := r.GetImmediateResponse(); int(im.GetGrpcStatus().GetStatus()) != admission.ModelDenied.Row().GRPC {
		t.Errorf("no model open: %v", r)
	}
}
