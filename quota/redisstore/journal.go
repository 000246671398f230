package redisstore

import (
	"slices"
	"sync"
	"time"

	"github.com/weirproxy/weir/quota"
)

// recent is how long acknowledged requests stay in the journal: what a
// fail-over may lose is charged again within it. It is well below
// quota.KeepSettled, for which Redis knows an id as settled.
const recent = time.Minute

// journal is what this replica granted: what Redis has yet to be told
// (pending), and what it acknowledged a short while ago. Oldest first,
// bounded; entries that Redis knows go first.
type journal struct {
	mu      sync.Mutex
	max     int
	hold    time.Duration // for which Redis remembers a reservation at least
	entries map[string]*entry
	queue   []*entry // in order of arrival; gone entries are skipped
	pending int
}

// entry is one request. Its claims are the caller's and are not changed.
type entry struct {
	id     string
	claims []quota.Claim
	now    time.Time // the caller's clock at the reservation; zero: the store's
	made   time.Time // our clock at the reservation
	local  bool      // the local store holds it too

	granted bool // it holds, or held, an amount
	settled bool
	final   quota.Amount
	end     time.Time // the caller's clock at the settlement

	reserve, settle bool      // still to be told to Redis
	told            time.Time // when Redis last may have heard of it; zero: never
	heard           time.Time // when it first may have; zero: never
	toldEnd         time.Time // when it first may have heard of its end
	gone            bool
}

func newJournal(max int, hold time.Duration) *journal {
	return &journal{max: max, hold: hold, entries: make(map[string]*entry)}
}

func (e *entry) pending() bool { return e.reserve || e.settle }

// put adds an entry and drops those that have to go; false if one of them was
// pending.
func (j *journal) put(e *entry) (kept bool) {
	if old := j.entries[e.id]; old != nil {
		j.drop(old)
	}
	j.entries[e.id] = e
	j.queue = append(j.queue, e)
	kept = true
	for len(j.queue) > 0 {
		first := j.queue[0]
		if first == e {
			break // its caller has yet to say what it needs
		}
		if !first.gone {
			if len(j.entries) <= j.max && (first.pending() || time.Since(first.told) < recent) {
				break
			}
			kept = kept && !first.pending()
			j.drop(first)
		}
		j.queue[0] = nil
		j.queue = j.queue[1:]
	}
	return kept
}

func (j *journal) drop(e *entry) {
	j.set(e, false, false)
	e.gone = true
	if j.entries[e.id] == e {
		delete(j.entries, e.id)
	}
}

// set keeps the count of pending entries.
func (j *journal) set(e *entry, reserve, settle bool) {
	was := e.pending()
	e.reserve, e.settle = reserve, settle
	if is := e.pending(); is && !was {
		j.pending++
	} else if was && !is {
		j.pending--
	}
}

// granted notes what Redis granted.
func (j *journal) granted(id string, now time.Time, claims []quota.Claim) {
	at := time.Now()
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.entries[id] == nil {
		j.put(&entry{id: id, claims: claims, now: now, made: at, granted: true, told: at, heard: at})
	}
}

// grantedLocally notes what the local store granted; false if something else
// had to be dropped for it.
func (j *journal) grantedLocally(id string, now time.Time, claims []quota.Claim, inDoubt bool) bool {
	at := time.Now()
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.entries[id] != nil {
		return true // the same id again
	}
	e := &entry{id: id, claims: claims, now: now, made: at, local: true, granted: true}
	if inDoubt {
		e.told, e.heard = at, at
	}
	kept := j.put(e)
	if !e.gone {
		j.set(e, true, false)
	}
	return kept
}

// giveBack notes a request that was refused here, while Redis may have taken
// something for it.
func (j *journal) giveBack(id string, now time.Time, claims []quota.Claim) {
	at := time.Now()
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.entries[id] != nil {
		return
	}
	e := &entry{id: id, claims: claims, now: now, made: at, settled: true, end: now, told: at, heard: at}
	j.put(e)
	if !e.gone {
		j.set(e, false, true)
	}
}

