package identity

import (
	"errors"
	"fmt"

	"github.com/weirproxy/weir/policy"
)

// FieldsVersion is the value of the field "v" of an identity as metadata. It
// grows when a reader of the old form would allow too much.
const FieldsVersion = 1

// Why metadata is no identity. ErrPreflight is the mark of a CORS preflight
// that ext_authz let pass without an identity: nothing may be charged for it.
var (
	ErrDenied    = errors.New("identity metadata: marked as denied")
	ErrPreflight = errors.New("identity metadata: marked as a CORS preflight")
	ErrNoTenant  = errors.New("identity metadata: no tenant")
)

// Fields is the identity as dynamic metadata: strings, float64s and lists of
// strings only, so that it goes into a protobuf Struct as it is. Empty fields
// are left out. FromFields reads it back.
func (id *Identity) Fields() map[string]any {
	f := map[string]any{
		"v":      float64(FieldsVersion),
		"tenant": id.Tenant,
		"class":  id.Class.String(),
	}
	put := func(key, value string) {
		if value != "" {
			f[key] = value
		}
	}
	put("key", id.Key)
	put("user", id.User)
	put("colour", id.Colour.String())
	put("tier", id.Tier)
	put("jti", id.JTI)
	if len(id.Scopes) > 0 {
		list := make([]any, len(id.Scopes))
		for i, s := range id.Scopes {
			list[i] = s
		}
		f["scopes"] = list
	}
	if len(id.Params) > 0 {
		list := make([]any, len(id.Params))
		for i, p := range id.Params {
			list[i] = p.String()
		}
		f["params"] = list
	}
	if !id.Expires.IsZero() {
		f["exp"] = float64(id.Expires.UnixMicro()) / 1e6
	}
	return f
}

// DeniedFields is the metadata of a refused request: a mark, the code and no
// tenant.
func DeniedFields(code string) map[string]any {
	return map[string]any{"v": float64(FieldsVersion), "denied": true, "code": code}
}

// PreflightFields is the metadata of a CORS preflight that passes without an
// identity.
func PreflightFields() map[string]any {
	return map[string]any{"v": float64(FieldsVersion), "preflight": true}
}

// FromFields reads the metadata of ext_authz. It is strict about every field
// it knows and demands the tenant key itself, because a request whose
// ext_authz was skipped or failed open carries metadata without one, or none
// (nil). Fields that it does not know, such as Envoy's ext_authz_duration,
// are passed over. ErrDenied, ErrPreflight and ErrNoTenant tell those cases
// apart.
func FromFields(f map[string]any) (*Identity, error) {
	if denied, ok := f["denied"]; ok && denied != false {
		return nil, ErrDenied
	}
	_, named := f["tenant"]
	preflight, marked := f["preflight"]
	if !named && preflight != true {
		return nil, ErrNoTenant
	}
	if v, ok := numeric(f["v"]); !ok || v != FieldsVersion {
		return nil, fmt.Errorf("identity metadata: field v: not %d", FieldsVersion)
	}
	if !named {
		return nil, ErrPreflight
	}
	if marked {
		return nil, errors.New("identity metadata: both a tenant and a preflight")
	}
	return fromFields(f)
}

// fieldNames are the claims of the metadata form.
var fieldNames = policy.Claims{
	Tenant: "tenant", Class: "class", Colour: "colour", Tier: "tier", User: "user", Key: "key", Scope: "scopes",
}

func fromFields(f map[string]any) (*Identity, error) {
	id, err := FromClaims(f, fieldNames)
	if err != nil {
		return nil, fmt.Errorf("identity metadata: %w", err)
	}
	if len(id.Params) > 0 {
		return nil, errors.New("identity metadata: field scopes: holds a parameter scope")
	}
	names, params, err := ParseScopes(f["params"])
	if err != nil {
		return nil, fmt.Errorf("identity metadata: field params: %w", err)
	}
	if len(names) > 0 {
		return nil, errors.New("identity metadata: field params: holds a scope that is no parameter scope")
	}
	id.Params = params
	return id, nil
}
