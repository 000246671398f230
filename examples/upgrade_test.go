package examples_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirproxy/weir/examples"
	"github.com/weirproxy/weir/internal/envoytest"
)

// TestUpgradeWithoutAGap (grpc/grpc-go#1387): two weirs serve one Envoy, at 500
// calls a second. Each in turn gets SIGTERM and comes back: no call fails.
func TestUpgradeWithoutAGap(t *testing.T) {
	const perSecond = 500
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		dirs := [2]string{envoytest.Dir(t), envoytest.Dir(t)}
		w := newWorld(t, b, setup{
			example: formOf(b), dir: dirs[0], policy: sharedPool(1000), sim: steady(time.Millisecond), pools: []string{"chat-fp16"},
			envoy: func(tree envoytest.Tree) {
				for _, c := range examples.Get(tree, "static_resources", "clusters").([]any) {
					if examples.Get(c, "name") != "weir" {
						continue
					}
					hosts := examples.Get(c, "load_assignment", "endpoints", 0).(envoytest.Tree)
					hosts["lb_endpoints"] = append(hosts["lb_endpoints"].([]any), envoytest.Tree{"endpoint": envoytest.Tree{
						"address": envoytest.Tree{"pipe": envoytest.Tree{"path": filepath.Join(dirs[1], "weir.sock")}}}})
				}
			},
		})
		rules, err := os.ReadFile(w.weir.Config)
		if err != nil {
			t.Fatal(err)
		}
		weirs := [2]*envoytest.Sidecar{w.weir, envoytest.Serve(t, dirs[1], strings.ReplaceAll(strings.ReplaceAll(string(rules),
			filepath.Join(dirs[0], "weir.sock"), filepath.Join(dirs[1], "weir.sock")),
			filepath.Join(dirs[0], "admin.sock"), filepath.Join(dirs[1], "admin.sock")))}
		token := w.token(nil)
		turns := time.NewTicker(time.Second / perSecond)
		t.Cleanup(turns.Stop)
		l := w.load(t, 100, func(int) answer {
			<-turns.C
			return w.chat(token, 2, true)
		})
		for i := range weirs {
			served := l.count(200)
			envoytest.Eventually(t, longest, "both serve", func() bool { return l.count(200) >= served+perSecond })
			weirs[i].Signal(syscall.SIGTERM)
			select {
			case <-weirs[i].Exited():
			case <-time.After(longest):
				t.Fatal("weir runs on")
			}
			served = l.count(200)
			envoytest.Eventually(t, longest, "one serves", func() bool { return l.count(200) >= served+perSecond/2 })
			weirs[i] = envoytest.Restart(t, dirs[i])
		}
		l.end()
		l.only(t, 200)
		if n := l.count(0); n > 0 {
			t.Errorf("%d answers were cut", n)
		}
		if t.Failed() {
			t.Log(w.envoy.Stats(t, `cluster\.weir\.(upstream_rq_retry|upstream_cx|upstream_rq_5).*|ext_(proc|authz).*(error|fail|timeout)`))
		}
	})
}
