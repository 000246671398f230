package extproc

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/policy"
)

// admitted is the reply to the body of an admitted chat call.
func admitted(t *testing.T, p *policy.Policy, body string, headers ...string) *extprocv3.ProcessingResponse {
	t.Helper()
	h := openWith(t, newTestDesk(), p)
	e := h.call()
	e.send(chatHead(headers...))
	e.want("request_headers")
	e.send(reqBody(body, true))
	r := e.decided()
	_ = e.hangUp(true)
	h.ended()
	return r
}

func common(r *extprocv3.ProcessingResponse) *extprocv3.CommonResponse {
	return r.GetRequestBody().GetResponse()
}

func TestAdmittedHeaders(t *testing.T) {
	r := admitted(t, rules(), chatBody,
		"x-weir-tenant", "vip", "x-weir-tenant", "vip2", "x-weir-anything", "1", "x-weir-pool", "chat-fp16", "authorization", "Bearer x")
	set, removed := mutations(r)
	for name, want := range map[string]string{headerTenant: "acme", headerClass: "standard", headerPool: "chat-dyn", headerReason: "admitted"} {
		if set[name] != want {
			t.Errorf("%s = %q, want %q", name, set[name], want)
		}
		if removed[name] {
			t.Errorf("%s is set and removed", name)
		}
	}
	if len(set[headerRequestID]) != 32 {
		t.Errorf("%s = %q", headerRequestID, set[headerRequestID])
	}
	if !removed["x-weir-anything"] || !removed["authorization"] {
		t.Errorf("removed %v", removed)
	}
	if !common(r).GetClearRouteCache() {
		t.Error("the route is not chosen anew")
	}
	log := r.GetDynamicMetadata().GetFields()[decisionNamespace].GetStructValue().GetFields()
	if log["id"].GetStringValue() != set[headerRequestID] || log["pool"].GetStringValue() != "chat-dyn" ||
		log["tenant"].GetStringValue() != "acme" || log["class"].GetStringValue() != "standard" || log["policy"].GetStringValue() == "" {
		t.Errorf("metadata %v", log)
	}
	if common(r).GetBodyMutation() != nil {
		t.Error("an unchanged body was sent back")
	}
}

func TestAuthorizationIsKeptByPolicy(t *testing.T) {
	p := rules(func(p *policy.Policy) { p.Identity.Forward = true })
	if _, removed := mutations(admitted(t, p, chatBody, "authorization", "Bearer x")); removed["authorization"] {
		t.Error("authorization was removed")
	}
}

// TestSubset: pools in one cluster are told apart by metadata; the route
// stays.
func TestSubset(t *testing.T) {
	p := rules(func(p *policy.Policy) { p.Pools[1].Subset = map[string]string{"variant": "fp16-dyn"} })
	r := admitted(t, p, chatBody)
	if common(r).GetClearRouteCache() {
		t.Error("the route was cleared")
	}
	lb := r.GetDynamicMetadata().GetFields()["envoy.lb"].GetStructValue().GetFields()
	if lb["variant"].GetStringValue() != "fp16-dyn" {
		t.Errorf("envoy.lb = %v", lb)
	}
}

// TestChangedBody: a changed body has its own length. cortex#820
func TestChangedBody(t *testing.T) {
	body := `{"model":"deepseek-v4","stream":true,"messages":[{"role":"user","content":"hello"}]}`
	r := admitted(t, rules(), body, "content-length", strconv.Itoa(len(body)), "accept-encoding", "gzip")
	out := common(r).GetBodyMutation().GetBody()
	if !strings.Contains(string(out), `"include_usage":true`) {
		t.Fatalf("body %s", out)
	}
	set, _ := mutations(r)
	if set["content-length"] != strconv.Itoa(len(out)) {
		t.Errorf("content-length %q for %d bytes", set["content-length"], len(out))
	}
	if set["accept-encoding"] != "identity" {
		t.Error("a coded answer could not be cut")
	}
	for name, p := range map[string]*policy.Policy{"asked by the caller": rules(), "off by policy": rules(func(p *policy.Policy) { p.Metering.IncludeUsage = false })} {
		if name == "asked by the caller" {
			body = `{"model":"deepseek-v4","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"hello"}]}`
		} else {
			body = `{"model":"deepseek-v4","stream":true,"messages":[{"role":"user","content":"hello"}]}`
		}
		if m := common(admitted(t, p, body)).GetBodyMutation(); m != nil {
			t.Errorf("%s: body changed to %s", name, m.GetBody())
		}
	}
}

