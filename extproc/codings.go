package extproc

import (
	"strconv"
	"strings"
)

// Content codings of answers that the meter reads, beside none at all.
const (
	codingIdentity = "identity"
	codingGzip     = "gzip"
)

// offered is the accept-encoding that the model is sent in place of the
// caller's (RFC 9110, 12.5.3): what both the caller and the meter read. It is
// always sent, since a request without one says that any coding will do.
func (k *call) offered() field {
	value := codingIdentity
	if k.gzip && !k.edit.hideUsage { // a chunk in a coding could not be hidden
		value = codingGzip
	}
	return field{"accept-encoding", value}
}

// takesGzip reports whether the caller takes answers as gzip, and likes them no
// less than plain ones.
func takesGzip(accepted []string) bool {
	gzip, plain, other := -1.0, -1.0, 0.0 // negative: not named
	for _, list := range accepted {
		for item := range strings.SplitSeq(list, ",") {
			coding, weight := accepts(item)
			switch coding {
			case codingGzip, "x-gzip":
				gzip = max(gzip, weight)
			case codingIdentity:
				plain = max(plain, weight)
			case "*":
				other = max(other, weight)
			}
		}
	}
	if gzip < 0 {
		gzip = other
	}
	return gzip > 0 && gzip >= plain
}

// accepts reads one item of an accept-encoding; a weight that is none counts
// as 0.
func accepts(item string) (coding string, weight float64) {
	coding, params, _ := strings.Cut(item, ";")
	coding = strings.ToLower(strings.TrimSpace(coding))
	weight = 1
	for p := range strings.SplitSeq(params, ";") {
		name, value, _ := strings.Cut(p, "=")
		if !strings.EqualFold(strings.TrimSpace(name), "q") {
			continue
		}
		q, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if weight = q; err != nil || !(q >= 0 && q <= 1) {
			weight = 0
		}
	}
	return coding, weight
}
