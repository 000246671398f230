package extproc

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota/memstore"
)

// deskHouse is a hallway before a real desk, in virtual time.
func deskHouse(t *testing.T, p *policy.Policy) (*house, *admission.Desk) {
	store := memstore.New(memstore.Options{})
	desk := admission.New(admission.Options{Policy: p, Store: store, Rand: rand.New(rand.NewPCG(1, 2))})
	t.Cleanup(func() {
		desk.Close()
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return openWith(t, newTestDesk(), p, func(o *Options) { o.Desk = NewDesk(desk) }), desk
}

// bodySent is a chat call up to its body.
func (h *house) bodySent(tenant string, kv ...string) *envoy {
	h.t.Helper()
	id := caller()
	id.Tenant = tenant
	e := h.call()
	e.send(post(id, "/v1/chat/completions", append([]string{"content-type", "application/json"}, kv...)...))
	e.want("request_headers")
	e.send(reqBody(chatBody, true))
	return e
}

// decided skips the override of a held call and gives the reply to its body.
func (e *envoy) decided() *extprocv3.ProcessingResponse {
	e.t.Helper()
	r := e.next()
	if kindOf(r) == "override" {
		r = e.next()
	}
	if kindOf(r) != "request_body" {
		e.t.Fatalf("reply %v", r)
	}
	return r
}

// served ends an admitted call and gives what its client reads.
func (h *house) served(e *envoy, status string, kv ...string) map[string]string {
	h.t.Helper()
	e.send(answered(status, via, true, kv...))
	set, _ := mutations(e.next())
	_ = e.hangUp(true)
	h.ended()
	return set
}

func reads(t *testing.T, what string, got map[string]string, reason admission.Reason, variant string, notice bool) {
	t.Helper()
	if got[headerReason] != reason.String() || got[headerVariant] != variant || (got[headerNotice] != "") != notice {
		t.Errorf("%s: %v, want %s on %s, notice %v", what, got, reason, variant, notice)
	}
}

// V2, V3: a session whose call came down at its expiry stays there and says so;
// others, and the same id of another tenant, run on their class's variant.
func TestSessionsThroughTheConversation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := rules(func(p *policy.Policy) {
			p.Variants.Session = "x-session"
			for i := range p.Pools {
				p.Pools[i].Seats = policy.Seats{Requests: 1}
			}
		})
		h, _ := deskHouse(t, p)
		runs := h.bodySent("acme", "x-session", "first")
		runs.decided()
		began := time.Now()
		waits := h.bodySent("acme", "x-session", "second")
		log := waits.decided().GetDynamicMetadata().GetFields()[decisionNamespace].GetStructValue().GetFields()
		if waited := time.Since(began); waited != 500*time.Millisecond {
			t.Errorf("degraded after %v, want the class's 500ms", waited)
		}
		if log["variant"].GetStringValue() != "int8" || !log["degraded"].GetBoolValue() || !log["session"].GetBoolValue() {
			t.Errorf("log %v", log)
		}
		reads(t, "at expiry", h.served(waits, "200"), admission.DegradedExpiry, "int8", true)
		reads(t, "the first", h.served(runs, "200"), admission.Admitted, "fp16-dyn", false)
		again := func(tenant, session string) map[string]string {
			e := h.bodySent(tenant, "x-session", session)
			e.decided()
			return h.served(e, "200")
		}
		reads(t, "the same session", again("acme", "second"), admission.DegradedSession, "int8", true)
		reads(t, "a new one", again("acme", "third"), admission.Admitted, "fp16-dyn", false)
		reads(t, "another's", again("rogue", "second"), admission.Admitted, "fp16-dyn", false)
		time.Sleep(p.Variants.SessionFor)
		reads(t, "silent for long", again("acme", "second"), admission.Admitted, "fp16-dyn", false)
	})
}

// E4: refusals of the stage below open no breaker and cost no quota, however
// many they are; its pool's own failures do.
func TestStageThroughTheConversation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := staged(func(p *policy.Policy) {
			p.Quotas = []policy.QuotaRule{{Name: "few", Match: policy.Match{Tenant: "*"}, By: []string{"tenant"},
				Limits: []policy.Limit{{Unit: policy.Requests, Max: 30, Per: time.Hour}}}}
		})
		h, desk := deskHouse(t, p)
		for range 100 {
			e := h.bodySent("acme")
			e.decided()
			if got := h.served(e, "503", headerReason, "queue_full", "retry-after", "7"); got[headerReason] != "" {
				t.Fatalf("its reason was replaced: %v", got)
			}
		}
		synctest.Wait()
		dyn := desk.Snapshot(time.Now()).Pools[1]
		if dyn.Breaker.Requests != 0 || dyn.Line.SeatsUsed != (policy.Seats{}) || dyn.Latency != 0 {
			t.Errorf("after refusals %+v", dyn)
		}
		for range 20 {
			e := h.bodySent("acme")
			e.decided()
			h.served(e, "503")
		}
		synctest.Wait()
		if v := desk.Snapshot(time.Now()).Pools[1].Breaker; v.Failures != 20 {
			t.Errorf("after failures %+v", v)
		}
	})
}
