package extproc

import (
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/weirproxy/weir/admission"
)

// Headers that tell a caller when to try again (B9). gRPC's push-back (proposal
// A6) stands where its libraries read it: with the status, in the headers of an
// answer that is only an error, else in the trailers. Libraries try again only
// in the first case; trailers tell callers that look for themselves.
const (
	headerPushback    = "grpc-retry-pushback-ms"
	headerShouldRetry = "x-should-retry"
	headerRetryAfter  = "retry-after"
	headerRetryMS     = "retry-after-ms"

	never = "false" // of x-should-retry
	stop  = "-1"    // of grpc-retry-pushback-ms
)

// failing reports that what was seen of the answer is a failure by B6.
func (c *conversation) failing() bool {
	a := &c.answer
	return admission.Judge(&admission.Evidence{Status: a.status, GRPC: a.grpcSeen, GRPCStatus: a.grpc}) == admission.ResultFailed
}

// shedByEnvoy reports an answer by which Envoy itself says that there is no
// room now.
func shedByEnvoy(h header, status int) bool {
	return status == http.StatusServiceUnavailable || h.get("grpc-status") == "14"
}

// pushBack tells the caller of a failure when to try again, in the reply to the
// headers or trailers that bring it. What the upstream says itself stands where
// it asks for as much or more.
func (c *conversation) pushBack(now time.Time, r *reply, h header, counts bool) {
	if c.ticket == nil {
		return
	}
	b := c.ticket.Failing(now, counts)
	switch {
	case b == admission.Pushback{}:
	case c.call.grpc:
		if said, ok := saidPushback(h); !ok || said >= 0 && (b.Stop || said < b.After) {
			r.set = append(r.set, field{headerPushback, pushbackValue(b.After, b.Stop)})
		}
	default:
		if b.Stop && h.get(headerShouldRetry) != never {
			r.set = append(r.set, field{headerShouldRetry, never})
		}
		if saidRetryAfter(now, h) < b.After {
			r.set = append(r.set,
				field{headerRetryAfter, retryAfter(b.After, c.call.effective.RetryAfter.Fractional)},
				field{headerRetryMS, milliseconds(b.After)})
		}
	}
}

// pushbackValue is whole milliseconds, rounded up, or the word to stop.
func pushbackValue(after time.Duration, no bool) string {
	if no {
		return stop
	}
	return strconv.FormatInt(int64((after+time.Millisecond-1)/time.Millisecond), 10)
}

// saidPushback is the upstream's own push-back; below 0 it says stop, as does,
// by the proposal, what is no number.
func saidPushback(h header) (after time.Duration, ok bool) {
	v := h.get(headerPushback)
	if v == "" {
		return 0, false
	}
	ms, err := strconv.ParseInt(v, 10, 32)
	if err != nil || ms < 0 {
		return -1, true
	}
	return time.Duration(ms) * time.Millisecond, true
}

// saidRetryAfter is the longest wait that an upstream asks for, in seconds, in
// milliseconds or as a date; what cannot be read asks for nothing.
func saidRetryAfter(now time.Time, h header) time.Duration {
	d := max(readWait(h.get(headerRetryAfter), time.Second), readWait(h.get(headerRetryMS), time.Millisecond))
	if at, err := http.ParseTime(h.get(headerRetryAfter)); err == nil {
		d = max(d, at.Sub(now))
	}
	return d
}

func readWait(v string, unit time.Duration) time.Duration {
	f, err := strconv.ParseFloat(v, 64)
	if err != nil || math.IsNaN(f) || f <= 0 {
		return 0
	}
	return time.Duration(min(f*float64(unit), float64(math.MaxInt64/2)))
}
