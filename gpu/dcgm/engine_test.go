//go:build cgo && linux

package dcgm

import (
	"flag"
	"net"
	"testing"
)

// TestAnEngine is no test but the host engine that TestStarted starts: it
// listens on the socket that its argument names until it is ended.
func TestAnEngine(t *testing.T) {
	if flag.NArg() == 0 {
		t.Skip("the engine of TestStarted")
	}
	l, err := net.Listen("unix", flag.Arg(0))
	if err != nil {
		t.Fatal(err)
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		c.Close()
	}
}
