package admission

import (
	"encoding/json"
	"fmt"
	"hash/maphash"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/policy"
)

// Explain keeps the last decisions with their trails, for operators. It is an
// Observer; it holds names and numbers, never a prompt. Safe for concurrent
// use; decisions are kept in shards, so that requests do not meet at one lock.
//
// Refusals of callers without a verified identity have records of their own:
// however many there are, they push out no decision about a verified caller.
// Of refusals a sample is kept; see Sampler.
type Explain struct {
	seed    maphash.Seed
	shards  [explainShards]explainShard
	sampler *Sampler
	rules   atomic.Pointer[policy.Refusals] // nil = every refusal is kept
}

const explainShards = 16

type explainShard struct {
	mu                  sync.Mutex
	verified, anonymous explainRing
}

type explainRing struct {
	slots []Record
	next  int
	byID  map[string]int
}

func (r *explainRing) resize(n int) {
	if len(r.slots) != n {
		r.slots, r.next, r.byID = make([]Record, n), 0, make(map[string]int, n)
	}
}

// take gives the slot for a new record.
func (r *explainRing) take(id string) *Record {
	slot := &r.slots[r.next]
	if at, ok := r.byID[slot.ID]; ok && at == r.next {
		delete(r.byID, slot.ID)
	}
	r.byID[id] = r.next
	r.next = (r.next + 1) % len(r.slots)
	return slot
}

// find is the record of an id.
func (s *explainShard) find(id string) *Record {
	for _, r := range []*explainRing{&s.verified, &s.anonymous} {
		if i, ok := r.byID[id]; ok {
			return &r.slots[i]
		}
	}
	return nil
}

// Record is one decision as it was kept.
type Record struct {
	ID       string
	At       time.Time
	Tenant   string
	Class    string
	Model    string
	Prompt   int64 // bytes of prompt
	Stream   bool
	Priority bool // carries the priority header, as far as its token allows (P8)
	Attempt  int  // tries before this one, by the caller's word (Q5)
	Decision Decision
	Ended    bool
	Result   Result
	Charged  int64
	Seat     time.Duration

	quota QuotaView // Decision.Quota points here
}

// NewExplain keeps about n decisions, and a tenth as many refusals of callers
// without an identity; n <= 0 keeps none.
func NewExplain(n int) *Explain {
	x := &Explain{seed: maphash.MakeSeed(), sampler: NewSampler()}
	x.resize(n, (max(n, 0)+9)/10)
	return x
}

// Configure goes by a policy from now on; records kept so far are dropped
// where their number changes.
func (x *Explain) Configure(t *policy.Telemetry) {
	rules := t.Refusals
	x.rules.Store(&rules)
	x.resize(t.Explain, int(float64(t.Explain)*float64(rules.Explain)))
}

// Unrecorded are the refusals that were not kept.
func (x *Explain) Unrecorded() Unrecorded { return x.sampler.Total() }

func (x *Explain) resize(verified, anonymous int) {
	per := func(n int) int { return (max(n, 0) + explainShards - 1) / explainShards }
	for i := range x.shards {
		s := &x.shards[i]
		s.mu.Lock()
		s.verified.resize(per(verified))
		s.anonymous.resize(per(anonymous))
		s.mu.Unlock()
	}
}

func (x *Explain) shard(id string) *explainShard {
	return &x.shards[maphash.String(x.seed, id)%explainShards]
}

// Decided implements Observer.
func (x *Explain) Decided(r *Request, d *Decision, now time.Time) {
	refused := !d.Reason.Admits()
	if rules := x.rules.Load(); refused && rules != nil && !x.sampler.Keep(now, rules, r.tenant(), d.Reason) {
		return
	}
	s := x.shard(r.ID)
	s.mu.Lock()
	defer s.mu.Unlock()
	ring := &s.verified
	if refused && r.tenant() == "" {
		ring = &s.anonymous
	}
	if len(ring.slots) == 0 {
		return
	}
	slot := ring.take(r.ID)
	*slot = Record{ID: r.ID, At: now, Tenant: r.tenant(), Class: r.Class.String(), Model: r.Model, Prompt: r.Prompt, Stream: r.Stream, Priority: r.Priority, Attempt: r.Attempt, Decision: *d}
	if d.Quota != nil {
		slot.quota = *d.Quota
		slot.Decision.Quota = nil
	}
}

// Ended implements Observer.
func (x *Explain) Ended(r *Request, _ *Decision, e *End, charged int64, seat time.Duration, _ time.Time) {
	s := x.shard(r.ID)
	s.mu.Lock()
	defer s.mu.Unlock()
	if rec := s.find(r.ID); rec != nil {
		rec.Ended, rec.Result, rec.Charged, rec.Seat = true, e.Result, charged, seat
	}
}

