// Package nopanic makes a panic the error of a call: at the edges where bytes
// of a peer (Redis, etcd, a key server, a collector, a metrics page, an Envoy,
// a GPU agent) are read by goroutines of our own. A peer must not be able to
// end the process, whatever a library takes for granted of what it sends.
package nopanic

import (
	"fmt"
	"runtime"
	"strings"
)

// Catch makes a panic the error err. It is to be deferred itself:
//
//	defer nopanic.Catch(&err)
func Catch(err *error) {
	if v := recover(); v != nil {
		*err = fmt.Errorf("panic: %.200s at %s", fmt.Sprint(v), place())
	}
}

// place is where it panicked: the first function that is none of the runtime's.
func place() string {
	var pcs [32]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs[:])])
	for {
		f, more := frames.Next()
		if f.Function != "" && !strings.HasPrefix(f.Function, "runtime.") {
			return fmt.Sprintf("%s:%d", f.Function, f.Line)
		}
		if !more {
			return "an unknown place"
		}
	}
}
