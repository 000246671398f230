package extproc

import (
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/policy"
)

// staged is a policy whose pool chat-dyn is another weir.
func staged(edit ...func(*policy.Policy)) *policy.Policy {
	return rules(append(edit, func(p *policy.Policy) { p.Pools[1].Stage = true })...)
}

// hinted is a refusal with a hint.
func hinted(r admission.Reason) verdict {
	return verdict{reason: r, edit: func(d *admission.Decision) { d.RetryAfter, d.Waited = 1500*time.Millisecond, 200*time.Millisecond }}
}

// refusalOf plays a call of a weir that refuses it, and gives what Envoy then
// answers to the stage above: headers and body.
func refusalOf(t *testing.T, v verdict, grpc bool) (kv []string, body []byte) {
	t.Helper()
	h := open(t, newTestDesk(v))
	e := h.call()
	if grpc {
		e.send(grpcHead())
	} else {
		e.send(chatHead())
		e.want("request_headers")
		e.send(reqBody(chatBody, true))
	}
	im := e.next().GetImmediateResponse()
	if im == nil {
		t.Fatal("not refused")
	}
	_ = e.hangUp(true)
	h.ended()
	for _, f := range im.GetHeaders().GetSetHeaders() {
		kv = append(kv, f.GetHeader().GetKey(), string(f.GetHeader().GetRawValue()))
	}
	if grpc { // Envoy makes a trailers-only answer of it
		return append(kv, ":status", "200", "content-type", "application/grpc",
			"grpc-status", strconv.Itoa(int(im.GetGrpcStatus().GetStatus())), "grpc-message", string(im.GetBody())), nil
	}
	return append(kv, ":status", strconv.Itoa(int(im.GetStatus().GetCode()))), im.GetBody()
}

// through is an answer as a client sees it behind a weir whose pool gave it.
func through(t *testing.T, p *policy.Policy, grpc bool, kv []string, body []byte) (out map[string]string, end admission.End, log map[string]string) {
	t.Helper()
	d := newTestDesk()
	h := openWith(t, d, p)
	e := h.call()
	if grpc {
		e.send(grpcHead(headerReason, "queue_full")) // a copy of the caller's
		e.want("request_headers")
	} else {
		e.send(chatHead(headerReason, "queue_full"))
		e.want("request_headers")
		e.send(reqBody(chatBody, true))
		e.want("request_body")
	}
	out = map[string]string{}
	for i := 0; i < len(kv); i += 2 {
		out[kv[i]] = kv[i+1]
	}
	m := answered(out[":status"], via, len(body) == 0, kv...)
	e.send(m)
	r := e.next()
	set, removed := mutations(r)
	for name := range removed {
		delete(out, name)
	}
	maps.Copy(out, set)
	log = map[string]string{}
	for k, v := range r.GetDynamicMetadata().GetFields()[decisionNamespace].GetStructValue().GetFields() {
		log[k] = v.GetStringValue()
	}
	if len(body) > 0 {
		if got := e.pass(string(body), true); got != string(body) {
			t.Errorf("body %q, want %q", got, body)
		}
	}
	_ = e.hangUp(true)
	h.ended()
	ends := d.even(t)
	if len(ends) != 1 {
		t.Fatalf("%d ends", len(ends))
	}
	return out, ends[0], log
}

// E4: a refusal passes two stages unchanged but for each weir's own id, ends
// with all given back, and is nobody's failure.
func TestRefusalTravelsUp(t *testing.T) {
	for _, c := range []struct {
		reason admission.Reason
		grpc   bool
	}{
		{admission.QueueSoft, false}, {admission.QueueFull, false}, {admission.QuotaTokens, false},
		{admission.BreakerOpen, false}, {admission.ExpiredDrop, false}, {admission.Draining, false},
		{admission.ModelDenied, false}, {admission.TooLarge, false},
		{admission.QueueFull, true}, {admission.QuotaRequests, true}, {admission.BreakerOpen, true},
	} {
		t.Run(c.reason.String(), func(t *testing.T) {
			kv, body := refusalOf(t, hinted(c.reason), c.grpc)
			region, end, log := through(t, staged(), c.grpc, kv, body)
			if end.Result != admission.ResultStage || !end.Usage.Refund || end.Failed || end.Learn {
				t.Errorf("end %+v", end)
			}
			lower := map[string]string{}
			var up []string
			for i := 0; i < len(kv); i += 2 {
				lower[kv[i]] = kv[i+1]
			}
			if log["stage_reason"] != c.reason.String() || log["stage_id"] != lower[headerRequestID] {
				t.Errorf("log %v", log)
			}
			for _, name := range slices.Sorted(maps.Keys(region)) {
				up = append(up, name, region[name])
			}
			edge, _, _ := through(t, staged(), c.grpc, up, body)
			for _, weir := range []map[string]string{region, edge} {
				if weir[headerRequestID] == lower[headerRequestID] || len(weir[headerRequestID]) != 32 {
					t.Errorf("id %q", weir[headerRequestID])
				}
				delete(weir, headerRequestID)
			}
			delete(lower, headerRequestID)
			if !maps.Equal(region, lower) || !maps.Equal(edge, lower) {
				t.Errorf("below  %v\nregion %v\nedge   %v", lower, region, edge)
			}
			if lower[headerReason] != c.reason.String() || !c.grpc && lower["x-envoy-ratelimited"] != "true" {
				t.Errorf("below %v", lower)
			}
		})
	}
}

