package gpu

import "time"

// SourceState is the health of one source, for metrics, readiness and /debug.
type SourceState struct {
	Name     string
	Engine   bool
	Every    time.Duration
	At       time.Time // of its last sample; zero = none yet
	Samples  uint64    // taken
	Repeated uint64    // ignored: not newer than the last one
	Missed   uint64    // failed
	Misses   int       // failed in a row; 0 = the last one came
	Error    string    // of the last failure, while Misses > 0
	Dropped  uint64    // readings dropped as sentinel, blank, NaN or out of range
	Faults   Faults    // of readings and of looks, by kind
	Blank    bool      // the last sample came without any value that counts
	GPUs     int       // in the last sample
	MostGPUs int       // in any sample: GPUs below it are lost
	Running  Value     // in the last sample; shown, no input
	Suspect  string    // why its utilisation is not to be believed; "" = nothing found

	util, active Value
}

// suspect figures: a GPU that says it is all busy while its engines never
// ran, or the other way round.
const (
	allBusy = 0.95
	allIdle = 0.01
)

// take records a sample.
func (s *SourceState) take(p Sample, dropped int) {
	s.At = p.At
	s.Samples++
	s.Misses, s.Error = 0, ""
	s.Dropped += uint64(max(dropped, 0))
	for f, n := range p.Faults {
		s.Faults[f] += n
	}
	s.Blank = !p.Util.OK && !p.KV.OK && !p.Waiting.OK
	s.GPUs = max(p.GPUs, 0)
	s.MostGPUs = max(s.MostGPUs, s.GPUs)
	s.Running = p.Running
	s.util, s.active = p.Util, p.Active
	s.Suspect = ""
	switch {
	case !p.Util.OK || !p.Active.OK:
	case p.Util.V >= allBusy && p.Active.V <= allIdle:
		s.Suspect = "utilisation says busy, profiling says idle"
	case p.Util.V <= allIdle && p.Active.V >= allBusy:
		s.Suspect = "utilisation says idle, profiling says busy"
	}
}

// miss records a failure.
func (s *SourceState) miss(err error) {
	s.Missed++
	s.Faults[FaultOf(err)]++
	s.Misses++
	s.Error = "unknown error"
	if err != nil {
		s.Error = err.Error()
	}
}

// flagIdle flags GPUs that say zero while an engine of the pool runs requests.
func flagIdle(states []SourceState) {
	running := false
	for i := range states {
		running = running || (states[i].Running.OK && states[i].Running.V > 0)
	}
	for i := range states {
		s := &states[i]
		if running && s.Suspect == "" && s.util.OK && s.util.V == 0 {
			s.Suspect = "utilisation says idle, engines run requests"
		}
	}
}
