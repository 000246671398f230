package scrape

import (
	"errors"
	"fmt"
	"strings"

	"github.com/weirproxy/weir/policy"
)

// role is what a metric means to weir.
type role uint8

const (
	roleWaiting role = iota // requests waiting
	roleRunning             // requests running
	roleKV                  // KV-cache use, 0..1
	roleKVUsed              // blocks of the KV cache in use
	roleKVMax               // blocks of the KV cache
	numRoles
)

// candidate is one name of a signal. Where a text has several candidates of
// one role, those of the lowest rank count and the others are left out.
type candidate struct {
	role     role
	rank     int
	selector filter
	apart    filter // labels that do not tell one engine from another
}

// engine is a kind of engine: its metrics by name, and the labels that tell
// ranks which work on the same requests.
type engine struct {
	names map[string][]candidate
	ranks []string
}

// newEngine reads a table of names, each a name or name{label="value",...};
// in order of preference.
func newEngine(m policy.EngineMetrics, ranks ...string) (engine, error) {
	e := engine{names: make(map[string][]candidate), ranks: ranks}
	for role, list := range map[role][]string{roleWaiting: m.Waiting, roleRunning: m.Running, roleKV: m.KV} {
		for rank, text := range list {
			if err := e.add(role, rank, text); err != nil {
				return engine{}, fmt.Errorf("engine %s: %w", m.Name, err)
			}
		}
	}
	if len(e.names) == 0 {
		return engine{}, fmt.Errorf("engine %s: no metric is named", m.Name)
	}
	return e, nil
}

func (e *engine) add(r role, rank int, text string) error {
	var s selectorTaker
	line := []byte(text + " 0 0\n") // a value and a timestamp: nothing else may be there
	if err := new(scanner).scan(line, &s); err != nil || s.name == "" || strings.Contains(text, "\n") {
		return fmt.Errorf("metric %.80q must be a name or name{label=\"value\"}", text)
	}
	e.names[s.name] = append(e.names[s.name], candidate{r, rank, s.selector, append(newRanks(e.ranks), s.selector...)})
	return nil
}

func newRanks(names []string) filter {
	var f filter
	for _, name := range names {
		f = append(f, labelIs{name: name})
	}
	return f
}

// selectorTaker takes a candidate apart with the scanner of the text itself,
// whose series it resembles.
type selectorTaker struct {
	name     string
	selector filter
}

func (t *selectorTaker) want([]byte) bool  { return true }
func (t *selectorTaker) typed(_, _ []byte) {}

func (t *selectorTaker) take(s *series) {
	t.name = string(s.name)
	for _, l := range s.labels {
		t.selector = append(t.selector, labelIs{string(l.name), string(l.value)})
	}
}

// builtIn is an engine whose names weir knows: those of its documentation.
func builtIn(kind string) (engine, bool) {
	m := policy.EngineMetrics{Name: kind}
	var ranks []string
	switch kind {
	case policy.KindVLLM:
		// A share in spite of its name; gpu_cache_usage_perc up to 0.8.
		m.Waiting = []string{"vllm:num_requests_waiting"}
		m.Running = []string{"vllm:num_requests_running"}
		m.KV = []string{"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"}
	case policy.KindSGLang:
		// With priority scheduling the total has an empty priority and stands
		// beside its parts. Tensor and pipeline ranks of one data rank tell of
		// the same requests.
		m.Waiting = []string{`sglang:num_queue_reqs{priority=""}`}
		m.Running = []string{`sglang:num_running_reqs{priority=""}`}
		m.KV = []string{"sglang:token_usage"}
		ranks = []string{"tp_rank", "pp_rank", "moe_ep_rank"}
	case policy.KindTGI: // names nothing of its cache
		m.Waiting = []string{"tgi_queue_size"}
		m.Running = []string{"tgi_batch_current_size"}
	case policy.KindTriton: // its exec_count and inference_count are totals
		m.Waiting = []string{"nv_inference_pending_request_count"}
	case policy.KindTritonLLM:
		m.Waiting = []string{`nv_trt_llm_request_metrics{request_type="waiting"}`}
		m.Running = []string{`nv_trt_llm_request_metrics{request_type="scheduled"}`}
		m.KV = []string{`nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction"}`}
	case policy.KindTRTLLM:
		m.Waiting = []string{"trtllm_num_requests_waiting"}
		m.Running = []string{"trtllm_num_requests_running"}
		m.KV = []string{"trtllm_kv_cache_utilization"}
	default:
		return engine{}, false
	}
	e, err := newEngine(m, ranks...)
	if err == nil && kind == policy.KindTritonLLM { // before there was a fraction
		err = errors.Join(
			e.add(roleKVUsed, 0, `nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used"}`),
			e.add(roleKVMax, 0, `nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max"}`))
	}
	return e, err == nil
}

// labelIs is a label that a series must have. An empty value also matches a
// label that is not there.
type labelIs struct{ name, value string }

// filter is the labels that a series must have.
type filter []labelIs

func newFilter(match map[string]string) filter {
	var f filter
	for name, value := range match {
		f = append(f, labelIs{name, value})
	}
	return f
}

// pass says whether a series has them all.
func (f filter) pass(s *series) bool {
	for i := range f {
		if string(s.label(f[i].name)) != f[i].value {
			return false
		}
	}
	return true
}
