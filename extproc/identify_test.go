package extproc

import (
	"context"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/identity"
	"github.com/weirproxy/weir/policy"
)

// TestVerify: identity.from extproc.
func TestVerify(t *testing.T) {
	p := rules(func(p *policy.Policy) {
		p.Identity.From = policy.FromExtProc
		p.Identity.Preflight = true
	})
	verify := func(_ context.Context, values func(string) []string) (*identity.Identity, error) {
		switch v := values("authorization"); {
		case len(v) == 0:
			return nil, identity.Unauthenticated("weir", identity.CodeTokenMissing, "A bearer token is required.")
		case len(v) > 1:
			return nil, identity.Unauthenticated("weir", identity.CodeTokenDuplicate, "One header only.")
		case v[0] == "Bearer away":
			return nil, identity.Unavailable("No keys.")
		case v[0] != "Bearer good":
			return nil, identity.Unauthenticated("weir", identity.CodeTokenSignature, "The signature does not fit.")
		}
		return caller(), nil
	}
	// Metadata that would admit must not help here.
	base := []string{":method", "POST", ":path", "/v1/chat/completions", "content-type", "application/json"}
	for _, tc := range []struct {
		name  string
		extra []string
		want  admission.Reason // Admitted = headers pass
	}{
		{"good", []string{"authorization", "Bearer good"}, admission.Admitted},
		{"missing", nil, admission.TokenMissing},
		{"two", []string{"authorization", "Bearer good", "authorization", "Bearer good"}, admission.TokenMalformed},
		{"forged", []string{"authorization", "Bearer bad"}, admission.TokenInvalid},
		{"not UTF-8", []string{"authorization", "Bearer \xff"}, admission.TokenInvalid},
		{"keys away", []string{"authorization", "Bearer away"}, admission.KeysUnavailable},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newTestDesk()
			h := openWith(t, d, p, func(o *Options) { o.Verify = verify })
			e := h.call()
			e.send(head(caller(), false, append(base, tc.extra...)...))
			r := e.next()
			if tc.want == admission.Admitted {
				if kindOf(r) != "request_headers" {
					t.Fatalf("reply %v", r)
				}
			} else {
				checkRefusal(t, r, tc.want, "")
			}
			_ = e.hangUp(true)
			h.ended()
		})
	}
	t.Run("preflight", func(t *testing.T) { // envoy#6181, #14233
		d := newTestDesk()
		h := openWith(t, d, p, func(o *Options) { o.Verify = verify })
		e := h.call()
		e.send(head(nil, true, ":method", "OPTIONS", ":path", "/v1/chat/completions", "origin", "https://a.example", "access-control-request-method", "POST"))
		if r := e.next(); kindOf(r) != "request_headers" {
			t.Errorf("reply %v", r)
		}
		_ = e.hangUp(true)
		h.ended()
		if len(d.visits) != 0 {
			t.Error("a preflight was charged")
		}
		e = h.call()
		e.send(head(nil, true, ":method", "OPTIONS", ":path", "/v1/chat/completions"))
		checkRefusal(t, e.next(), admission.TokenMissing, "")
		_ = e.hangUp(true)
		h.ended()
	})
	t.Run("no verifier", func(t *testing.T) {
		h := openWith(t, newTestDesk(), p)
		e := h.call()
		e.send(head(caller(), false, append(base, "authorization", "Bearer good")...))
		checkRefusal(t, e.next(), admission.IdentityMissing, "")
		_ = e.hangUp(true)
		h.ended()
	})
}

// TestForeignMetadata: identity.from metadata, the claims of another filter.
func TestForeignMetadata(t *testing.T) {
	p := rules(func(p *policy.Policy) {
		p.Identity.From = policy.FromMetadata
		p.Identity.Metadata.Key = "payload"
	})
	d := newTestDesk()
	h := openWith(t, d, p)
	send := func(ns string, f map[string]any) *extprocv3.ProcessingResponse {
		s, err := structpb.NewStruct(f)
		if err != nil {
			t.Fatal(err)
		}
		m := chatHead()
		m.MetadataContext = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{ns: s}}
		e := h.call()
		e.send(m)
		r := e.next()
		_ = e.hangUp(true)
		h.ended()
		return r
	}
	good := map[string]any{"payload": map[string]any{"tenant": "acme", "scope": "llm_service chat_completion"}}
	if r := send("envoy.filters.http.jwt_authn", good); kindOf(r) != "request_headers" {
		t.Errorf("reply %v", r)
	}
	for _, ns := range []string{"envoy.filters.http.ext_authz", "other"} {
		checkRefusal(t, send(ns, good), admission.IdentityMissing, "")
	}
}
