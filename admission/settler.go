package admission

import (
	"context"
	"sync"
	"time"

	"github.com/weirproxy/weir/quota"
)

// settler settles reservations. With workers it keeps the store's round trip
// off the caller's goroutine; when the workers are behind, the caller waits
// for the store after all, so that nothing is ever left unsettled.
type settler struct {
	store quota.Store
	jobs  chan settlement // nil = no workers
	done  sync.WaitGroup

	mu     sync.RWMutex // closed against senders
	closed bool
}

type settlement struct {
	id     string
	claims []quota.Claim
	final  quota.Amount
}

// backlog is how many settlements wait for one worker.
const backlog = 256

func newSettler(store quota.Store, workers int) *settler {
	s := &settler{store: store}
	if workers <= 0 {
		return s
	}
	s.jobs = make(chan settlement, workers*backlog)
	s.done.Add(workers)
	for range workers {
		go s.work()
	}
	return s
}

func (s *settler) work() {
	defer s.done.Done()
	for j := range s.jobs {
		s.run(j)
	}
}

// run has no caller to cancel it: a settlement outlives its request. The
// store bounds its own time and keeps what it could not deliver.
func (s *settler) run(j settlement) {
	_ = s.store.Settle(context.Background(), time.Time{}, j.id, j.claims, j.final)
}

func (s *settler) settle(id string, claims []quota.Claim, final quota.Amount) {
	j := settlement{id, claims, final}
	if s.jobs == nil || !s.send(j) {
		s.run(j)
	}
}

func (s *settler) send(j settlement) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return false
	}
	select {
	case s.jobs <- j:
		return true
	default:
		return false
	}
}

// close waits until everything handed over is settled.
func (s *settler) close() {
	if s.jobs == nil {
		return
	}
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.jobs)
	}
	s.mu.Unlock()
	s.done.Wait()
}
