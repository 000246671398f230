package agent

import "time"

// transit tells how long a message was on its way, from one stream whose
// messages say by the sender's clock when each was sent. The clocks have no
// common zero, so the quickest message of the last window or two is taken to
// have needed no time: what is found is how much longer this one took. The
// window forgets, because clocks drift apart. The zero value is ready.
type transit struct {
	first     time.Time // the zero of this side
	since     time.Time // of the present window
	now, last time.Duration
}

// transitWindow bounds what drift can do: at 100 ppm, 60 ms.
const transitWindow = 5 * time.Minute

// took is for a message that came at now and was sent at sent; never negative.
func (t *transit) took(now time.Time, sent time.Duration) time.Duration {
	if t.first.IsZero() {
		t.first = now
	}
	lag := now.Sub(t.first) - sent
	switch {
	case t.since.IsZero():
		t.since, t.now, t.last = now, lag, lag
	case now.Sub(t.since) >= transitWindow:
		t.since, t.now, t.last = now, lag, t.now
	}
	t.now = min(t.now, lag)
	return lag - min(t.now, t.last)
}
