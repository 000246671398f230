package modelsim

import (
	"maps"
	"sync"
)

// Count is what happened to requests and tokens. What a client has seen is
// always counted already: numbers are booked before they are sent.
type Count struct {
	Started   int64 `json:"started"`
	Finished  int64 `json:"finished"` // answered to the end
	Aborted   int64 `json:"aborted"`  // the client went away, or a fault cut the answer
	Failed    int64 `json:"failed"`   // answered with an error (status, or inside the stream)
	Prompt    int64 `json:"prompt_tokens"`
	Output    int64 `json:"output_tokens"`    // made by the engine
	Delivered int64 `json:"delivered_tokens"` // of Output, handed to the client
}

func (c *Count) add(d Count) {
	c.Started += d.Started
	c.Finished += d.Finished
	c.Aborted += d.Aborted
	c.Failed += d.Failed
	c.Prompt += d.Prompt
	c.Output += d.Output
	c.Delivered += d.Delivered
}

// Totals are the counts of a simulator since its start, or since Reset.
type Totals struct {
	Count
	InFlight int64            `json:"in_flight"` // started and not ended
	Peak     int64            `json:"peak"`      // most in flight at once
	Tenants  map[string]Count `json:"tenants"`   // by the header x-weir-tenant, where it came
}

// maxTenants bounds the table of tenants; the rest is counted in the sum only.
const maxTenants = 10_000

type totals struct {
	mu      sync.Mutex
	idle    *sync.Cond
	sum     Count
	active  int64
	peak    int64
	tenants map[string]Count
}

func newTotals() *totals {
	t := &totals{tenants: make(map[string]Count)}
	t.idle = sync.NewCond(&t.mu)
	return t
}

// book adds to the sum and to the tenant, if any.
func (t *totals) book(tenant string, d Count) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sum.add(d)
	t.active += d.Started - d.Finished - d.Aborted - d.Failed
	t.peak = max(t.peak, t.active)
	if t.active == 0 {
		t.idle.Broadcast()
	}
	if tenant == "" {
		return
	}
	c, known := t.tenants[tenant]
	if !known && len(t.tenants) >= maxTenants {
		return
	}
	c.add(d)
	t.tenants[tenant] = c
}

func (t *totals) read() Totals {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Totals{Count: t.sum, InFlight: t.active, Peak: t.peak, Tenants: maps.Clone(t.tenants)}
}

func (t *totals) reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sum, t.peak = Count{Started: t.active}, t.active
	clear(t.tenants)
}
