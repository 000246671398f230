package extproc

import "time"

// startedLate answers a stream whose first message comes behind the request's
// headers: Envoy answered by itself, or the filter was put in between. Nothing
// was asked and nothing is charged, so it goes on. A body whose headers nobody
// saw is another matter: it would reach a pool unjudged.
func (c *conversation) startedLate(now time.Time, m *message) {
	c.began = now
	c.state, c.finished = aside, true
	r := reply{phase: m.phase}
	if m.phase != responseHeaders {
		r.remove = forged(m.header)
	}
	c.reply(r)
}