// backlog is how many entries are pending.
func (j *journal) backlog() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.pending
}

func (j *journal) isLocal(id string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	e := j.entries[id]
	return e != nil && e.local
}

// settle notes the end of a request and reports whether that is all: because
// it had ended before, because Redis has yet to hear of its reservation, or
// because Redis is away. Otherwise the caller tells Redis.
func (j *journal) settle(id string, now time.Time, claims []quota.Claim, final quota.Amount, away bool) (deferred bool) {
	at := time.Now()
	j.mu.Lock()
	defer j.mu.Unlock()
	e := j.entries[id]
	if e == nil {
		e = &entry{id: id, claims: claims, now: now, made: at, told: at, heard: at}
		j.put(e)
	} else if e.settled {
		return true
	}
	e.settled, e.final, e.end = true, final, now
	if away || e.reserve {
		j.set(e, e.reserve, true)
		return true
	}
	e.told, e.toldEnd = at, at
	return false
}

// unsettled notes that Redis did not confirm an end.
func (j *journal) unsettled(id string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if e := j.entries[id]; e != nil && !e.gone {
		j.set(e, e.reserve, true)
	}
}

// endAgain makes a request that ended while it was charged anew end anew; it
// does nothing for one that runs.
func (j *journal) endAgain(id string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if e := j.entries[id]; e != nil && e.settled && !e.gone {
		j.set(e, e.reserve, true)
	}
}

// task is one entry's step towards Redis, as it was when it was handed out.
type task struct {
	*entry
	age             time.Duration
	reserve, settle bool
}

// tasks hands out up to n pending entries, oldest first.
func (j *journal) tasks(n int) []task {
	now := time.Now()
	j.mu.Lock()
	defer j.mu.Unlock()
	var out []task
	for _, e := range j.queue {
		if e.gone || !e.pending() {
			continue
		}
		out = append(out, j.task(e, now))
		if len(out) == n {
			break
		}
	}
	return out
}

func (j *journal) task(e *entry, now time.Time) task {
	// An end is told with its reservation, which a fail-over may have lost.
	t := task{entry: e, reserve: e.reserve || e.granted, settle: e.settle}
	if e.now.IsZero() {
		t.age = now.Sub(e.made)
	}
	return t
}

// begin notes that Redis is about to hear of a task. What it may have heard so
// long ago that it has forgotten the id is not charged: it would be charged
// again.
func (j *journal) begin(t task) task {
	now := time.Now()
	j.mu.Lock()
	defer j.mu.Unlock()
	e := t.entry
	known := max(j.hold-e.heard.Sub(e.made), quota.KeepSettled) - recent/2
	if !e.heard.IsZero() && now.Sub(e.heard) > known || !e.toldEnd.IsZero() && now.Sub(e.toldEnd) > quota.KeepSettled-recent/2 {
		t.reserve = false
	}
	if e.pending() {
		e.told = now
	}
	if e.heard.IsZero() {
		e.heard = now
	}
	if t.settle && e.toldEnd.IsZero() {
		e.toldEnd = now
	}
	return t
}

// finish notes that a task's steps are done.
func (j *journal) finish(t task) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !t.gone {
		j.set(t.entry, false, t.entry.settle && !t.settle)
	}
}

// acknowledged lists what Redis confirmed in the last minute, but before it
// came back from an outage, newest first.
func (j *journal) acknowledged(back time.Time) []task {
	now := time.Now()
	j.mu.Lock()
	defer j.mu.Unlock()
	var out []task
	for _, e := range slices.Backward(j.queue) {
		if e.gone || e.pending() || (!e.granted && !e.settled) || now.Sub(e.told) > recent || !e.told.Before(back) {
			continue
		}
		t := task{entry: e, reserve: e.granted, settle: e.settled}
		if e.now.IsZero() {
			t.age = now.Sub(e.made)
		}
		out = append(out, t)
	}
	return out
}

// again makes an entry that ended while it was charged anew end anew.
func (j *journal) again(t task) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if t.entry.settled && !t.settle && !t.gone {
		j.set(t.entry, t.entry.reserve, true)
	}
}
