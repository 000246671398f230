package listen

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A socket that nobody serves is replaced; one that is served, also by a
// process too busy to take a connection, is left alone.
func TestListenReplacesStaleSocketsAlone(t *testing.T) {
	dir, err := os.MkdirTemp("", "weir") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")

	stale, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	stale.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = stale.Close()
	l, err := Open("unix:" + path)
	if err != nil {
		t.Fatalf("in the place of a stale socket: %v", err)
	}
	if again, err := Open("unix:" + path); err == nil || !strings.Contains(err.Error(), "served by another process") {
		t.Errorf("%v, %v in the place of a served socket", again, err)
	}
	_ = l.Close()

	busy, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(busy) })
	if err := syscall.Bind(busy, &syscall.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(busy, 0); err != nil {
		t.Fatal(err)
	}
	for range 16 { // until its backlog is full
		c, err := net.Dial("unix", path)
		if err != nil {
			break
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	if again, err := Open("unix:" + path); err == nil || !strings.Contains(err.Error(), "in the way") {
		t.Errorf("%v, %v in the place of a busy socket", again, err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the busy socket is gone: %v", err)
	}
}
