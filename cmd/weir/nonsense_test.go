package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/weirproxy/weir/internal/envoytest"
)

// TestRedisThatAnswersNonsense: as quota store and as bus, single, Cluster and
// Sentinel, it ends no process, takes little memory, counts as away, and
// requests are decided here. It is used once it answers well.
func TestRedisThatAnswersNonsense(t *testing.T) {
	for name, reply := range map[string]string{
		"numbers":    "*2\r\n:1\r\n:1\r\n",
		"60,000,000": "*60000000\r\n",
		"2 GiB":      "$2147483647\r\n" + strings.Repeat("x", 1<<20),
		"deep":       strings.Repeat("*1\r\n", 1<<18),
		"messages":   "*3\r\n$7\r\nmessage\r\n$14\r\n+switch-master\r\n$1\r\nm\r\n",
	} {
		for mode, settings := range map[string]string{"single": `addresses: [%q]`, "cluster": `addresses: [%q, "other"]`, "sentinel": `addresses: [%q], master: m`} {
			t.Run(name+" "+mode, func(t *testing.T) {
				t.Parallel()
				dir, bad := envoytest.Dir(t), envoytest.StartParrot(t, []byte(reply))
				at := strings.Replace(fmt.Sprintf(settings, bad.Addr), "other", strings.Replace(bad.Addr, "127.0.0.1", "localhost", 1), 1)
				w := envoytest.Serve(t, dir, "version: 1\n"+envoytest.Server(dir)+`identity: {from: metadata, metadata: {namespace: door}}
models: [{name: m, pools: [chat]}]
pools: [{name: chat, variant: fp16, seats: {requests: 64}}]
store: {redis: {`+at+`}}
quotas: [{name: all, by: [tenant], limits: [{requests: 1000, per: 10m}]}]
breaker: {cascade: {bus: redis}}
`)
				conn, err := grpc.NewClient("unix:"+w.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				shows := func(lines ...string) {
					t.Helper()
					for _, line := range lines {
						envoytest.Eventually(t, 20*time.Second, line, func() bool {
							body, err := adminGet(t.Context(), "unix:"+filepath.Join(dir, "admin.sock"), "", "/metrics")
							return err == nil && strings.Contains(string(body), "\n"+line+"\n")
						})
					}
				}
				for range 20 {
					if status := askWeir(t, conn); status != 200 {
						t.Fatalf("a request: %d", status)
					}
				}
				shows("weir_store_away 1", "weir_bus_up 0")
				if w.Stopped() {
					t.Fatalf("it ended:\n%s", w.Log())
				}
				if most := w.Memory(t, "VmHWM") >> 10; most > 160 {
					t.Errorf("it took %d MiB", most)
				}
				if mode != "single" {
					return
				}
				bad.Lead(envoytest.StartRedis(t).Addr)
				shows("weir_store_away 0", "weir_bus_up 1", "weir_store_pending 0")
				if status := askWeir(t, conn); status != 200 {
					t.Errorf("a request: %d", status)
				}
			})
		}
	}
}
