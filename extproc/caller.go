package extproc

import (
	"crypto/sha256"
	"encoding/hex"
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
// a hint, so a bad one is no reason to refuse.
func attempts(h header) int {
	n := max(count(h.get(headerRetryCount)), count(h.get(headerPrevious)), count(h.get(headerAttempt))-1)
	return min(n, mostAttempts)
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
