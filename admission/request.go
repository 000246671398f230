package admission

import (
	"time"

	"github.com/weirproxy/weir/identity"
	"github.com/weirproxy/weir/policy"
)

// Request is what the hallway asks the desk: everything already verified and
// parsed. The desk does not change it.
type Request struct {
	ID       string    // of the ticket; made by weir (128 random bits, hex)
	Received time.Time // first message seen
	Identity *identity.Identity
	Policy   *policy.Effective
	API      *policy.API
	Function string       // scope name, for matches
	Model    string       // policy's model name; "" only for kinds without one
	Class    policy.Class // after P1: token, headers, route
	Colour   policy.Colour
	Stream   bool
	Priority bool   // P8: carries a priority header that its token allows (class critical or colour red)
	Attempt  int    // how many tries the caller says came before this one; a claim, believed only among the tenant's own
	Session  string // the session it belongs to, by the caller's word; "" = none
	GRPC     bool
	Prompt   int64     // bytes of prompt text
	Tokens   int64     // of the prompt, given as ids
	Media    int64     // parts of the prompt that are not text
	Prompts  int64     // in this one request; 0 = 1
	Choices  int64     // answers to all prompts together; 0 = 1
	MaxOut   int64     // the caller's own output cap over all choices; 0 = none
	MinOut   int64     // what the caller has the model generate at least, over all choices
	ToTheEnd bool      // the model is to go on to its cap
	Fixed    int64     // fixed cost in tokens (kinds JSON, Opaque, GRPC); 0 = estimate
	Body     int64     // bytes held while waiting, in Envoy and here
	Timed    bool      // it was received whole, and weir sees its answer begin: the pool's firstByte holds
	Deadline time.Time // the caller's; zero = none
}

// Decision is the answer. It is a value: copies are cheap.
type Decision struct {
	Action     Action
	Reason     Reason
	RetryAfter time.Duration // 0 = no advice
	Waited     time.Duration
	Pool       string // chosen pool; "" when refused before the choice
	Cluster    string
	Variant    policy.Variant
	Degraded   bool       // runs below its class's variant
	NoRetry    bool       // the caller is not to try again by itself, not even after RetryAfter (B9)
	Policy     string     // policy hash + profile
	Shadow     bool       // recorded, not acted on (O4)
	Intended   Reason     // in shadow: what would have been
	Quota      *QuotaView // of the tightest rule, for headers; nil = none
	Detail     string     // names the field, the value and the bound, for the client
	Trail      Trail
}

// QuotaView is what headers say of a quota.
type QuotaView struct {
	Rule      string
	Limit     policy.Limit
	Remaining int64
	Reset     time.Duration
}

// Action is what is done with a request.
type Action uint8

// The actions.
const (
	Admit     Action = iota
	Degrade          // admitted on a lower precision
	Reject           // 429
	Shed             // 503
	Deny             // 400/401/403/404/413/415
	Challenge        // 401/403 with a challenge
)

// Room is where a step of the trail was judged.
type Room uint8

// The rooms, in the order of a request.
const (
	RoomQuota Room = iota
	RoomBreaker
	RoomGauge
	RoomQueue
)

// Step is what one room saw.
type Step struct {
	Room     Room
	What     string // a constant name: "class_cap", "per-tenant/tokens/5m"
	Observed float64
	Limit    float64
	OK       bool
}

// Trail is the rooms' steps in order; fixed size, the last slot is
// overwritten when full.
type Trail struct {
	Steps [8]Step
	N     uint8
}