func TestAnswerHeaders(t *testing.T) {
	d := newTestDesk(verdict{edit: func(d *admission.Decision) {
		d.Quota = &admission.QuotaView{Limit: policy.Limit{Unit: policy.Requests, Max: 600}, Remaining: 599}
		d.Waited = 1234567 * time.Nanosecond
	}})
	h := open(t, d)
	e := h.call()
	e.send(chatHead())
	e.want("request_headers")
	e.send(reqBody(chatBody, true))
	e.want("request_body")
	e.send(answered("429", via, false, "x-weir-evil", "1", "x-weir-variant", "fp64", "x-ratelimit-remaining-requests", "9", "retry-after", "7"))
	r := e.next()
	set, removed := mutations(r)
	if set[headerVariant] != "fp16-dyn" || set["x-ratelimit-remaining-requests"] != "599" || set[headerRequestID] == "" || set[headerWaited] != "1.235" {
		t.Errorf("set %v", set)
	}
	if !removed["x-weir-evil"] || removed[headerVariant] || removed["retry-after"] || set["retry-after"] != "" {
		t.Errorf("removed %v: the upstream's own words must stay", removed) // sourcegraph#52633
	}
	e.send(chunk("{}", false))
	e.want("response_body")
	e.send(trailers("x-weir-t", "1"))
	if _, removed := mutations(e.next()); !removed["x-weir-t"] {
		t.Error("a forged trailer went through")
	}
	_ = e.hangUp(true)
	h.ended()
	d.even(t)
}

// TestBufferedAnswer: what is cut out of a BUFFERED answer changes its length.
func TestBufferedAnswer(t *testing.T) {
	h := open(t, newTestDesk())
	e := h.call()
	e.modes = bodies(filterv3.ProcessingMode_BUFFERED, filterv3.ProcessingMode_BUFFERED)
	e.send(chatHead())
	e.want("request_headers")
	e.send(reqBody(`{"model":"deepseek-v4","stream":true,"messages":[{"role":"user","content":"hello"}]}`, true))
	e.want("request_body")
	e.send(answered("200", via, false, "content-type", "text/event-stream"))
	e.want("response_headers")
	word := `data: {"choices":[{"index":0,"delta":{"content":"x"}}]}` + "\n\n"
	usage := `data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}` + "\n\n"
	e.send(chunk(word+usage+done, true))
	r := e.next().GetResponseBody().GetResponse()
	want := word + done
	if got := string(r.GetBodyMutation().GetBody()); got != want {
		t.Errorf("body %q, want %q", got, want)
	}
	if set := r.GetHeaderMutation().GetSetHeaders(); len(set) != 1 || string(set[0].GetHeader().GetRawValue()) != strconv.Itoa(len(want)) {
		t.Errorf("headers %v, want the length %d", set, len(want))
	}
	_ = e.hangUp(true)
	h.ended()
}

func TestTraceIsHandedOn(t *testing.T) {
	h := open(t, newTestDesk(), func(o *Options) {
		o.Hooks.Begin = func(ctx context.Context, parent, state string) (context.Context, string, string) {
			if parent != "00-a-b-01" || state != "v=1" {
				t.Errorf("got %q, %q", parent, state)
			}
			return ctx, "00-a-c-01", ""
		}
	})
	e := h.call()
	e.send(grpcHead("traceparent", "00-a-b-01", "tracestate", "v=1"))
	set, _ := mutations(e.next())
	if set["traceparent"] != "00-a-c-01" || set["tracestate"] != "" {
		t.Errorf("set %v", set)
	}
	_ = e.hangUp(true)
	h.ended()
}

// faulty panics in one place.
type faulty struct {
	*testDesk
	at string
}

