package redisbus

import (
	"sync/atomic"

	"github.com/weirproxy/weir/internal/buswire"
)

// Stats are what a bus has counted since it was made.
type Stats struct {
	Published uint64 // words that were stored
	Older     uint64 // words that were not newer than the one that stood
	Failed    uint64 // words that were not delivered
	Heard     uint64 // words given to listeners
	Garbage   uint64 // records that were no words
	Versions  uint64 // words in the form of another release
	Rereads   uint64 // times that all that stands was read because the cursor was gone
	Losses    uint64 // times that a listener lost Redis
	Deaf      bool   // some listener may not subscribe and reads each 100 ms
	Away      bool   // some listener has no Redis
}

type counts struct {
	published, older, failed, heard, garbage, versions, rereads atomic.Uint64
	deaf                                                        atomic.Int64
	lost                                                        buswire.Losses
}

// Stats are the counters now.
func (b *Bus) Stats() Stats {
	c := &b.count
	return Stats{
		Published: c.published.Load(), Older: c.older.Load(), Failed: c.failed.Load(), Heard: c.heard.Load(),
		Garbage: c.garbage.Load(), Versions: c.versions.Load(), Rereads: c.rereads.Load(), Losses: c.lost.Total.Load(),
		Deaf: c.deaf.Load() > 0, Away: c.lost.Away.Load() > 0,
	}
}
