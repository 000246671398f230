package queue

import "os"

// Seeds is how many seeds a trial draws: few in the gate, many with WEIR_LONG=1.
func Seeds(gate, long uint64) uint64 {
	if os.Getenv("WEIR_LONG") != "" {
		return long
	}
	return gate
}
