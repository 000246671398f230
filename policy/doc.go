// Package policy holds the house rules: weir.yaml plus the overrides that a
// route may set, as one immutable snapshot.
//
// A file is read strictly from its YAML node tree (YAML 1.2, yaml.org/spec):
// an unknown key, a key written twice, a value without its unit or outside
// its bounds is an error, and all errors come at once, each with its line.
// Defaults are those of mechanisms Q1-Q9, P1-P3, V1, B1-B5, B7-B10, T7 and K2;
// every number is a field with a unit and bounds (docs/policy.md).
//
// Invariants:
//
//   - A *Policy that Load returned is complete and checked, and never changes.
//     Readers share it without locks; a request keeps one pointer to the end.
//   - Dump of a loaded policy loads again to an equal policy, and never holds
//     a secret.
//   - Route overrides (E2) select or narrow; they loosen only where
//     envoy.allowLoosen says so.
//   - Equal overrides on one policy give one *Effective, found without a lock.
package policy
