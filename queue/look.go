package queue

import "time"

// Look is one look at a pool: what its tuner and its watchdog go by.
type Look struct {
	Used    int64  // seats in use
	Full    bool   // every seat that may be given out is in use, and somebody wants one more
	Waiting int    // in the line, or turned away for want of a seat since the last look
	Silent  int64  // of the seats in use: streaming requests whose answer has not begun
	Began   uint64 // answers that began so far
	Ended   uint64 // seats given back so far
	Busy    bool   // more seats are on their way, or first tokens come late: no case for the watchdog
	Engine  Engine
}

// Engine is what the engines of a pool say of themselves: this replica's part
// of the requests. The zero value says nothing.
type Engine struct {
	At      time.Time // of the sample; zero = no fresh word
	Waiting Word      // requests inside the engine that have no place in the batch
	Running Word      // requests in the batch
	KV      Word      // 0..1, of the fullest engine
}

// Word is a number that may be absent.
type Word struct {
	V  float64
	OK bool
}

// Look is what the line itself can say of a look.
func (l *Line) Look() Look {
	waiting := l.total + l.retry.len
	return Look{Used: l.used.Requests, Full: waiting > 0 && l.Taken(), Waiting: waiting}
}

// Taken says that every seat that may be given out is in use.
func (l *Line) Taken() bool { return l.used.Requests >= l.usable.Requests }
