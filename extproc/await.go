package extproc

import (
	"strconv"
	"time"
)

// await counts a request whose body is to come, at its announced length or the
// longest there may be; true = there is no room, and it is refused.
func (c *conversation) await(now time.Time, m *message) bool {
	n, err := strconv.ParseInt(m.header.get("content-length"), 10, 64)
	if err != nil {
		n = c.policy.Server.MaxBody
	}
	r := c.call.build("")
	place, d, refused := c.o.Desk.Await(now, r, n)
	if !refused {
		c.awaited = place
		return false
	}
	c.call.request, c.decision = r, d
	c.close(now, requestHeaders, &d, &refusal{})
	return true
}
