package simulate

import "time"

// Result is one policy's run of a scenario. Its JSON form is what `weir
// simulate --json` prints, one object for each policy; a pointer is null
// where the scenario has no burst.
type Result struct {
	Policy   string  `json:"policy"`   // file name without extension, the whole name where two have the same; weir's own is "default"
	Requests int     `json:"requests"` // sent for the first time; tries of the same request count once
	Wall     float64 `json:"wall_s"`   // seconds that the run took

	BurstAdmitted      *float64 `json:"burst_admitted"`       // of requests first sent in the burst: admitted at the first try, or at a later hint within 5 s
	BurstAdmittedFirst *float64 `json:"burst_admitted_first"` // at the first try
	LatencyP99         *float64 `json:"latency_p99_ms"`       // of admitted tries of requests first sent in the burst, from that try's arrival to the end of the answer
	WaitP99            *float64 `json:"wait_p99_ms"`          // the same, to the seat
	Throughput         *float64 `json:"throughput_of_capacity"`
	UtilisationMin     float64  `json:"utilisation_min"` // of the engines' capacity, over windows of one second, during the burst (else the run)
	UtilisationMax     float64  `json:"utilisation_max"`

	Classes map[string]*ClassResult `json:"classes"`

	// What follows is for the report.
	Goodput  float64        `json:"goodput_per_s"` // whole answers a second over the run
	Failed   int            `json:"failed"`        // never served: gave up, refused for good, or broken off
	Reasons  map[string]int `json:"reasons"`       // of every try
	Hints    HintResult     `json:"hints"`
	Skipped  int            `json:"skipped,omitempty"`  // lines of traces that were passed over
	Cut      bool           `json:"cut,omitempty"`      // a trace goes on after the end of its stream; that part was not played
	Advice   string         `json:"advice,omitempty"`   // said when no policy can serve all: how much capacity is missing
	Violated []string       `json:"violated,omitempty"` // invariants that did not hold: always a defect
	Series   []Sample       `json:"-"`

	Tenants map[string]*TenantResult `json:"-"` // the first MaxTenants that were met
}

// MaxTenants is how many tenants a result tells apart.
const MaxTenants = 1000

// TenantResult is one tenant of a run, of all its requests. Served and Failed
// add up to Requests.
type TenantResult struct {
	Requests      int
	AdmittedFirst int // at the first try
	Served        int // whole answers
	Failed        int
	WaitP99       float64 // ms; of admitted tries

	waits []time.Duration
}

// ClassResult is one class of a run; nulls where the scenario has no burst
// are of the whole run instead.
type ClassResult struct {
	Requests      int     `json:"requests"`
	AdmittedFirst float64 `json:"admitted_first"` // share, 0..1
	WaitP99       float64 `json:"wait_p99_ms"`
}

// HintResult judges the retry hints of a run (Q5) by clients that obey them.
type HintResult struct {
	Given         int     `json:"given"`
	Returned      int     `json:"returned"`                 // callers, once at least
	FirstReturn   float64 `json:"admitted_at_first_return"` // share of those who came back
	MedianError   float64 `json:"median_error"`             // |let in - hint| / hint, let in = the seat
	WavePeakRatio float64 `json:"second_wave_peak"`         // most returns in a second / drain rate
}

// Sample is one instant of a run, one a second of virtual time at least, for
// charts.
type Sample struct {
	At       time.Duration
	Waiting  int
	Retrying int
	Running  int
	Seats    int
	Length   int
	Pressure float64          // the fullest pool's
	Admitted [3]float64       // per second, by class
	Refused  float64          // per second
	Wait     [3]time.Duration // mean of those seated since the last sample, by class
}
