package modelsim

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// FaultHeader asks for faults in one request, separated by commas:
//
//	status=N         answer N at once (400..599)
//	reset            reset instead of an answer
//	reset-mid        reset after half of the answer
//	hang             never answer
//	late-headers=D   wait before anything else
//	slow=D           wait before each chunk
//	cut              stop after half of the answer, without a word
//	error-in-stream  an error object after half of a stream, or instead of a JSON answer, with status 200
//	no-usage         leave the usage out
//	no-length        send JSON without content-length
//	gzip             compress the answer
//	goaway           send GOAWAY (HTTP/2) or close (HTTP/1.1) with the answer
//
// For gRPC, status=N is the canonical code of that HTTP status, what strikes
// in the middle of a stream ends it with UNAVAILABLE, and the faults of a
// body's form do nothing.
const FaultHeader = "X-Sim-Fault"

// fault is what is to go wrong with one request; the zero value is nothing.
type fault struct {
	status                      int
	late, slow                  time.Duration
	reset, resetMid, hang, cut  bool
	inStream, noUsage, noLength bool
	gzip, goAway                bool
}

// parseFault reads the text of FaultHeader.
func parseFault(text string) (f fault, err error) {
	flags := map[string]*bool{
		"reset": &f.reset, "reset-mid": &f.resetMid, "hang": &f.hang, "cut": &f.cut,
		"error-in-stream": &f.inStream, "no-usage": &f.noUsage, "no-length": &f.noLength,
		"gzip": &f.gzip, "goaway": &f.goAway,
	}
	for item := range strings.SplitSeq(text, ",") {
		name, value, hasValue := strings.Cut(strings.TrimSpace(item), "=")
		flag, isFlag := flags[name]
		switch {
		case name == "" && !hasValue:
		case isFlag && !hasValue:
			*flag = true
		case name == "status":
			if f.status, err = strconv.Atoi(value); err != nil || f.status < 400 || f.status > 599 {
				return fault{}, fmt.Errorf("fault status must be 400..599, got %q", value)
			}
		case name == "late-headers":
			f.late, err = parseDelay(name, value)
		case name == "slow":
			f.slow, err = parseDelay(name, value)
		default:
			return fault{}, fmt.Errorf("unknown fault %q", item)
		}
		if err != nil {
			return fault{}, err
		}
	}
	return f, nil
}

func parseDelay(name, value string) (time.Duration, error) {
	d, err := time.ParseDuration(value)
	if err != nil || d < 0 || d > time.Hour {
		return 0, fmt.Errorf("fault %s must be a duration of 0..1h, got %q", name, value)
	}
	return d, nil
}

// FaultRule makes requests fail that do not ask for it themselves.
type FaultRule struct {
	Fault string  `json:"fault"`          // as in FaultHeader
	Rate  float64 `json:"rate,omitempty"` // share of the requests; 0 = all
	Next  int     `json:"next,omitempty"` // how many fail before the rule ends; 0 = no end
	Path  string  `json:"path,omitempty"` // of these requests alone; empty = every call of a model
}

// faults holds the rule in force.
type faults struct {
	mu     sync.Mutex
	rng    *rand.Rand
	rule   FaultRule
	parsed fault
	on     bool
}

func newFaults(rng *rand.Rand) *faults { return &faults{rng: rng} }

// SetFault puts a rule in force, in place of the last one.
func (s *Sim) SetFault(rule FaultRule) error {
	parsed, err := parseFault(rule.Fault)
	switch {
	case err != nil:
		return err
	case !(rule.Rate >= 0 && rule.Rate <= 1):
		return fmt.Errorf("rate must be in 0..1, got %v", rule.Rate)
	case rule.Next < 0:
		return fmt.Errorf("next must not be negative, got %d", rule.Next)
	}
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.faults.rule, s.faults.parsed, s.faults.on = rule, parsed, parsed != fault{}
	return nil
}

// ClearFault ends the rule in force.
func (s *Sim) ClearFault() {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.faults.on = false
}

// pick is the fault of one request: its own, else that of the rule.
func (f *faults) pick(r *http.Request) (fault, error) {
	if text := strings.Join(r.Header.Values(FaultHeader), ","); text != "" {
		return parseFault(text)
	}
	return f.roll(r.URL.Path), nil
}

// roll asks the rule.
func (f *faults) roll(path string) fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.on || (f.rule.Path != "" && f.rule.Path != path) {
		return fault{}
	}
	if f.rule.Rate > 0 && f.rng.Float64() >= f.rule.Rate {
		return fault{}
	}
	if f.rule.Next > 0 {
		if f.rule.Next--; f.rule.Next == 0 {
			f.on = false
		}
	}
	return f.parsed
}

func (s *Sim) serveSetFault(w http.ResponseWriter, r *http.Request) {
	var rule FaultRule
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10))
	d.DisallowUnknownFields()
	if err := d.Decode(&rule); err != nil {
		writeError(w, http.StatusBadRequest, "fault rule: "+err.Error())
		return
	}
	if err := s.SetFault(rule); err != nil {
		writeError(w, http.StatusBadRequest, "fault rule: "+err.Error())
		return
	}
	writeJSON(w, http.StatusOK, rule)
}

func (s *Sim) serveClearFault(w http.ResponseWriter, _ *http.Request) {
	s.ClearFault()
	w.WriteHeader(http.StatusNoContent)
}

// serveStats shows the totals and the load.
func (s *Sim) serveStats(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, struct {
		Totals Totals `json:"totals"`
		Load   Load   `json:"load"`
	}{s.Totals(), s.Load()})
}
