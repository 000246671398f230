package breaker

// Outcome is what an end says about the upstream.
type Outcome uint8

// The outcomes. Ignored ends are not recorded; a probe that ends so is
// forgotten.
const (
	Ignored Outcome = iota // says nothing: the caller's doing, ours, or unknown
	Success
	Failure
)

// String is the word in the documented table.
func (o Outcome) String() string {
	switch o {
	case Success:
		return "success"
	case Failure:
		return "failure"
	}
	return "ignored"
}

// Evidence is what was seen of one admitted request. The zero value is
// nothing seen.
type Evidence struct {
	Ours    bool   // refused or ended by weir, here or at a lower stage
	Details string // Envoy's response.code_details; "" = unknown, "via_upstream" = the upstream answered

	Status     int  // HTTP status; 0 = none
	GRPC       bool // a gRPC status was seen, in headers or trailers
	GRPCStatus int

	Uploading bool // the request had not been received to its end

	Error        bool // an error inside an answer of status 200
	CallersFault bool // and its code or type blames the caller

	Cancelled bool // the client left
	Cut       bool // ended before its end, without a word
}

// Classify judges an end by B6: by the first of Rules that fits.
func Classify(e Evidence) Outcome { return rules[ruleOf(e)].Counts }

func ruleOf(e Evidence) int {
	byEnvoy := e.Details != "" && e.Details != viaUpstream
	for i := range rules {
		r := &rules[i]
		if (byEnvoy || r.Who != "Envoy") && r.fits(e) {
			return i
		}
	}
	return len(rules) - 1
}
