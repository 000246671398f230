package extproc

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
)

// Headers in which a client or a proxy says how often it tried before.
const (
	headerRetryCount = "x-stainless-retry-count"    // OpenAI's SDKs: retries so far
	headerPrevious   = "grpc-previous-rpc-attempts" // gRPC (A6): tries before this one
	headerAttempt    = "x-envoy-attempt-count"      // an Envoy in front of ours: this try, from 1
)

// mostAttempts bounds what a caller may claim; more is read as this.
const mostAttempts = 100

// attempts is how many tries of this request came before, by the caller's own
// word: the largest of its marks, 0 where there is none that can be read. It is
// a hint, so a bad one is no reason to refuse. What only a proxy says is read
// where callers are trusted to be proxies.
func attempts(h header, trusted bool) int {
	n := max(count(h.get(headerRetryCount)), count(h.get(headerPrevious)))
	if trusted {
		n = max(n, count(h.get(headerAttempt))-1)
	}
	return min(n, mostAttempts)
}

// untrusted lists the headers that a proxy of ours writes, and nobody else may:
// the trace context, by which whoever writes it decides what is traced behind
// us, and Envoy's count of attempts. Each once.
func untrusted(h header) []string {
	var out []string
	for i := range h {
		switch name := h[i].name; name {
		case "traceparent", "tracestate", "baggage", "b3", headerAttempt:
			out = append(out, name)
		default:
			if strings.HasPrefix(name, "x-b3-") {
				out = append(out, name)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func count(v string) int {
	if v == "" {
		return 0
	}
	n, err := strconv.ParseUint(v, 10, 31)
	if err != nil {
		return 0
	}
	return int(n)
}

// sessionOf is the session that the caller names in the policy's header, as a
// digest of fixed length: what a client makes up is not kept, shown or logged.
// "" = none. The header goes on to the model as it is.
func sessionOf(name string, h header) string {
	if name == "" {
		return ""
	}
	v := h.get(strings.ToLower(name))
	if v == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(v))
	return hex.EncodeToString(sum[:16])
}
