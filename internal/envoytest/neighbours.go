package envoytest

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// The binaries, built once per test process.
var (
	binary = sync.OnceValues(func() (string, error) { return build("weir") })
	agent  = sync.OnceValues(func() (string, error) { return build("weir-gpu-agent") })
)

// build makes a binary of cmd.
func build(name string) (string, error) {
	dir, err := os.MkdirTemp("", "weirbin")
	if err != nil {
		return "", err
	}
	out := filepath.Join(dir, name)
	cmd := exec.Command("go", "build", "-o", out, "./cmd/"+name)
	cmd.Dir = Root()
	if msg, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build ./cmd/%s: %w\n%s", name, err, msg)
	}
	return out, nil
}

// Agent is the path of a freshly built weir-gpu-agent: with cgo where the
// machine has a C compiler.
func Agent(t testing.TB) string {
	t.Helper()
	path, err := agent()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Weir is the path of a freshly built weir, or WEIR_BINARY.
func Weir(t testing.TB) string {
	t.Helper()
	path := os.Getenv("WEIR_BINARY")
	if path != "" {
		return path
	}
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Sidecar is a running weir.
type Sidecar struct {
	*Process
	Config string // path of its weir.yaml
	Socket string // gRPC
	Admin  *http.Client
}

// Serve starts `weir serve` on a policy file whose server section listens on
// dir/weir.sock and dir/admin.sock (Server returns it), and waits for readyz.
func Serve(t testing.TB, dir, policy string, env ...string) *Sidecar {
	t.Helper()
	file := filepath.Join(dir, "weir.yaml")
	if err := os.WriteFile(file, []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	s := Restart(t, dir, env...)
	return s
}

// Restart starts weir on the policy that Serve wrote, as after a crash.
func Restart(t testing.TB, dir string, env ...string) *Sidecar {
	t.Helper()
	s := &Sidecar{
		Config: filepath.Join(dir, "weir.yaml"),
		Socket: filepath.Join(dir, "weir.sock"),
		Admin:  UnixClient(filepath.Join(dir, "admin.sock")),
	}
	cmd := exec.Command(Weir(t), "serve", "--config", s.Config)
	cmd.Env = append(os.Environ(), env...)
	s.Process = start(t, "weir", cmd)
	Eventually(t, 20*time.Second, "weir is ready", func() bool {
		select {
		case <-s.Exited():
			t.Fatalf("weir ended at start:\n%s", s.Log())
		default:
		}
		res, err := s.Admin.Get("http://weir/readyz")
		if err != nil {
			return false
		}
		res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
	return s
}

// Server is the server section for a policy in dir.
func Server(dir string) string {
	return fmt.Sprintf("server: {grpc: %q, admin: %q, drain: 25s}\n",
		"unix:"+filepath.Join(dir, "weir.sock"), "unix:"+filepath.Join(dir, "admin.sock"))
}

// Redis is a running redis-server.
type Redis struct {
	*Process
	Addr string
	dir  string
	port int
}

// StartRedis runs a real redis-server on a free loopback port, without
// persistence.
func StartRedis(t testing.TB, args ...string) *Redis {
	t.Helper()
	r := &Redis{dir: Dir(t), port: FreePort(t)}
	r.Addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(r.port))
	r.Restart(t, args...)
	return r
}

// Restart starts it again on the same port after Kill; its memory is empty.
func (r *Redis) Restart(t testing.TB, args ...string) {
	t.Helper()
	path := os.Getenv("REDIS_SERVER")
	if path == "" {
		var err error
		if path, err = exec.LookPath("redis-server"); err != nil {
			t.Fatal("no redis-server to test with: run build/redis, or set REDIS_SERVER")
		}
	}
	args = append([]string{"--port", strconv.Itoa(r.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", r.dir}, args...)
	r.Process = start(t, "redis-server", exec.Command(path, args...))
	Eventually(t, 10*time.Second, "redis-server answers", func() bool { return ping(r.Addr) })
}

// ping asks a Redis for PONG; one that wants a password first answers too.
func ping(addr string) bool {
	ctx, stop := context.WithTimeout(context.Background(), time.Second)
	defer stop()
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return false
	}
	defer c.Close()
	if dl, ok := ctx.Deadline(); ok {
		_ = c.SetDeadline(dl)
	}
	if _, err := c.Write([]byte("PING\r\n")); err != nil {
		return false
	}
	buf := make([]byte, 16)
	n, _ := c.Read(buf)
	answer := string(buf[:n])
	return answer == "+PONG\r\n" || strings.HasPrefix(answer, "-NOAUTH")
}

// FreePort is a loopback port that was free a moment ago.
func FreePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
