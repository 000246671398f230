package xds

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// register is the log of what others can cause as often as they like: at most
// maxLines a minute, and how many were left out. Stats counts them all. Safe
// for concurrent use.
type register struct {
	log *slog.Logger

	mu      sync.Mutex
	began   time.Time // of the minute
	lines   int
	skipped int
}

const maxLines = 300

func (w *register) say(now time.Time, level slog.Level, text string, args ...any) {
	w.mu.Lock()
	skipped := 0
	if age := now.Sub(w.began); age < 0 || age >= time.Minute {
		skipped, w.began, w.lines, w.skipped = w.skipped, now, 0, 0
	}
	w.lines++
	over := w.lines > maxLines
	if over {
		w.skipped++
	}
	w.mu.Unlock()
	if skipped > 0 {
		w.log.Warn("xds: too much was to be said of Envoys, the rest was left out", "lines", skipped)
	}
	if !over {
		w.log.Log(context.Background(), level, text, args...)
	}
}
