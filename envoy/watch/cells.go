package watch

import "time"

// tick is the grain of time within which nothing is told apart: samples are
// taken to the nearest tick, so that a flush of one second is ten of them.
const tick = 100 * time.Millisecond

// A cluster's counts lie in three rings: GOAWAYs by tick, of which the busiest
// second is found; all counts by second, for windows and rates; and by pulse,
// for what repeats over minutes (Calm).
const (
	ticksPerSecond = int64(time.Second / tick)
	ticksKept      = 160 // 16 s: three seconds, and Envoys that flush late
	ticksPerPulse  = 20  // 2 s
	pulsesKept     = 60  // 2 min
	secondsKept    = 16  // at least
)

// counts are what happened in a stretch of time, fractions where a stretch
// between two samples was divided.
type counts struct {
	goaways  float64
	closed   float64 // connections that had been made
	failed   float64 // connects
	opened   float64 // connections begun, failed ones included
	resets   float64
	retries  float64
	requests float64
	errors   float64
	cut      float64 // connections closed by the host with requests under way
	lost     float64 // calls that broke, those tried again included
}

func (c *counts) add(d *counts, share float64) {
	c.goaways += d.goaways * share
	c.closed += d.closed * share
	c.failed += d.failed * share
	c.opened += d.opened * share
	c.resets += d.resets * share
	c.retries += d.retries * share
	c.requests += d.requests * share
	c.errors += d.errors * share
	c.cut += d.cut * share
	c.lost += d.lost * share
}

// failures are calls that failed: those that broke and were not tried again, or
// those that were answered with 5xx, of which Envoy answers some that broke.
func (c *counts) failures() float64 { return max(c.lost-c.retries, c.errors, 0) }

// cell is a stretch of a ring with the most live connections seen in it.
type cell struct {
	counts
	live int64
}

// ring holds the cells of the last stretches of width ticks.
type ring struct {
	width int64
	cells []cell
	head  int64 // the newest stretch; those before it are kept, as far as the ring goes
}

func newRing(width int64, kept int) ring { return ring{width: width, cells: make([]cell, kept)} }

func (r *ring) at(i int64) *cell { return &r.cells[i%int64(len(r.cells))] }

// oldest is the first stretch that is kept.
func (r *ring) oldest() int64 { return max(0, r.head-int64(len(r.cells))+1) }

// advance makes room up to the stretch of a tick; live is how many connections
// there are meanwhile.
func (r *ring) advance(to, live int64) {
	stretch := to / r.width
	for i := max(r.head+1, stretch-int64(len(r.cells))+1); i <= stretch; i++ {
		*r.at(i) = cell{live: live}
	}
	r.head = max(r.head, stretch)
	if c := r.at(r.head); c.live < live {
		c.live = live
	}
}

// put spreads counts evenly over the ticks from..to, to excluded. What is
// older than the ring is lost, what is newer than its head is put into it.
func (r *ring) put(from, to int64, d *counts) {
	whole := float64(to - from)
	for i := max(from/r.width, r.oldest()); i <= (to-1)/r.width; i++ {
		part := min(to, (i+1)*r.width) - max(from, i*r.width)
		r.at(min(i, r.head)).add(d, float64(part)/whole)
	}
}

// last sums the n stretches before a tick: the one it lies in as far as it has
// come, and of the oldest what is then missing. live is the most there were.
func (r *ring) last(now, n int64) (sum counts, live int64) {
	stretch := now / r.width
	for i := max(stretch-n, r.oldest()); i <= min(stretch, r.head); i++ {
		c, share := r.at(i), 1.0
		if i == stretch-n {
			share = 1 - float64(now-stretch*r.width)/float64(r.width)
		}
		sum.add(&c.counts, share)
		if share > 0 {
			live = max(live, c.live)
		}
	}
	return sum, live
}

// bursts holds GOAWAYs by tick.
type bursts struct {
	cells  [ticksKept]float64
	head   int64
	newest int64 // tick of the newest GOAWAY
}

func (b *bursts) advance(to int64) {
	for i := max(b.head+1, to-ticksKept+1); i <= to; i++ {
		b.cells[i%ticksKept] = 0
	}
	b.head = max(b.head, to)
}

func (b *bursts) put(from, to int64, n float64) {
	each := n / float64(to-from)
	for i := max(from, b.head-ticksKept+1); i < to; i++ {
		b.cells[min(i, b.head)%ticksKept] += each
	}
	b.newest = max(b.newest, min(to-1, b.head))
}

// busiest is the most that a second within the ticks from..to had, both
// included.
func (b *bursts) busiest(from, to int64) float64 {
	from, to = max(from, b.head-ticksKept+1, 0), min(to, b.head)
	if b.newest < from {
		return 0
	}
	var most, sum float64
	for i := from; i <= to; i++ {
		sum += b.cells[i%ticksKept]
		if i-from >= ticksPerSecond {
			sum -= b.cells[(i-ticksPerSecond)%ticksKept]
		}
		most = max(most, sum)
	}
	return most
}
