package extproc

import (
	"sync"
	"sync/atomic"
)

// maxIdle is how many readers may wait for a next stream.
const maxIdle = 256

// readers are the goroutines that take the messages of streams. One that has
// served a stream waits for the next: its stack has grown by then to what a
// decision needs, and to grow it again would be a tenth of a short stream.
type readers struct {
	work   sync.WaitGroup
	next   chan *stream  // without a buffer: taken by one who waits, or not at all
	idle   atomic.Int64  // how many wait, or are about to
	closed chan struct{} // nobody waits any more
	once   sync.Once

	mu   sync.RWMutex
	shut bool // nothing is begun any more
}

func (r *readers) open() {
	r.next, r.closed = make(chan *stream), make(chan struct{})
}

// serve has somebody read st to its end.
func (r *readers) serve(st *stream) {
	select {
	case r.next <- st:
	default:
		r.work.Go(func() { r.run(st) })
	}
}

func (r *readers) run(st *stream) {
	for st != nil {
		st.read()
		st = r.another()
	}
}

// another waits for the next stream; nil = go home.
func (r *readers) another() *stream {
	defer r.idle.Add(-1)
	if r.idle.Add(1) > maxIdle {
		return nil
	}
	select {
	case st := <-r.next:
		return st
	case <-r.closed:
		return nil
	}
}

// spawn has f run, except after wait.
func (r *readers) spawn(f func()) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if !r.shut {
		r.work.Go(f)
	}
}

// wait sends home who waits, and returns when the others have ended too.
func (r *readers) wait() {
	r.once.Do(func() { close(r.closed) })
	r.mu.Lock()
	r.shut = true
	r.mu.Unlock()
	r.work.Wait()
}