// Of a pool that is no stage, and of a stage that does not refuse, what is said
// in weir's name is taken out, and what counts is the status.
func TestNoStageNoWord(t *testing.T) {
	const id = "00000000000000000000000000000000"
	for _, c := range []struct {
		name string
		p    *policy.Policy
		grpc bool
		kv   []string
		want admission.Result
	}{
		{"no stage", rules(), false, []string{":status", "503", headerReason, "queue_full", headerRequestID, id}, admission.ResultFailed},
		{"no stage, gRPC", rules(), true, []string{":status", "200", "grpc-status", "8", headerReason, "queue_full", headerRequestID, id}, admission.ResultFailed},
		{"a reason that is none", staged(), false, []string{":status", "503", headerReason, "tired"}, admission.ResultFailed},
		{"no reason", staged(), false, []string{":status", "503"}, admission.ResultFailed},
		{"that weir failed", staged(), false, []string{":status", "500", headerReason, "internal"}, admission.ResultFailed},
		{"admitted there, failed behind", staged(), false, []string{":status", "503", headerReason, "admitted"}, admission.ResultFailed},
		{"admitted there, 429 behind", staged(), false, []string{":status", "429", headerReason, "degraded_cost"}, admission.ResultFailed},
		{"a refusal's name on a success", staged(), false, []string{":status", "200", headerReason, "queue_full"}, admission.ResultOK},
		{"gRPC: a refusal's name on another status", staged(), true, []string{":status", "200", "grpc-status", "13", headerReason, "queue_full"}, admission.ResultFailed},
		{"gRPC: and on a success", staged(), true, []string{":status", "200", "grpc-status", "0", headerReason, "queue_full"}, admission.ResultOK},
	} {
		out, end, log := through(t, c.p, c.grpc, append(c.kv, "x-weir-evil", "1"), nil)
		if out[headerReason] != "admitted" || out[headerRequestID] == id || out["x-weir-evil"] != "" || end.Result != c.want || len(log) != 0 {
			t.Errorf("%s: end %s, log %v, client sees %v", c.name, end.Result, log, out)
		}
	}
}

// A refusal that comes when the body was already answered, or as Envoy's own
// reply, is none of the stage's.
func TestOnlyTheStageSpeaks(t *testing.T) {
	d := newTestDesk()
	h := openWith(t, d, staged())
	e := h.begin(chatBody)
	e.send(answered("503", "upstream_reset_before_response_started{connection_termination}", true, headerReason, "queue_full"))
	if set, _ := mutations(e.next()); set[headerReason] != "admitted" {
		t.Errorf("set %v", set)
	}
	_ = e.hangUp(true)
	h.ended()
	if ends := d.even(t); len(ends) != 1 || ends[0].Result != admission.ResultNoAnswer || !ends[0].Failed {
		t.Errorf("ends %+v", ends)
	}
}

// V2: who is served at a lower precision is told so, on answers alone, and
// nobody else says it.
func TestNotice(t *testing.T) {
	lower := verdict{reason: admission.DegradedCost, edit: func(d *admission.Decision) {
		d.Pool, d.Variant, d.Degraded = "chat-int8", "int8", true
	}}
	text := policy.Default().Variants.Notice
	for _, c := range []struct {
		name            string
		p               *policy.Policy
		v               verdict
		status, details string
		kv              []string
		variant, notice string
	}{
		{"as its class", rules(), verdict{}, "200", via, []string{headerNotice, "forged"}, "fp16-dyn", ""},
		{"lower", rules(), lower, "200", via, []string{headerNotice, "forged", headerVariant, "fp64"}, "int8", text},
		{"lower, details unknown", rules(), lower, "200", "", nil, "int8", text},
		{"lower, failed", rules(), lower, "500", via, nil, "int8", ""},
		{"lower, Envoy's own reply", rules(), lower, "503", "no_healthy_upstream", nil, "int8", ""},
		{"no text", rules(func(p *policy.Policy) { p.Variants.Notice = "" }), lower, "200", via, []string{headerNotice, "forged"}, "int8", ""},
		{"behind a stage", staged(), verdict{}, "200", via, []string{headerVariant, "int8", headerNotice, "there"}, "int8", "there"},
		{"behind a stage that says nothing", staged(), verdict{}, "200", via, nil, "fp16-dyn", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := openWith(t, newTestDesk(c.v), c.p)
			e := h.call()
			e.send(chatHead(headerNotice, "mine"))
			e.want("request_headers")
			e.send(reqBody(chatBody, true))
			up := e.next()
			if set, removed := mutations(up); set[headerNotice] != "" || !removed[headerNotice] {
				t.Error("the caller's notice went to the model")
			}
			logged := up.GetDynamicMetadata().GetFields()[decisionNamespace].GetStructValue().GetFields()
			if logged["degraded"].GetBoolValue() != (c.v.edit != nil) || logged["variant"].GetStringValue() == "" {
				t.Errorf("log %v", logged)
			}
			e.send(answered(c.status, c.details, true, c.kv...))
			set, removed := mutations(e.next())
			if set[headerVariant] != c.variant || set[headerNotice] != c.notice {
				t.Errorf("variant %q, notice %q; want %q, %q", set[headerVariant], set[headerNotice], c.variant, c.notice)
			}
			if c.notice == "" && slices.Contains(c.kv, headerNotice) && !removed[headerNotice] {
				t.Error("a forged notice went through")
			}
			_ = e.hangUp(true)
			h.ended()
		})
	}
}
