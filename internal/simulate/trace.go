package simulate

import "time"

// TraceFile is a recording that is played as a stream of arrivals.
type TraceFile struct {
	Name   string            // relative to the scenario's directory; .gz is read as it is
	Format TraceFormat       // default: by the name, .csv or .json/.jsonl/.log
	Speed  float64           // how many times faster than it was recorded; default 1
	Fields map[string]string // access log: where a value stands, by our name of it; see accessLogFields
}

// TraceFormat is the form of a recording.
type TraceFormat uint8

// The forms.
const (
	CSV TraceFormat = iota
	AccessLog
)

// Call is one request as a trace tells it. What a trace does not say (empty
// or zero) is drawn from the stream's Requests and Tenants.
type Call struct {
	At        time.Duration // from the stream's From, speed applied; never falls
	Tenant    string
	Class     string
	Tier      string
	Model     string
	Stream    *bool
	Prompt    int64
	Output    int64
	MaxTokens int64
}
