// Package listen opens the sockets that weir and its agent serve on, and gives
// them certificates that may be renewed under way.
package listen

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/weirproxy/weir/policy"
)

// Open opens "host:port", "unix:/path" or "unix:@abstract". A socket file
// that nobody answers is left over from a crash and is replaced; one that
// answers is another weir's and is an error. A socket file may be used by its
// owner and group alone (mode 0660); where the folder it lies in is missing,
// that is made, for the same two (0750).
func Open(address string) (net.Listener, error) {
	path, isUnix := strings.CutPrefix(address, "unix:")
	if !isUnix {
		return net.Listen("tcp", address)
	}
	if !strings.HasPrefix(path, "@") {
		if err := folder(filepath.Dir(path)); err != nil {
			return nil, err
		}
		if err := removeStale(path); err != nil {
			return nil, err
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if !strings.HasPrefix(path, "@") {
		if err := os.Chmod(path, 0o660); err != nil {
			_ = l.Close()
			return nil, err
		}
	}
	return l, nil
}

// folder makes the last folder of a socket's path.
func folder(dir string) error {
	err := os.Mkdir(dir, 0o750)
	if err == nil || errors.Is(err, fs.ErrExist) {
		return nil
	}
	if _, there := os.Stat(dir); there == nil { // such as one on a read-only file system
		return nil
	}
	return fmt.Errorf("the socket's folder is missing and cannot be made (make it for the user that this runs as, with Envoy's group; or name another socket): %w", err)
}

func removeStale(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode()&fs.ModeSocket == 0:
		return fmt.Errorf("%s is in the way and is no socket", path)
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	switch {
	case err == nil:
		_ = c.Close()
		return fmt.Errorf("%s is served by another process", path)
	case !errors.Is(err, syscall.ECONNREFUSED): // such as a full backlog: somebody listens
		return fmt.Errorf("%s is in the way: %w", path, err)
	}
	return os.Remove(path)
}

// TLS reads the certificate at each handshake's need: a renewed file is
// taken without a restart, a broken one keeps the last good pair. The
// authorities of clients are read once.
func TLS(t *policy.TLS) (*tls.Config, error) {
	pair := &renewed{files: t}
	if _, err := pair.get(nil); err != nil {
		return nil, fmt.Errorf("tls: %w", err)
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: pair.get, NextProtos: []string{"h2"}}
	if t.ClientCA != "" {
		pool, err := policy.ReadCAs(t.ClientCA)
		if err != nil {
			return nil, fmt.Errorf("tls.clientCA: %w", err)
		}
		c.ClientCAs, c.ClientAuth = pool, tls.RequireAndVerifyClientCert
		c.VerifyConnection = func(s tls.ConnectionState) error { // of resumed ones too
			if len(s.PeerCertificates) == 0 {
				return nil // where the owner of the configuration does not demand one
			}
			return t.Admits(s.PeerCertificates[0])
		}
	}
	return c, nil
}
