package discovery

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"
)

// A file that changed within the last still is read again after it: half a
// list is a list too, and a port that is cut is another port.
const (
	still = 50 * time.Millisecond
	tries = 20
)

// fromFile reads a file whole, up to its bound, when nobody writes it.
func fromFile(ctx context.Context, name string, parse func([]byte) ([]Endpoint, error)) ([]Endpoint, error) {
	for range tries {
		data, info, err := readFile(name)
		switch {
		case err != nil:
			return nil, err
		case len(data) > maxFile:
			return nil, fmt.Errorf("%s: must be at most %d bytes", name, maxFile)
		}
		// A file of the future is a clock that stepped, and no reason to wait.
		if age := time.Since(info.ModTime()); age < 0 || age >= still {
			if after, err := os.Stat(name); err == nil && after.Size() == int64(len(data)) && after.ModTime().Equal(info.ModTime()) {
				return parse(data)
			}
		}
		pause := time.NewTimer(still)
		select {
		case <-ctx.Done():
			pause.Stop()
			return nil, ctx.Err()
		case <-pause.C:
		}
	}
	return nil, fmt.Errorf("%s: is written all the time", name)
}

// readFile does not wait: what is no plain file is refused.
func readFile(name string) ([]byte, fs.FileInfo, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("%s: must be a file (is %v)", name, info.Mode().Type())
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	return data, info, err
}
