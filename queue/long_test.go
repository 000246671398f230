package queue

import "os"

// Thorough is how thorough a trial is, as in the number of seeds that it draws:
// little in the gate, much with WEIR_LONG=1.
func Thorough(gate, long uint64) uint64 {
	if os.Getenv("WEIR_LONG") != "" {
		return long
	}
	return gate
}
