package extproc

import (
	"fmt"
	"strconv"
	"time"
)

// longestDeadline bounds what a caller may say; more is read as this.
const longestDeadline = 24 * time.Hour

// callerDeadline is the caller's own limit on the whole call: gRPC's
// grpc-timeout or x-request-timeout in whole milliseconds, the nearer of the
// two; zero when there is none. A hold never goes past it.
func callerDeadline(received time.Time, h header) (time.Time, error) {
	var left time.Duration
	if v := h.get("grpc-timeout"); v != "" {
		d, ok := parseGRPCTimeout(v)
		if !ok {
			return time.Time{}, fmt.Errorf("header grpc-timeout: %q is not 1 to 8 digits and one of H, M, S, m, u, n", clip(v))
		}
		left = d
	}
	if v := h.get("x-request-timeout"); v != "" {
		ms, err := strconv.ParseInt(v, 10, 64)
		if err != nil || ms < 1 {
			return time.Time{}, fmt.Errorf("header x-request-timeout: %q is not a whole number of milliseconds from 1", clip(v))
		}
		d := longestDeadline
		if ms < int64(longestDeadline/time.Millisecond) {
			d = time.Duration(ms) * time.Millisecond
		}
		if left == 0 || d < left {
			left = d
		}
	}
	if left == 0 {
		return time.Time{}, nil
	}
	return received.Add(left), nil
}

// parseGRPCTimeout reads the form of the gRPC wire specification.
func parseGRPCTimeout(s string) (time.Duration, bool) {
	if len(s) < 2 || len(s) > 9 {
		return 0, false
	}
	var unit time.Duration
	switch s[len(s)-1] {
	case 'H':
		unit = time.Hour
	case 'M':
		unit = time.Minute
	case 'S':
		unit = time.Second
	case 'm':
		unit = time.Millisecond
	case 'u':
		unit = time.Microsecond
	case 'n':
		unit = time.Nanosecond
	default:
		return 0, false
	}
	n, err := strconv.ParseUint(s[:len(s)-1], 10, 32)
	if err != nil {
		return 0, false
	}
	if time.Duration(n) > longestDeadline/unit {
		return longestDeadline, true
	}
	return max(time.Duration(n)*unit, 1), true
}
