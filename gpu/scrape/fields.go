package scrape

// column is one figure of a GPU or MIG instance.
type column uint8

const (
	colUtil column = iota
	colActive
	colSM
	colOccupancy
	colTensor
	colDRAM
	colUsed
	colFree
	colReserved
	colTotal
	colReceived
	colSent
	colReceivedTotal // running totals, of which a rate is made
	colSentTotal
	colPower
	colTemperature
	colXID
	colXIDTime // Unix time
	colClocks
	numColumns
)

// field is one name of a column: the larger of top is not believed, and scale
// makes it the unit of gpu.Card. The lowest rank in a text counts.
type field struct {
	column     column
	rank       int
	top, scale float64
}

const (
	mebi      = 1 << 20
	maxMemory = 1e8  // MiB
	maxRate   = 1e12 // bytes a second
	maxTotal  = 1 << 62
	maxTime   = 1 << 34 // Unix time, seconds: the year 2514
)

// dcgmFields: the names of DCGM up to 4.5 first, those of 4.6 after; the
// numbers of the fields did not change. 203 is a percentage under either
// name. 1009 and 1010 are bytes a second, whatever type the exporter's list
// of counters gives them (it is printed as written there); 200 and 201 are
// KB/s by the same argument. Only 1091 and 1092 are totals.
func dcgmFields() map[string]field {
	ratio := func(c column, rank int) field { return field{c, rank, 1, 1} }
	memory := func(c column) field { return field{c, 0, maxMemory, mebi} }
	return map[string]field{
		"DCGM_FI_DEV_GPU_UTIL":               {colUtil, 0, 100, 0.01},
		"DCGM_FI_DEV_GPU_UTIL_RATIO":         {colUtil, 1, 100, 0.01},
		"DCGM_FI_PROF_GR_ENGINE_ACTIVE":      ratio(colActive, 0),
		"DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO":  ratio(colActive, 1),
		"DCGM_FI_PROF_SM_ACTIVE":             ratio(colSM, 0),
		"DCGM_FI_PROF_SM_UTIL_RATIO":         ratio(colSM, 1),
		"DCGM_FI_PROF_SM_OCCUPANCY":          ratio(colOccupancy, 0),
		"DCGM_FI_PROF_SM_OCCUPANCY_RATIO":    ratio(colOccupancy, 1),
		"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE":    ratio(colTensor, 0),
		"DCGM_FI_PROF_TENSOR_UTIL_RATIO":     ratio(colTensor, 1),
		"DCGM_FI_PROF_DRAM_ACTIVE":           ratio(colDRAM, 0),
		"DCGM_FI_PROF_DRAM_UTIL_RATIO":       ratio(colDRAM, 1),
		"DCGM_FI_DEV_FB_USED":                memory(colUsed),
		"DCGM_FI_DEV_FB_FREE":                memory(colFree),
		"DCGM_FI_DEV_FB_RESERVED":            memory(colReserved),
		"DCGM_FI_DEV_FB_TOTAL":               memory(colTotal),
		"DCGM_FI_PROF_PCIE_RX_BYTES":         {colReceived, 0, maxRate, 1},
		"DCGM_FI_PROF_PCIE_TX_BYTES":         {colSent, 0, maxRate, 1},
		"DCGM_FI_DEV_PCIE_RX_THROUGHPUT":     {colReceived, 1, maxRate / 1000, 1000},
		"DCGM_FI_DEV_PCIE_TX_THROUGHPUT":     {colSent, 1, maxRate / 1000, 1000},
		"DCGM_FI_PROF_PCIE_RX_BYTES_TOTAL":   {colReceivedTotal, 0, maxTotal, 1},
		"DCGM_FI_PROF_PCIE_TX_BYTES_TOTAL":   {colSentTotal, 0, maxTotal, 1},
		"DCGM_FI_DEV_POWER_USAGE":            {colPower, 0, 1e5, 1},
		"DCGM_FI_DEV_BOARD_POWER_WATTS":      {colPower, 1, 1e5, 1},
		"DCGM_FI_DEV_GPU_TEMP":               {colTemperature, 0, 200, 1},
		"DCGM_FI_DEV_GPU_TEMP_CELSIUS":       {colTemperature, 1, 200, 1},
		"DCGM_FI_DEV_XID_ERRORS":             {colXID, 0, 1e5, 1},
		"DCGM_FI_DEV_XID_ERROR":              {colXID, 1, 1e5, 1},
		"weir_gpu_agent_xid_time_seconds":    {colXIDTime, 0, maxTime, 1},
		"DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": {colClocks, 0, 1 << 30, 1},
		"DCGM_FI_DEV_CLOCKS_EVENT_REASONS":   {colClocks, 1, 1 << 30, 1},
	}
}

// tritonFields: what Triton tells of the GPUs that it runs on.
func tritonFields() map[string]field {
	return map[string]field{
		"nv_gpu_utilization":        {colUtil, 0, 1, 1},
		"nv_gpu_memory_used_bytes":  {colUsed, 0, maxMemory * mebi, 1},
		"nv_gpu_memory_total_bytes": {colTotal, 0, maxMemory * mebi, 1},
		"nv_gpu_power_usage":        {colPower, 0, 1e5, 1},
	}
}
