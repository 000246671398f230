package envoytest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"
)

// Etcd is a running etcd server of one member.
type Etcd struct {
	*Process
	Addr   string
	dir    string
	peer   int
	scheme string
}

// etcdServer finds the program: ETCD_SERVER, or where build/etcd puts it.
func etcdServer(t testing.TB) string {
	t.Helper()
	if path := os.Getenv("ETCD_SERVER"); path != "" {
		return path
	}
	if found, _ := filepath.Glob(filepath.Join(Root(), ".tools", "etcd-v*")); len(found) > 0 {
		return found[len(found)-1]
	}
	t.Skip("no etcd to test with: run build/etcd (make test does), or set ETCD_SERVER")
	return ""
}

// StartEtcd runs a real etcd server on free loopback ports. Where there is
// none it skips the test, with the command that brings one: etcd takes a
// minute to build, and `make test` always does. With --cert-file among the
// arguments it speaks TLS.
func StartEtcd(t testing.TB, args ...string) *Etcd {
	t.Helper()
	e := &Etcd{peer: FreePort(t), scheme: "http://"}
	if slices.Contains(args, "--cert-file") {
		e.scheme = "https://"
	}
	e.Addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(FreePort(t)))
	e.Empty(t)
	e.Restart(t, args...)
	return e
}

// Empty makes the next Restart start with nothing: another folder.
func (e *Etcd) Empty(t testing.TB) { e.dir = Dir(t) }

// Restart starts it again on the same ports and folder after Kill.
func (e *Etcd) Restart(t testing.TB, args ...string) {
	t.Helper()
	client, peer := e.scheme+e.Addr, fmt.Sprintf("http://127.0.0.1:%d", e.peer)
	args = append([]string{
		"--name", "one", "--data-dir", e.dir, "--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "one=" + peer,
		"--log-level", "warn", "--unsafe-no-fsync", "--heartbeat-interval", "50", "--election-timeout", "250",
	}, args...)
	e.Process = start(t, "etcd", exec.Command(etcdServer(t), args...))
	Eventually(t, 10*time.Second, "etcd answers", func() bool {
		c, err := net.DialTimeout("tcp", e.Addr, time.Second)
		if err != nil {
			return false
		}
		return c.Close() == nil
	})
}
