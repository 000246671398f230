package library

import (
	"fmt"
	"time"

	"github.com/weirproxy/weir/gpu"
)

// keeper opens, reads and reopens a library; its methods take now.
type keeper struct {
	driver Driver
	open   bool
	pause  time.Duration // before the next try to open; 0 = none failed
	next   time.Time     // of the next try
	last   error         // why the library is not open
}

// look reads the cards, from a library that is opened first if need be.
func (k *keeper) look(now time.Time) ([]gpu.Card, error) {
	if !k.open {
		if now.Before(k.next) {
			return nil, fmt.Errorf("%w (next try in %s)", k.last, k.next.Sub(now).Round(time.Millisecond))
		}
		k.open = true // what failed halfway is closed too
		if err := guard(func() error { return k.driver.Open(now) }); err != nil {
			return nil, k.failed(now, err)
		}
	}
	var cards []gpu.Card
	err := guard(func() (err error) { cards, err = k.driver.Cards(now); return err })
	if err != nil {
		return nil, k.failed(now, err)
	}
	k.pause = 0
	return cards, nil
}

// failed closes the library and plans the next try.
func (k *keeper) failed(now time.Time, err error) error {
	_ = k.close() // of a library that is gone: fails as a rule
	k.pause = min(max(2*k.pause, MinPause), MaxPause)
	k.next, k.last = now.Add(k.pause), err
	return err
}

func (k *keeper) close() error {
	if !k.open {
		return nil
	}
	k.open = false
	return guard(k.driver.Close)
}

// guard turns a panic of a binding, such as an index out of what a library
// said, into an error.
func guard(call func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the binding panicked: %v", p)
		}
	}()
	return call()
}
