package reload

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/weirproxy/weir/policy"
)

const (
	defaultPoll = 5 * time.Second
	quiet       = 50 * time.Millisecond  // after the last event
	longest     = 500 * time.Millisecond // after the first event, however many follow
	maxRead     = 4 << 20                // bytes of a file; a larger one is as good as unreadable
)

// watch waits for the content of files to change.
type watch struct {
	paths  []string
	poll   time.Duration
	log    *slog.Logger
	noHint bool // polling alone
}

// print is the state of one file: a hash of its content, or why it cannot be
// read.
type print struct {
	sum [sha256.Size]byte
	err string
}

// run blocks until ctx ends. What changes after start was called is found,
// also while it runs.
func (w *watch) run(ctx context.Context, start, changed func()) {
	if w.poll <= 0 {
		w.poll = defaultPoll
	}
	hints := w.hints()
	if hints != nil {
		defer func() { _ = hints.Close() }()
	}
	last := w.prints()
	start()
	look := func() {
		if now := w.prints(); !equal(now, last) {
			last = now
			changed()
		}
	}
	poll := time.NewTicker(w.poll)
	defer poll.Stop()
	settle := time.NewTimer(longest)
	settle.Stop()
	defer settle.Stop()
	var first time.Time // of the events not looked at yet
	events, errs := channels(hints)
	for {
		select {
		case <-ctx.Done():
			return
		case _, ok := <-events:
			if !ok {
				events = nil
				continue
			}
			now := time.Now()
			if first.IsZero() {
				first = now
			}
			settle.Reset(min(quiet, max(0, first.Add(longest).Sub(now))))
		case err, ok := <-errs:
			if !ok {
				errs = nil
				continue
			}
			w.log.Warn("file watch", "error", err) // the poll goes on
		case <-settle.C:
			first = time.Time{}
			look()
		case <-poll.C:
			w.watchDirs(hints) // one may have been made anew
			look()
		}
	}
}

func channels(hints *fsnotify.Watcher) (<-chan fsnotify.Event, <-chan error) {
	if hints == nil {
		return nil, nil
	}
	return hints.Events, hints.Errors
}

// hints starts the directory watch; nil where the system has none to give.
func (w *watch) hints() *fsnotify.Watcher {
	if w.noHint {
		return nil
	}
	hints, err := fsnotify.NewWatcher()
	if err != nil {
		w.log.Warn("no file watch, files are polled", "error", err, "every", w.poll)
		return nil
	}
	w.watchDirs(hints)
	return hints
}

// watchDirs watches the directories of the files and of what they link to.
func (w *watch) watchDirs(hints *fsnotify.Watcher) {
	if hints == nil {
		return
	}
	for _, path := range w.paths {
		_ = hints.Add(filepath.Dir(path)) // missing: tried again at the next poll
		if target, err := filepath.EvalSymlinks(path); err == nil {
			_ = hints.Add(filepath.Dir(target))
		}
	}
}

func (w *watch) prints() []print {
	out := make([]print, len(w.paths))
	for i, path := range w.paths {
		out[i] = printOf(path)
	}
	return out
}

func printOf(path string) print {
	data, err := policy.ReadFile(path, maxRead)
	if err != nil {
		return print{err: err.Error()}
	}
	return print{sum: sha256.Sum256(data)}
}

func equal(a, b []print) bool {
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}
