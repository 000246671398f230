package scrape

import (
	"io/fs"
	"os"

	"github.com/weirproxy/weir/policy"
)

// watched is a file that is read again when it changes: other times, another
// size, or another file behind a link.
type watched struct {
	path string // "" = none
	most int64  // bytes
	seen fs.FileInfo
	bad  error // what is wrong with the version seen
}

// read is the file's content when it has changed since the last call.
func (w *watched) read() (text []byte, changed bool, err error) {
	if w.path == "" {
		return nil, false, nil
	}
	now, err := os.Stat(w.path)
	if err != nil {
		w.seen = nil
		return nil, false, err
	}
	if w.seen != nil && os.SameFile(now, w.seen) && now.ModTime().Equal(w.seen.ModTime()) && now.Size() == w.seen.Size() {
		return nil, false, w.bad
	}
	w.seen, w.bad = now, nil
	if text, err = policy.ReadFile(w.path, w.most); err != nil {
		return nil, false, w.spoil(err)
	}
	return text, true, nil
}

// spoil says that the version seen is of no use, until the next one.
func (w *watched) spoil(err error) error {
	w.bad = err
	return err
}
