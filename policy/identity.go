package policy

import "time"

// Identity says where identity comes from (K1, K2).
type Identity struct {
	From        IdentityFrom
	Issuers     []Issuer
	Algorithms  []string // default EdDSA, ES256, RS256
	Claims      Claims
	Leeway      time.Duration // of exp, nbf, iat; default 30s
	MaxLifetime time.Duration // exp - iat (or - now without iat); default 24h, 0 = unbounded
	CacheFor    time.Duration // verified tokens; default and max 10s, 0 = off
	CacheSize   int           // default 100000
	MaxToken    int64         // bytes; default 8 KiB
	Service     string        // scope that every call needs; default llm_service
	Realm       string        // of WWW-Authenticate; default weir
	Preflight   bool          // let CORS preflights pass without a token
	Forward     bool          // keep Authorization towards the model; default false (stripped)
	Metadata    MetadataSource
}

// IdentityFrom is the way in which an identity comes to ext_proc.
type IdentityFrom uint8

// The forms: our ext_authz as dynamic metadata; verified inside ext_proc;
// another filter's verified claims.
const (
	FromAuthz IdentityFrom = iota
	FromExtProc
	FromMetadata
)

// Issuer is one trusted token issuer.
type Issuer struct {
	Issuer     string
	Audiences  []string // any of them; empty is refused
	Algorithms []string // default: Identity.Algorithms
	JWKS       JWKS
}

// JWKS is a key set: File (watched) or URL (fetched).
type JWKS struct {
	File       string
	URL        string
	CA         string        // PEM for https
	Refresh    time.Duration // default 5m
	MinRefresh time.Duration // least time between fetches for unknown kids; default 10s
	StaleFor   time.Duration // keys served while the key server is away; default 24h
	Timeout    time.Duration // one fetch; default 2s
	AllowEmpty bool          // a set without keys withdraws all; default: it is a bad answer, and the keys at hand go on
}

// Claims names the claims of the token that make an identity. Dots descend
// ("realm_access.tenant"). Empty = not read.
type Claims struct {
	Tenant, Class, Colour, Tier, User, Key, Scope string
}

// MetadataSource is another filter's namespace in dynamic metadata.
type MetadataSource struct {
	Namespace string // default envoy.filters.http.jwt_authn
	Key       string // struct inside the namespace that holds the claims; empty = the namespace itself
}