// Find gives a copy of a request's decision while it is kept.
func (x *Explain) Find(id string) (Record, bool) {
	s := x.shard(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	rec := s.find(id)
	if rec == nil {
		return Record{}, false
	}
	return rec.copy(), true
}

// copy is a record of its own, for readers. The shard is locked.
func (rec *Record) copy() Record {
	c := *rec
	if c.quota != (QuotaView{}) {
		q := c.quota
		c.Decision.Quota = &q
	}
	return c
}

// String is the room's name.
func (r Room) String() string {
	switch r {
	case RoomQuota:
		return "quota"
	case RoomBreaker:
		return "breaker"
	case RoomGauge:
		return "gauge"
	case RoomQueue:
		return "queue"
	}
	return "unknown"
}

// Render writes the record for people.
func (rec Record) Render(w io.Writer) error {
	d := &rec.Decision
	row := d.Reason.Row()
	text := fmt.Sprintf("request  %s\nat       %s\ntenant   %s\nclass    %s\nmodel    %s\ndecision %s: %s (HTTP %d, gRPC %d)\n",
		strconv.Quote(rec.ID), rec.At.UTC().Format(time.RFC3339Nano), strconv.Quote(rec.Tenant), rec.Class, strconv.Quote(rec.Model), d.Action, d.Reason, row.HTTP, row.GRPC)
	if rec.Attempt > 0 {
		text += fmt.Sprintf("attempt  %d came before\n", rec.Attempt)
	}
	if rec.Priority {
		text += "lane     has priority\n"
	}
	if d.Shadow {
		text += fmt.Sprintf("shadow   would have been %s\n", d.Intended)
	}
	if d.Detail != "" {
		text += fmt.Sprintf("detail   %s\n", d.Detail)
	}
	if d.Pool != "" {
		text += fmt.Sprintf("pool     %s (%s)\n", d.Pool, d.Variant)
	}
	text += fmt.Sprintf("waited   %s\nretry    %s\npolicy   %s\n", d.Waited, d.RetryAfter, d.Policy)
	if d.NoRetry {
		text += "again    not by itself\n"
	}
	if q := d.Quota; q != nil {
		text += fmt.Sprintf("quota    %s, %d left\n", q.Rule, q.Remaining)
	}
	for _, s := range d.Trail.Steps[:d.Trail.N] {
		verdict := "ok"
		if !s.OK {
			verdict = "refused"
		}
		text += fmt.Sprintf("  %-8s %-24s %12g of %-12g %s\n", s.Room, s.What, s.Observed, s.Limit, verdict)
	}
	if rec.Ended {
		text += fmt.Sprintf("ended    %s, charged %d tokens, held its seat %s\n", rec.Result, rec.Charged, rec.Seat)
	}
	_, err := io.WriteString(w, text)
	return err
}

type recordJSON struct {
	Request   string     `json:"request"`
	At        time.Time  `json:"at"`
	Tenant    string     `json:"tenant,omitempty"`
	Class     string     `json:"class"`
	Model     string     `json:"model,omitempty"`
	Stream    bool       `json:"stream,omitempty"`
	Priority  bool       `json:"priority,omitempty"`
	Attempt   int        `json:"attempt,omitempty"`
	Action    string     `json:"action"`
	Reason    string     `json:"reason"`
	HTTP      int        `json:"http"`
	GRPC      int        `json:"grpc"`
	Intended  string     `json:"intended,omitempty"`
	Detail    string     `json:"detail,omitempty"`
	Pool      string     `json:"pool,omitempty"`
	Variant   string     `json:"variant,omitempty"`
	Degraded  bool       `json:"degraded,omitempty"`
	WaitedMS  float64    `json:"waited_ms"`
	RetryMS   float64    `json:"retry_after_ms"`
	NoRetry   bool       `json:"no_retry,omitempty"`
	Policy    string     `json:"policy"`
	Trail     []stepJSON `json:"trail"`
	End       *endJSON   `json:"end,omitempty"`
	QuotaRule string     `json:"quota_rule,omitempty"`
	QuotaLeft *int64     `json:"quota_remaining,omitempty"`
}

type stepJSON struct {
	Room     string  `json:"room"`
	What     string  `json:"what"`
	Observed float64 `json:"observed"`
	Limit    float64 `json:"limit"`
	OK       bool    `json:"ok"`
}

type endJSON struct {
	Result  string  `json:"result"`
	Charged int64   `json:"charged_tokens"`
	SeatMS  float64 `json:"seat_ms"`
}

// MarshalJSON implements json.Marshaler.
func (rec Record) MarshalJSON() ([]byte, error) {
	d := &rec.Decision
	row := d.Reason.Row()
	j := recordJSON{
		Request: rec.ID, At: rec.At, Tenant: rec.Tenant, Class: rec.Class, Model: rec.Model,
		Stream: rec.Stream, Priority: rec.Priority, Attempt: rec.Attempt,
		Action: d.Action.String(), Reason: d.Reason.String(), HTTP: row.HTTP, GRPC: row.GRPC, Detail: d.Detail,
		Pool: d.Pool, Variant: string(d.Variant), Degraded: d.Degraded,
		WaitedMS: millis(d.Waited), RetryMS: millis(d.RetryAfter), NoRetry: d.NoRetry, Policy: d.Policy, Trail: []stepJSON{},
	}
	if d.Shadow {
		j.Intended = d.Intended.String()
	}
	if d.Quota != nil {
		j.QuotaRule, j.QuotaLeft = d.Quota.Rule, &d.Quota.Remaining
	}
	for _, s := range d.Trail.Steps[:d.Trail.N] {
		j.Trail = append(j.Trail, stepJSON{s.Room.String(), s.What, s.Observed, s.Limit, s.OK})
	}
	if rec.Ended {
		j.End = &endJSON{rec.Result.String(), rec.Charged, millis(rec.Seat)}
	}
	return json.Marshal(j)
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
