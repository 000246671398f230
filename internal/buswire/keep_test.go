package buswire

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// A listener hears once that it was lost and once that it is back, whatever
// fails between; sessions that begin anew by themselves are no news.
func TestKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var told []string
		begun, last := 0, time.Now()
		errs := []error{errors.New("a"), errors.New("b"), ErrAgain, errors.New("c"), ErrAgain, errors.New("d"), errors.New("e")}
		lost := Keep(ctx, NewBackoff(1), func(ready func()) error {
			if pause := time.Since(last); begun > 0 && (pause < FirstPause/2 || pause > MaxPause) {
				t.Errorf("session %d after %v", begun, pause)
			}
			last = time.Now()
			err := errs[begun]
			begun++
			switch begun {
			case 3, 4: // b was its last trouble
				ready()
			case len(errs):
				cancel()
			}
			return err
		}, func(err error) { told = append(told, fmt.Sprint(err)) })
		if want := []string{"a", "<nil>", "c"}; !slices.Equal(told, want) || !lost || begun != len(errs) {
			t.Errorf("told %v, want %v; lost %v after %d sessions", told, want, lost, begun)
		}
	})
}
