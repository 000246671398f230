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
	Load     Value     // of a node's CPU in the last sample; no input of pressure
	Suspect  string    // why its word counts only where nobody else's is fresh; "" = nothing found
}

// take records a sample.
func (s *SourceState) take(p Sample, dropped int) {
	s.At = p.At
	s.Samples++
	s.Misses, s.Error = 0, ""
	s.Dropped += uint64(max(dropped, 0))
	for f, n := range p.Faults {
		s.Faults[f] += n
	}
	s.Blank = !p.Util.OK && !p.KV.OK && !p.Waiting.OK && !p.Load.OK
	s.GPUs = max(p.GPUs, 0)
	s.MostGPUs = max(s.MostGPUs, s.GPUs)
	s.Running = p.Running
	s.Load = p.Load
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
