package admission

// Reason is the closed list of why a request was decided as it was: metric
// label, x-weir-reason header, audit code. Everything that follows from a
// reason (action, status, advice, words) stands in one table, reasontable.go;
// adapters look up and never choose a status of their own.
type Reason uint8

// The reasons. The zero value is Admitted: a Decision that nobody filled in
// must not be sent, see Decide.
const (
	// Admitted.
	Admitted        Reason = iota
	AdmittedPass           // mode pass: no room was asked (O4)
	AdmittedFree           // an API of kind free: identity only, no seat
	DegradedExpiry         // MaxWait ended, a lower pool had a free seat (P3, V2)
	DegradedBreaker        // breaker open at the soft level (B1, V2)
	DegradedVariant        // the model has no pool of the class's precision or above (V1)
	DegradedCost           // a pool of lower precision costs less now (V3)
	DegradedSession        // its session runs at a lower precision (V3)
	AdmittedLane           // the breaker is open and the priority lane has a seat (P8)
	Queued                 // only as Intended in shadow: would be waiting

	// The tenant's ledger (T7).
	QuotaRequests
	QuotaTokens
	QuotaConcurrency
	QuotaNever   // the claim is larger than the whole limit
	AwaitedBytes // bodies of the tenant that are still to come

	// The waiting room (P2, P3, Q5, Q6, Q9).
	QueueSoft
	QueueFull
	ClassFull
	TenantQueueFull
	HeldBytes
	ExpiredDrop
	ExpiredDegrade
	ExpiredRetry
	RetryFull
	NonStreamingFull // P7: no seat within nonStreaming.maxWait
	Deadline
	TooLarge

	// The fuse box and the pools (B1, V1).
	BreakerOpen
	BreakerShed
	TenantBreaker // the tenant's own (B5, T2)
	NoPool

	// Who asks (K1, K2).
	TokenMissing
	TokenMalformed
	TokenInvalid
	TokenExpired
	TokenRevoked
	KeysUnavailable
	IdentityMissing
	TenantBlocked
	ScopeService
	ScopeFunction
	ParameterDenied
	ModelDenied

	// What is asked.
	ModelUnknown
	PathUnknown
	HeaderInvalid
	BodyMissing
	BodyInvalid
	BodyDuplicate
	BodyField
	BodyTruncated
	BodyTooLarge
	BodyType
	BodyEncoding
	UpgradeRefused

	// weir itself.
	OverrideInvalid
	StoreUnavailable
	Draining
	ClientGone
	Internal

	numReasons // keep last
)

// NumReasons is the number of reasons: every Reason below it has a row.
const NumReasons = int(numReasons)

// Advice says whose word the retry hint of a refusal is.
type Advice uint8

// The advisers.
const (
	AdviceNone    Advice = iota // waiting does not help: no hint
	AdviceQueue                 // when the line would let this caller in, as it says (Q5)
	AdviceQuota                 // true wait until the claim fits
	AdviceBreaker               // until the breaker may admit, spread
	AdviceTenant                // until the tenant's breaker may admit, spread and not cut short
	AdviceFixed                 // one second
)

// Row is what follows from a reason.
type Row struct {
	Name    string // metric label and x-weir-reason
	Action  Action
	HTTP    int    // status; 200 where admitted
	GRPC    int    // status code; 0 where admitted
	Counts  bool   // for a breaker; our own refusals never do (B6)
	Advice  Advice // who gives RetryAfter
	Type    string // OpenAI error type; "" where admitted
	Code    string // OpenAI error code; "" where admitted
	Message string // one sentence for the client; "" where admitted
}

// Row is the reason's row; an unknown value gives Internal's.
func (r Reason) Row() Row {
	if r >= numReasons {
		r = Internal
	}
	return table[r]
}

// String is the reason's name; "unknown" outside the list.
func (r Reason) String() string {
	if r >= numReasons {
		return "unknown"
	}
	return table[r].Name
}

// Admits reports whether a request decided so runs.
func (r Reason) Admits() bool {
	a := r.Row().Action
	return a == Admit || a == Degrade
}

// ParseReason finds a reason by its name.
func ParseReason(s string) (Reason, bool) {
	for r := range numReasons {
		if table[r].Name == s {
			return r, true
		}
	}
	return 0, false
}

// Decide makes the decision that follows from a reason, for refusals that an
// adapter finds by itself. detail names the field, the value and the bound;
// it reaches the client. AdviceFixed is filled in.
func Decide(r Reason, detail string) Decision {
	row := r.Row()
	d := Decision{Action: row.Action, Reason: r, Detail: detail}
	if row.Advice == AdviceFixed {
		d.RetryAfter = fixedAdvice
	}
	return d
}

// String is the action's name.
func (a Action) String() string {
	switch a {
	case Admit:
		return "admit"
	case Degrade:
		return "degrade"
	case Reject:
		return "reject"
	case Shed:
		return "shed"
	case Deny:
		return "deny"
	case Challenge:
		return "challenge"
	}
	return "unknown"
}
