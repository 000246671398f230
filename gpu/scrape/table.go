package scrape

// role is what a metric means to weir.
type role uint8

const (
	roleNone     role = iota
	roleUtil          // utilisation of a device, 0..100
	roleRatio         // time its graphics engine was active, 0..1
	roleSM            // time its SMs were active, 0..1
	rolePresence      // says only that the device is there
	roleWaiting       // requests waiting
	roleRunning       // requests running
	roleKV            // KV-cache use, 0..1
)

// candidate is one name of a signal. Where a text has several names of one
// role, the lowest rank counts and the others are left out.
type candidate struct {
	role role
	rank int
}

// table maps metric names to roles.
type table map[string]candidate

// dcgm: names of DCGM up to 4.5 first, those of 4.6 after; the numbers of the
// fields (203, 1001, 1002, 252) did not change. Field 203 is a percentage
// under either name.
func dcgm() table {
	return table{
		"DCGM_FI_DEV_GPU_UTIL":              {roleUtil, 0},
		"DCGM_FI_DEV_GPU_UTIL_RATIO":        {roleUtil, 1},
		"DCGM_FI_PROF_GR_ENGINE_ACTIVE":     {roleRatio, 0},
		"DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO": {roleRatio, 1},
		"DCGM_FI_PROF_SM_ACTIVE":            {roleSM, 0},
		"DCGM_FI_PROF_SM_UTIL_RATIO":        {roleSM, 1},
		"DCGM_FI_DEV_FB_USED":               {rolePresence, 0},
	}
}

// vllm: the cache was gpu_cache_usage_perc up to 0.8; a share in spite of its
// name.
func vllm() table {
	return table{
		"vllm:num_requests_waiting": {roleWaiting, 0},
		"vllm:num_requests_running": {roleRunning, 0},
		"vllm:kv_cache_usage_perc":  {roleKV, 0},
		"vllm:gpu_cache_usage_perc": {roleKV, 1},
	}
}

// filter is the labels that a series must have.
type filter []struct{ name, value string }

func newFilter(match map[string]string) filter {
	var f filter
	for name, value := range match {
		f = append(f, struct{ name, value string }{name, value})
	}
	return f
}

// pass says whether a series has them all. An empty value also matches a
// label that is not there.
func (f filter) pass(s *series) bool {
	for i := range f {
		if string(s.label(f[i].name)) != f[i].value {
			return false
		}
	}
	return true
}
