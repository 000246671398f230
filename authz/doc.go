// Package authz is the front door: it verifies bearer tokens and answers
// Envoy's ext_authz calls (envoy.service.auth.v3). What it finds out is an
// identity; what the caller may do with it is decided further inside.
//
// Tokens are JWTs (RFC 7519) in the compact form of JWS (RFC 7515), judged by
// the rules of RFC 8725: an allow-list of algorithms for each issuer (K2:
// EdDSA, ES256, RS256), one algorithm for each key, the issuer's own keys, an
// audience, an end. Keys are JWK sets (RFC 7517) from a file or a URL. Whoever
// is refused gets the challenge of RFC 6750.
//
// Invariants:
//
//   - Default closed: an identity comes out only when every check was done
//     and passed. Cheap checks go before the signature, so that a token that
//     cannot pass costs little; none of them accepts.
//   - Neither the token's own header nor its claims choose what it is verified
//     with, beyond naming a key and an issuer that the policy knows.
//   - One bad or unknown token never delays a good one: keys are fetched in
//     the background, at most once for each minRefresh.
//   - No memory grows with what callers send: the caches have a fixed size,
//     the key sets and every part of a token are bounded.
//   - Tokens are neither logged nor kept: the cache knows their SHA-256 alone.
//   - A fault of ours (panic, misconfigured route) is a gRPC error, so that
//     Envoy's own failure setting decides; it is never an OK.
package authz
