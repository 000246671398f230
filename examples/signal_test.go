package examples_test

import (
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/envoytest"
)

// TestLogReaderGone: weir serves on when whoever read its log has died, and
// when he hangs; a closed terminal (SIGHUP) drains it as SIGTERM does.
func TestLogReaderGone(t *testing.T) {
	for _, c := range []struct {
		name string
		gone bool
		end  syscall.Signal
	}{
		{"died", true, syscall.SIGHUP},
		{"hangs", false, syscall.SIGTERM},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := &world{t: t, dir: envoytest.Dir(t)}
			file := filepath.Join(w.dir, "weir.yaml")
			write := func(text string) {
				t.Helper()
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			good := w.policy(setup{from: "extproc", policy: "telemetry: {log: {level: debug}}\n"})
			write(good)
			read, log, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer read.Close()
			fill(t, log) // nobody reads: the next line finds no room
			weir := exec.Command(envoytest.Weir(t), "serve", "--config", file)
			weir.Stderr = log
			if err := weir.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- weir.Wait() }()
			defer func() { _ = weir.Process.Kill() }() // ended already where all went well
			log.Close()
			if c.gone {
				read.Close()
			}
			admin := envoytest.UnixClient(filepath.Join(w.dir, "admin.sock"))
			envoytest.Eventually(t, 20*time.Second, "weir is ready", func() bool {
				res, err := admin.Get("http://weir/readyz")
				if err != nil {
					return false
				}
				res.Body.Close()
				return res.StatusCode == http.StatusOK
			})
			w.weir = &envoytest.Sidecar{Admin: admin}
			write("broken: [") // is told in the log
			envoytest.Eventually(t, 10*time.Second, "the broken policy is seen", func() bool { return w.metric("weir_policy_last_reload_success") == 0 })
			write(strings.Replace(good, "requests: 8", "requests: 9", 1))
			envoytest.Eventually(t, 10*time.Second, "the next policy is in force", func() bool { return w.metric("weir_policy_last_reload_success") == 1 })
			if signal.Ignored(c.end) {
				c.end = syscall.SIGTERM // under nohup weir is to outlive its terminal
			}
			if err := weir.Process.Signal(c.end); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-ended:
				if err != nil {
					t.Errorf("weir ended with %v", err)
				}
			case <-time.After(20 * time.Second):
				t.Error("weir does not end")
			}
		})
	}
}

// fill leaves no room in a pipe.
func fill(t *testing.T, pipe *os.File) {
	t.Helper()
	if err := pipe.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := pipe.Write(make([]byte, 1024)); err != nil {
			return
		}
	}
}
