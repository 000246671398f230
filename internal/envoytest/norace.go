//go:build !race

package envoytest

// AllocFactor is what a bound on Allocated is multiplied by: nothing, without
// the race detector.
const AllocFactor = 1
