package scrape

import (
	"time"

	"github.com/weirproxy/weir/gpu"
)

// counter makes a rate of a running total. The zero value has seen nothing.
type counter struct {
	last gpu.Value
	at   time.Time
}

// grow is the growth per second since the last look; absent at the first one,
// after a reset, and where the total's time stood still or went back.
func (c *counter) grow(total gpu.Value, at time.Time) (rate gpu.Value, reset bool) {
	before, since := c.last, at.Sub(c.at)
	c.last, c.at = total, at
	switch {
	case !before.OK || !total.OK:
		return gpu.Value{}, false
	case total.V < before.V:
		return gpu.Value{}, true
	case since <= 0:
		return gpu.Value{}, false
	}
	return gpu.Some((total.V - before.V) / since.Seconds()), false
}
