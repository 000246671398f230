package xds

import (
	"slices"
	"testing"
)

// TestSubscribedAgain: a delta client that subscribes what it has is sent it
// again, and "*" covers a name only until that is asked for by itself. What a
// first request says it has is not sent.
func TestSubscribedAgain(t *testing.T) {
	s := New(t0, Options{})
	conn := serveTest(t, s)
	put(t, s, one(6, "10.0.0.1:80"))
	for _, first := range [][]string{{"m"}, {"*"}, {"*", "m"}} {
		c := deltaADS(t, conn, edge("e1", 40))
		c.ask(eds, first...)
		a := c.next()
		if !slices.Equal(a.names(), []string{"m"}) {
			t.Fatalf("%v: %v", first, a.names())
		}
		c.ack(a)
		c.quiet("acknowledged")
		for range 2 {
			c.ask(eds, "m")
			again := c.next()
			claOf(t, again, "m")
			c.ack(again)
			c.quiet("acknowledged again")
		}
		c.ask(eds, "*")
		again := c.next()
		claOf(t, again, "m")
		c.ack(again)

		back := deltaADS(t, conn, edge("e1", 40))
		back.say(eds, []string{"m"}, "", "", "", map[string]string{"m": again.versions["m"]})
		back.quiet("it has the latest version")
		back.ask(eds, "m")
		claOf(t, back.next(), "m")
	}
}