func (d faulty) Submit(ctx context.Context, r *admission.Request) Visit {
	if d.at == "submit" {
		panic(r.Identity) // the value must not reach a log
	}
	return faultyVisit{d.testDesk.Submit(ctx, r), d.at}
}

type faultyVisit struct {
	Visit
	at string
}

func (v faultyVisit) Result() (Ticket, admission.Decision) {
	if v.at == "result" {
		panic("x")
	}
	return v.Visit.Result()
}

// TestPanicIsAnErrorAnswer: a panic is an error answer and a fault, never an open door.
func TestPanicIsAnErrorAnswer(t *testing.T) {
	verifier := rules(func(p *policy.Policy) { p.Identity.From = policy.FromExtProc })
	cases := []struct {
		name string
		run  func(t *testing.T) (*house, *envoy)
	}{
		{"verify", func(t *testing.T) (*house, *envoy) {
			h := openWith(t, newTestDesk(), verifier, func(o *Options) { o.Verify = nil; o.Policy = func() *policy.Policy { panic("x") } })
			e := h.call()
			e.send(chatHead())
			return h, e
		}},
		{"submit at headers", func(t *testing.T) (*house, *envoy) {
			d := newTestDesk()
			h := open(t, d, func(o *Options) { o.Desk = faulty{d, "submit"} })
			e := h.call()
			e.send(grpcHead())
			return h, e
		}},
		{"submit at the body", func(t *testing.T) (*house, *envoy) {
			d := newTestDesk()
			h := open(t, d, func(o *Options) { o.Desk = faulty{d, "submit"} })
			e := h.call()
			e.send(chatHead())
			e.want("request_headers")
			e.send(reqBody(chatBody, true))
			return h, e
		}},
		{"result of a hold", func(t *testing.T) (*house, *envoy) {
			d := newTestDesk(verdict{wait: true})
			h := open(t, d, func(o *Options) { o.Desk = faulty{d, "result"} })
			e := h.call()
			e.send(grpcHead())
			e.want("override")
			d.last().settle(admission.Admitted)
			return h, e
		}},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			h, e := tc.run(t)
			im := e.next().GetImmediateResponse()
			if im == nil || im.GetStatus().GetCode() != 500 {
				t.Errorf("reply %v, want an immediate 500", im)
			}
			e.want("end")
			if c := status.Code(e.err); c != codes.Internal {
				t.Errorf("ended with %v", e.err)
			}
			h.ended()
			if f := <-h.faults; f != FaultPanic {
				t.Errorf("fault %v", f)
			}
			h.desk.even(t)
		})
	}
}

// TestPanicAtTheEnd: the process lives and the stream does not end with OK.
func TestPanicAtTheEnd(t *testing.T) {
	d := newTestDesk()
	h := open(t, d, func(o *Options) {
		o.Hooks.Finished = func(context.Context, Summary) { panic("x") }
	})
	e := h.call()
	e.send(grpcHead())
	e.want("request_headers")
	if err := e.hangUp(true); err != nil {
		t.Logf("ended with %v", err)
	}
	if f := <-h.faults; f != FaultPanic {
		t.Errorf("fault %v", f)
	}
	d.even(t)
}

func TestLargeBodies(t *testing.T) { // ai-gateway#1209, agentgateway#2720
	big := func(n int) string {
		return `{"model":"deepseek-v4","stream":true,"messages":[{"role":"user","content":"` + strings.Repeat("x", n) + `"}]}`
	}
	p := rules(func(p *policy.Policy) { p.Server.MaxBody = 8 << 20 })
	r := admitted(t, p, big(6<<20))
	if got := len(common(r).GetBodyMutation().GetBody()); got < 6<<20 {
		t.Errorf("the changed body has %d bytes", got)
	}
	for _, n := range []int{9 << 20, int(p.Server.MaxMessage()) - 1<<10} {
		h := openWith(t, newTestDesk(), p)
		e := h.call()
		e.send(chatHead())
		e.want("request_headers")
		e.send(reqBody(big(n), true))
		checkRefusal(t, e.next(), admission.BodyTooLarge, "")
		_ = e.hangUp(true)
		h.ended()
	}
}
