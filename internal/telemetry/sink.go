package telemetry

import (
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// keptLines is how many lines wait for a slow writer; one has a few hundred
// bytes, a stack a few thousand.
const keptLines = 4096

// Sink takes log lines for a writer that may be slow or hang: a pipe that
// nobody reads, a disk that does not answer. Write never waits, so that no
// request, reload or shutdown does; lines beyond those kept are dropped and
// counted, and a line says how many once the writer takes lines again.
//
// It owns one goroutine, from NewSink to Close. Write and Dropped are safe
// for concurrent use, also after Close, when every line is dropped.
type Sink struct {
	out     io.Writer
	lines   chan []byte
	dropped atomic.Uint64
	closing chan struct{}
	once    sync.Once
	done    chan struct{}
}

// NewSink makes a sink for out.
func NewSink(out io.Writer) *Sink {
	s := &Sink{out: out, lines: make(chan []byte, keptLines), closing: make(chan struct{}), done: make(chan struct{})}
	go s.run()
	return s
}

// Write keeps a copy of the line.
func (s *Sink) Write(line []byte) (int, error) {
	select {
	case <-s.closing:
		s.dropped.Add(1)
		return len(line), nil
	default:
	}
	select {
	case s.lines <- append([]byte(nil), line...):
	default:
		s.dropped.Add(1)
	}
	return len(line), nil
}

// Dropped is how many lines were never written.
func (s *Sink) Dropped() uint64 { return s.dropped.Load() }

// Close writes what is kept and ends the goroutine. It waits at most limit for
// a writer that hangs; the goroutine is then left to it.
func (s *Sink) Close(limit time.Duration) {
	s.once.Do(func() { close(s.closing) })
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-s.done:
	case <-timer.C:
	}
}

func (s *Sink) run() {
	defer close(s.done)
	for told := uint64(0); ; told = s.tell(told) {
		select {
		case line := <-s.lines:
			s.write(line)
		case <-s.closing:
			s.rest()
			s.tell(told)
			return
		}
	}
}

// rest writes what is kept.
func (s *Sink) rest() {
	for {
		select {
		case line := <-s.lines:
			s.write(line)
		default:
			return
		}
	}
}

// write has nobody to tell of an error: this is the log.
func (s *Sink) write(line []byte) { _, _ = s.out.Write(line) }

// tell says how many lines were dropped since it last did.
func (s *Sink) tell(told uint64) uint64 {
	n := s.dropped.Load()
	if n > told {
		slog.New(slog.NewJSONHandler(s.out, nil)).Warn("log lines dropped: the log was not taken fast enough", "lines", n-told)
	}
	return n
}
