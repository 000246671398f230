package dashboard

// Units of Grafana.
const (
	ratio   = "percentunit"
	count   = "short"
	bytesIn = "bytes"
	rate    = "Bps"
	watts   = "watt"
	celsius = "celsius"
	seconds = "s"
	perSec  = "cps"
)

// Resources shows what is behind the pools: how full they are and why, the
// engines, the GPUs, and how well their telemetry is.
func Resources() *Dashboard {
	return &Dashboard{
		UID: "weir-resources", Title: "weir: resources",
		About: "How full the pools are and why, what engines and GPUs say, and how well their telemetry is. Made by internal/dashboard; docs/metrics.md explains the metrics.",
		Rows:  []Row{pressureRow(), engineRow(), activityRow(), useRow(), boardRow(), sourceRow()},
	}
}

func pressureRow() Row {
	return Row{"Pressure", []Panel{
		{Title: "Pressure", About: "How full the pool is (Q8), and the parts it is made of. Parts that do not count are shown too: /debug/gpu says which.", Unit: ratio, Top: 1, Queries: []Query{
			{Name: "pressure", Agg: "max", Metric: "weir_gauge_pressure"},
			{Agg: "max", Metric: "weir_gauge_part", By: []string{"source", "signal"}},
		}},
		{Title: "Queue", About: "How many may wait (Q1), and how many do.", Unit: count, Queries: []Query{
			{Name: "length", Agg: "sum", Metric: "weir_queue_length"},
			{Name: "waiting", Agg: "sum", Metric: "weir_queue_depth"},
		}},
		{Title: "Seats", About: "Requests at once: what there is, what is in use, what policy or engine want (Q9).", Unit: count, Queries: []Query{
			{Name: "seats", Agg: "sum", Metric: "weir_seats", Match: `currency="requests"`},
			{Name: "used", Agg: "sum", Metric: "weir_seats_used", Match: `currency="requests"`},
			{Name: "wanted", Agg: "sum", Metric: "weir_seats_wanted"},
		}},
	}}
}

func engineRow() Row {
	return Row{"Engines and nodes", []Panel{
		{Title: "KV-cache use", About: "Of the fullest engine.", Unit: ratio, Top: 1, Queries: []Query{{Agg: "max", Metric: "weir_gauge_kv_use"}}},
		{Title: "Requests in the engines", About: "By the engines' own count: every caller's.", Unit: count, Queries: []Query{
			{Name: "waiting", Agg: "max", Metric: "weir_gauge_engine_waiting"},
			{Name: "running", Agg: "max", Metric: "weir_gauge_engine_running"},
		}},
		{Title: "CPU load of the nodes", Unit: ratio, Top: 1, Queries: []Query{{Agg: "max", Metric: "weir_gauge_node_load"}}},
	}}
}

// card asks for a figure of each GPU and MIG instance.
func card(name, metric string) Query {
	return Query{Name: name, Agg: "max", Metric: metric, By: []string{"host", "index", "mig", "gpu"}}
}

func activityRow() Row {
	memory := card("", "weir_gpu_memory_used_bytes")
	memory.Over = "weir_gpu_memory_total_bytes"
	return Row{"GPUs: activity", []Panel{
		{Title: "GPU memory", About: "In use, of what there is. Engines take most of it at their start: KV-cache use says how full they are.", Unit: ratio, Top: 1, Queries: []Query{memory}},
		{Title: "SM activity", About: "SMs active (profiling). Utilisation only says that anything ran.", Unit: ratio, Top: 1, Queries: []Query{card("", "weir_gpu_sm_active_ratio")}},
		{Title: "Utilisation", Unit: ratio, Top: 1, Queries: []Query{card("", "weir_gpu_util_ratio")}},
	}}
}

func useRow() Row {
	held := card("", "weir_gpu_clock_reason")
	held.Match, held.By = `reason!="none"`, append(held.By, "reason")
	return Row{"GPUs: how well they are used", []Panel{
		{Title: "SM occupancy", About: "Warps resident on the SMs, of the most that fit (profiling). Low beside a high SM activity: the kernels are too small to hide the memory's latency.", Unit: ratio, Top: 1, Queries: []Query{card("", "weir_gpu_sm_occupancy_ratio")}},
		{Title: "Tensor activity", About: "Tensor pipe active (profiling).", Unit: ratio, Top: 1, Queries: []Query{card("", "weir_gpu_tensor_active_ratio")}},
		{Title: "Held back", About: "Why a GPU does not run at full clocks. Heat (thermal), power brake and hw_slowdown are the hardware's own and make it degraded; sw_power_cap is the limit of its board, idle and settings are no trouble.", States: []string{"no", "yes"}, Queries: []Query{held}},
	}}
}

func boardRow() Row {
	return Row{"GPUs: boards", []Panel{
		{Title: "PCIe", Unit: rate, Queries: []Query{
			card("received", "weir_gpu_pcie_received_bytes_per_second"),
			card("sent", "weir_gpu_pcie_sent_bytes_per_second"),
		}},
		{Title: "Power", Unit: watts, Queries: []Query{card("", "weir_gpu_power_watts")}},
		{Title: "Temperature", Unit: celsius, Queries: []Query{card("", "weir_gpu_temperature_celsius")}},
		{Title: "Health", About: "Degraded: slowed down by the hardware. Faulty: a fatal XID of late. Lost: its source answers without it.", States: []string{"healthy", "degraded", "faulty", "lost"}, Queries: []Query{card("", "weir_gpu_health")}},
	}}
}

func sourceRow() Row {
	return Row{"Telemetry", []Panel{
		{Title: "Capacity", About: "Share of the GPUs that are neither faulty nor lost: seats go with it.", Unit: ratio, Top: 1, Queries: []Query{{Agg: "min", Metric: "weir_gauge_capacity"}}},
		{Title: "Age of samples", Unit: seconds, Queries: []Query{{Agg: "max", Metric: "weir_gauge_source_age_seconds", By: []string{"source"}}}},
		{Title: "Left out", About: "Looks and readings that were left out, by kind.", Unit: perSec, Queries: []Query{{Agg: "sum", Metric: "weir_gauge_faults_total", By: []string{"source", "kind"}, Rate: true}}},
		{Title: "Believed", About: "A source that contradicts itself or the engines, or has said the same for long, counts only while no other speaks.", States: []string{"yes", "no"}, Queries: []Query{{Agg: "max", Metric: "weir_gauge_suspect", By: []string{"source"}}}},
	}}
}
