package identity

import (
	"errors"
	"net/http"
	"strings"
)

// Denial is a refusal for want of a valid identity or of a right. It is an
// error that says all an adapter has to tell the caller; none of its fields
// holds a byte of a token. Denials are immutable and may be shared.
type Denial struct {
	Status    int    // HTTP: 401, 403; 503 where the keys cannot be had
	Code      string // machine code, one of the Code constants
	Message   string // one sentence for the caller
	Challenge string // value of WWW-Authenticate (RFC 6750 section 3); "" = none
}

// Error is code and message.
func (d *Denial) Error() string { return d.Code + ": " + d.Message }

// The codes of denials: a closed list, used in bodies, headers and metrics.
const (
	CodeTokenMissing    = "token_missing"    // no bearer token
	CodeTokenDuplicate  = "token_duplicate"  // more than one Authorization header
	CodeTokenTooLarge   = "token_too_large"  // longer than identity.maxToken
	CodeTokenMalformed  = "token_malformed"  // no JWS in compact form, or not strict JSON inside
	CodeTokenAlgorithm  = "token_algorithm"  // not on the issuer's list, or not the key's
	CodeTokenIssuer     = "token_issuer"     // no or an unknown issuer
	CodeTokenAudience   = "token_audience"   // not for us
	CodeTokenKey        = "token_key"        // no single key of the issuer fits
	CodeTokenExpired    = "token_expired"    // exp has passed
	CodeTokenNotYet     = "token_not_yet"    // nbf or iat lies ahead
	CodeTokenLifetime   = "token_lifetime"   // valid for longer than policy allows
	CodeTokenSignature  = "token_signature"  // the signature does not fit
	CodeTokenClaims     = "token_claims"     // a claim has the wrong form or makes no identity
	CodeScopeMissing    = "scope_missing"    // 403: identified, but not allowed
	CodeKeysUnavailable = "keys_unavailable" // 503: no usable key set
	CodeIdentityMissing = "identity_missing" // no verified identity reached the filter
)

// Unauthenticated is a 401 with a challenge. A missing token gets the bare
// challenge, a doubled header invalid_request, all else invalid_token.
func Unauthenticated(realm, code, message string) *Denial {
	challenge := "Bearer realm=" + quoted(realm)
	switch code {
	case CodeTokenMissing, CodeIdentityMissing:
	case CodeTokenDuplicate:
		challenge += `, error="invalid_request", error_description=` + quoted(message)
	default:
		challenge += `, error="invalid_token", error_description=` + quoted(message)
	}
	return &Denial{Status: http.StatusUnauthorized, Code: code, Message: message, Challenge: challenge}
}

// MissingScope is a 403 that names the scope the call needs.
func MissingScope(realm, scope string) *Denial {
	return &Denial{
		Status:    http.StatusForbidden,
		Code:      CodeScopeMissing,
		Message:   "The key lacks the scope " + scope + ".",
		Challenge: "Bearer realm=" + quoted(realm) + `, error="insufficient_scope", scope=` + quoted(scope),
	}
}

// Unavailable is a 503: the caller's token may be good, but it cannot be
// judged now.
func Unavailable(message string) *Denial {
	return &Denial{Status: http.StatusServiceUnavailable, Code: CodeKeysUnavailable, Message: message}
}

// AsDenial finds the denial in an error.
func AsDenial(err error) (*Denial, bool) {
	var d *Denial
	ok := errors.As(err, &d)
	return d, ok
}

// quoted writes a quoted-string of RFC 9110; what cannot stand in one becomes
// an underscore.
func quoted(s string) string {
	var b strings.Builder
	b.Grow(len(s) + 2)
	b.WriteByte('"')
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			b.WriteByte('_')
		} else {
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}
