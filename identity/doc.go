// Package identity is the name tag: who is asking, what the caller may ask
// for, and the form in which that travels from ext_authz to ext_proc. It
// knows no tokens; package authz makes identities from those.
//
// Scopes have three levels (K1): a service name that every call needs, a
// function name that an API needs, and parameter scopes that bound top-level
// fields of the body ("max_tokens<=1024"). A scope string follows RFC 6749
// section 3.3. Refusals carry the challenge of RFC 6750.
//
// Invariants:
//
//   - Default closed: what cannot be read whole is an error, never an
//     identity with that part left out.
//   - An identity is immutable and may be shared by requests.
//   - Narrow never allows what one of its arguments refuses.
//   - Fields and FromFields are inverse to each other; metadata without a
//     tenant, or marked as denied, is never an identity.
//   - No error or denial holds a byte of a token.
package identity
