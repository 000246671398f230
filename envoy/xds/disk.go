package xds

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// stateFile is the name in Options.Dir.
const (
	stateFile = "xds-state"
	maxState  = 128 << 20 // bytes: some 100,000 clusters of ten hosts
)

// write puts a state in place of the last one: whole or not at all. Of two
// processes that write at once, one fails and tries again later.
func (s *state) write(dir string) error {
	body, err := json.Marshal(s)
	if err != nil {
		return err
	}
	text := sealed(body)
	if len(text) > maxState {
		return fmt.Errorf("the state has %d bytes, more than the %d that are read again", len(text), maxState)
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close() // ends the lock
	if err := syscall.Flock(int(d.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); errors.Is(err, syscall.EWOULDBLOCK) {
		return fmt.Errorf("%s: another process writes its state there now", dir)
	} // where there are no locks, it goes without
	name := filepath.Join(dir, stateFile)
	temporary := name + ".tmp"
	_ = os.Remove(temporary) // what a process that was killed left, or a link that leads elsewhere
	if err := writeSynced(temporary, text); err != nil {
		_ = os.Remove(temporary) // it may not be there
		return err
	}
	if err := os.Rename(temporary, name); err != nil {
		_ = os.Remove(temporary)
		return err
	}
	return d.Sync()
}

// sealed puts the head before a body.
func sealed(body []byte) []byte {
	sum := sha256.Sum256(body)
	return append([]byte(stateMagic+hex.EncodeToString(sum[:])+"\n"), body...)
}

func writeSynced(name string, text []byte) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Sync(), f.Close())
}

// readState reads the last state; nil where there is none. It does not wait:
// what is no plain file is refused.
func readState(dir string) (*state, error) {
	name := filepath.Join(dir, stateFile)
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s: must be a file (is %v)", name, info.Mode().Type())
	case info.Size() > maxState:
		return nil, fmt.Errorf("%s: must be at most %d bytes (got %d)", name, maxState, info.Size())
	}
	text, err := io.ReadAll(io.LimitReader(f, maxState+1))
	if err != nil {
		return nil, err
	}
	s, err := parseState(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return s, nil
}

// fileOf is the state that is on disk now; nil where there is none.
func fileOf(dir string) fs.FileInfo {
	info, err := os.Stat(filepath.Join(dir, stateFile))
	if err != nil {
		return nil
	}
	return info
}
