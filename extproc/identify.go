package extproc

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/identity"
	"github.com/weirproxy/weir/policy"
)

// refusal is a decision that the hallway makes itself.
type refusal struct {
	reason    admission.Reason
	detail    string // for the caller
	operator  string // for explain, in place of detail
	param     string // field of the body
	challenge string
	firm      bool // stands in shadow and pass too
}

func refuse(r admission.Reason, detail string) *refusal {
	return &refusal{reason: r, detail: detail}
}

// errPreflight says that a CORS preflight passes without an identity.
var errPreflight = errors.New("extproc: preflight")

// identify says who asks, in the form that the policy chose (K1). Whatever
// is missing, unreadable or marked as denied is no identity: the door stays
// closed also where the filter in front was skipped or failed open.
func (c *conversation) identify(ctx context.Context, now time.Time, m *message) (*identity.Identity, error) {
	p := &c.policy.Identity
	switch p.From {
	case policy.FromExtProc:
		if p.Preflight && isPreflight(m.header) {
			return nil, errPreflight
		}
		if c.o.Verify == nil {
			return nil, errors.New("extproc: identity.from is extproc and no verifier was given")
		}
		return c.o.Verify(ctx, m.header.values)
	case policy.FromMetadata:
		fields, _ := m.metadata(p.Metadata.Namespace)
		id, err := identity.FromMetadata(fields, p)
		return c.fresh(now, id, err)
	}
	fields, _ := m.metadata(c.policy.Envoy.AuthzNamespace)
	c.call.handed, c.call.badHanded = identity.OverridesFrom(fields)
	id, err := identity.FromFields(fields)
	if errors.Is(err, identity.ErrPreflight) {
		if p.Preflight && isPreflight(m.header) {
			return nil, errPreflight
		}
		err = identity.ErrNoTenant
	}
	return c.fresh(now, id, err)
}

// fresh refuses an identity whose token has ended meanwhile.
func (c *conversation) fresh(now time.Time, id *identity.Identity, err error) (*identity.Identity, error) {
	if err != nil {
		return nil, err
	}
	p := &c.policy.Identity
	if !id.Expires.IsZero() && now.After(id.Expires.Add(p.Leeway)) {
		return nil, identity.Unauthenticated(p.Realm, identity.CodeTokenExpired, "The token has expired.")
	}
	return id, nil
}

// isPreflight is the CORS protocol's definition (Fetch, section 4.8).
func isPreflight(h header) bool {
	return h.get(":method") == "OPTIONS" && h.has("origin") && h.has("access-control-request-method")
}

// identityRefusal finds the reason of a failed identification.
func identityRefusal(err error) *refusal {
	d, ok := identity.AsDenial(err)
	if !ok {
		return refuse(admission.IdentityMissing, "")
	}
	f := refuse(denialReason(d.Code), d.Message)
	if f.reason.Row().Action == admission.Challenge { // a token would not help otherwise
		f.challenge = d.Challenge
	}
	return f
}

func denialReason(code string) admission.Reason {
	switch code {
	case identity.CodeTokenMissing:
		return admission.TokenMissing
	case identity.CodeTokenDuplicate, identity.CodeTokenTooLarge, identity.CodeTokenMalformed:
		return admission.TokenMalformed
	case identity.CodeTokenExpired, identity.CodeTokenNotYet, identity.CodeTokenLifetime:
		return admission.TokenExpired
	case identity.CodeScopeMissing:
		return admission.ScopeService
	case identity.CodeKeysUnavailable:
		return admission.KeysUnavailable
	case identity.CodeIdentityMissing:
		return admission.IdentityMissing
	}
	return admission.TokenInvalid
}

// isGRPC reports a gRPC call by its content type (gRPC over HTTP/2: the type
// begins with application/grpc; grpc-web is another protocol).
func isGRPC(contentType string) bool {
	rest, ok := strings.CutPrefix(strings.ToLower(contentType), "application/grpc")
	return ok && (rest == "" || rest[0] == '+' || rest[0] == ';' || rest[0] == ' ')
}

// isUpgrade reports a request that wants to leave HTTP: HTTP/1.1 Upgrade,
// CONNECT, or HTTP/2 extended CONNECT.
func isUpgrade(h header) bool {
	if h.has(":protocol") || h.get(":method") == "CONNECT" || h.has("upgrade") {
		return true
	}
	for i := range h {
		if h[i].name != "connection" {
			continue
		}
		for token := range strings.SplitSeq(h[i].value, ",") {
			if strings.EqualFold(strings.TrimSpace(token), "upgrade") {
				return true
			}
		}
	}
	return false
}
