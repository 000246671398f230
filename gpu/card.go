package gpu

import "time"

// Card is one GPU, or one MIG instance of it, in one sample (O1, resources).
// Ratios are 0..1; what is not known is absent.
type Card struct {
	ID       string // UUID, else host (or the exporter's address) and index; with the instance it names the card
	Host     string
	Index    string // on its host
	Instance string // MIG instance; "" = the whole GPU
	Slices   int    // compute slices of a MIG instance; 0 = not known, or the whole GPU

	Endpoints Endpoints // the model endpoints that it serves

	Util         Value // utilisation
	Active       Value // time that its engines were active (profiling)
	SM           Value // share of SMs active (profiling)
	Occupancy    Value // warps resident on the SMs, of the most that fit (profiling)
	Tensor       Value // tensor pipe active (profiling)
	DRAM         Value // memory interface active (profiling)
	MemoryUsed   Value // bytes
	MemoryTotal  Value // bytes
	PCIeReceived Value // bytes a second
	PCIeSent     Value // bytes a second
	Power        Value // watts
	Temperature  Value // degrees Celsius
	XID          Value // code of the last XID error; 0 = none since the driver was loaded
	Clocks       Value // bit mask of clock event reasons

	XIDAt time.Time // when that XID error occurred, by the clock of whoever looks; zero = not known, or none
}

// Endpoint is the health of one model endpoint as its GPUs tell it: a plain
// value that cmd hands to whoever steers traffic.
type Endpoint struct {
	Name    string
	Pool    string
	Healthy bool
	Reason  string // "" while healthy
}
