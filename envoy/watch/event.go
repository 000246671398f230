package watch

import (
	"sync"
	"time"
)

// What says what an Event is.
type What uint8

// The events.
const (
	StormBegan   What = iota + 1 // B7
	StormEnded                   //
	ProtectBegan                 // B8
	ProtectEnded                 //
	CalmBegan                    // GOAWAYs look like those of a server that throws out pings
	CalmEnded                    //
)

// String is the name used in the timeline, logs and metrics.
func (w What) String() string {
	names := [...]string{"", "storm_began", "storm_ended", "protect_began", "protect_ended", "calm_began", "calm_ended"}
	if int(w) < len(names) && w > 0 {
		return names[w]
	}
	return "unknown"
}

// Event is a change of what is thought of a cluster.
type Event struct {
	Seq     uint64 // in the journal, from 1
	At      time.Time
	Cluster string
	What    What
	Because string        // one sentence with figures
	Lasted  time.Duration // with an end: since its beginning
}

// journalSize is how many events are kept.
const journalSize = 1024

// Journal keeps the latest events in order. The zero value is empty; safe for
// concurrent use.
type Journal struct {
	mu      sync.Mutex
	last    uint64
	kept    []Event
	changed chan struct{} // closed by the next add; nil = nobody asked
}

func (j *Journal) add(events []Event) {
	if len(events) == 0 {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range events {
		j.last++
		e.Seq = j.last
		if len(j.kept) >= journalSize {
			j.kept = append(j.kept[:0], j.kept[len(j.kept)-journalSize+1:]...)
		}
		j.kept = append(j.kept, e)
	}
	if j.changed != nil {
		close(j.changed)
		j.changed = nil
	}
}

// Since gives the events after seq that are still kept, oldest first, and a
// channel that is closed by the next one.
func (j *Journal) Since(seq uint64) ([]Event, <-chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.changed == nil {
		j.changed = make(chan struct{})
	}
	i := len(j.kept)
	for i > 0 && j.kept[i-1].Seq > seq {
		i--
	}
	return append([]Event(nil), j.kept[i:]...), j.changed
}
