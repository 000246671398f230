//go:build race

package envoytest

// AllocFactor is what a bound on Allocated is multiplied by: under the race
// detector the compiler makes a slice that grows twice.
const AllocFactor = 2
