package authz

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weirproxy/weir/identity"
)

var (
	badIssuer     = &refusal{identity.CodeTokenIssuer, "The token's issuer is not known here."}
	badAudience   = &refusal{identity.CodeTokenAudience, "The token is not meant for this service."}
	badKey        = &refusal{identity.CodeTokenKey, "The token names no key that is known here."}
	badKeyChoice  = &refusal{identity.CodeTokenKey, "No single key fits the token."}
	badSignature  = &refusal{identity.CodeTokenSignature, "The token's signature is not valid."}
	badExpired    = &refusal{identity.CodeTokenExpired, "The token has expired."}
	badNotYet     = &refusal{identity.CodeTokenNotYet, "The token is not valid yet."}
	badLifetime   = &refusal{identity.CodeTokenLifetime, "The token is valid for longer than is allowed here."}
	keysAreAway   = &refusal{identity.CodeKeysUnavailable, "Tokens cannot be verified now, try again."}
	missingExpiry = &refusal{identity.CodeTokenClaims, "The token has no exp."}
)

// judge decides about one token without looking at what is remembered. A
// refusal before the signature comes back as the second value; what followed
// from the signature or comes after it is an entry, accepted or denied, that may
// be kept: checking a signature is what costs.
func (r *rules) judge(ctx context.Context, now time.Time, raw string) (*entry, *refusal) {
	t, bad := parseToken(raw)
	if bad != nil {
		return nil, bad
	}
	iss, bad := r.issuerOf(t)
	if bad != nil {
		return nil, bad
	}
	if !slices.Contains(iss.allowed, t.alg) {
		return nil, badAlgorithm
	}
	if bad := checkAudience(t.claims["aud"], iss.audiences); bad != nil {
		return nil, bad
	}
	end, bad := r.checkTimes(now, t.claims)
	if bad != nil {
		return nil, bad
	}
	k, set, bad := iss.keyFor(ctx, now, t)
	if bad != nil {
		return nil, bad
	}
	e := &entry{under: set, set: iss.keys, until: end}
	if !k.verify(raw) {
		e.denied = badSignature
		e.until = end.Add(r.policy.Leeway)
		return e, nil
	}
	if e.who, bad = r.identify(t); bad != nil {
		e.who, e.denied = nil, bad
	}
	return e, nil
}

// issuerOf chooses the issuer whose keys must vouch for the token; the claim
// is believed only once they have.
func (r *rules) issuerOf(t *token) (*issuer, *refusal) {
	name, _ := t.claims["iss"].(string)
	iss := r.issuers[name]
	if iss == nil {
		return nil, badIssuer
	}
	return iss, nil
}

// checkAudience wants one of ours in a string or in a list of strings (RFC
// 7519 section 4.1.3).
func checkAudience(aud any, ours []string) *refusal {
	switch aud := aud.(type) {
	case string:
		if slices.Contains(ours, aud) {
			return nil
		}
	case []any:
		found := false
		for _, v := range aud {
			s, ok := v.(string)
			if !ok {
				return badAudience
			}
			found = found || slices.Contains(ours, s)
		}
		if found {
			return nil
		}
	}
	return badAudience
}

// checkTimes holds exp, nbf and iat against now, with leeway for clocks that
// differ, and the lifetime against its maximum: exp - iat, or what is left
// where there is no iat. It returns exp.
func (r *rules) checkTimes(now time.Time, claims map[string]any) (end time.Time, bad *refusal) {
	if claims["exp"] == nil {
		return end, missingExpiry
	}
	var exp, nbf, iat time.Time
	for _, c := range []struct {
		name string
		into *time.Time
	}{{"exp", &exp}, {"nbf", &nbf}, {"iat", &iat}} {
		v, ok := claims[c.name]
		if !ok {
			continue
		}
		t, err := identity.Instant(v)
		if err != nil {
			return end, &refusal{identity.CodeTokenClaims, fmt.Sprintf("The token's %s %v.", c.name, err)}
		}
		*c.into = t
	}
	leeway := r.policy.Leeway
	switch {
	case !now.Before(exp.Add(leeway)):
		return end, badExpired
	case now.Before(nbf.Add(-leeway)), now.Before(iat.Add(-leeway)):
		return end, badNotYet
	}
	if most := r.policy.MaxLifetime; most > 0 {
		from := iat
		if _, ok := claims["iat"]; !ok {
			from = now.Add(leeway)
		}
		if exp.Sub(from) > most {
			return end, badLifetime
		}
	}
	return exp, nil
}

// keyFor finds the key that must have signed the token. For an unknown key id
// the issuer is asked once more, as far as minRefresh lets it.
func (i *issuer) keyFor(ctx context.Context, now time.Time, t *token) (*key, *keys, *refusal) {
	set := i.keys.at(now)
	if set == nil {
		if i.keys.refetch(ctx) {
			set = i.keys.at(now)
		}
		if set == nil {
			return nil, nil, keysAreAway
		}
	}
	k, known := set.find(t.alg, t.kid, t.hasKid)
	if !known && i.keys.refetch(ctx) {
		if set = i.keys.at(now); set == nil {
			return nil, nil, keysAreAway
		}
		k, known = set.find(t.alg, t.kid, t.hasKid)
	}
	switch {
	case k != nil:
		return k, set, nil
	case !known:
		return nil, nil, badKey
	}
	return nil, nil, badKeyChoice
}

// identify makes the identity of a token whose signature is good.
func (r *rules) identify(t *token) (*verified, *refusal) {
	id, err := identity.FromClaims(t.claims, r.policy.Claims)
	if err != nil {
		return nil, &refusal{identity.CodeTokenClaims, fmt.Sprintf("The token makes no identity: %v.", err)}
	}
	fields, err := structpb.NewStruct(id.Fields())
	if err != nil {
		return nil, &refusal{identity.CodeTokenClaims, "The token makes no identity."}
	}
	return &verified{id, fields, okResponse(fields, []string{authorization})}, nil
}
