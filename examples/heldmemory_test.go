package examples_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/examples"
	"github.com/weirproxy/weir/internal/envoytest"
)

// TestHeldMemory: what a request of 2 KB that waits costs weir. WEIR_HELD is how many
// wait, 5,000 where it is not set.
func TestHeldMemory(t *testing.T) {
	held := 5000
	if v := os.Getenv("WEIR_HELD"); v != "" {
		held, _ = strconv.Atoi(v)
	}
	const most = 16 << 10
	patient := fmt.Sprintf(`
classes: [{name: critical, maxWait: 5m}, {name: standard, maxWait: 5m}, {name: batch, maxWait: 5m}]
queue: {length: {min: %d, max: %d}, perTenant: 100%%, softLimit: 100%%, coldStart: []}
envoy: {messageTimeout: 30s, maxMessageTimeout: 10m}
`, held+100, held+100)
	b := envoytest.Envoys(t)[0]
	w := newWorld(t, b, setup{example: "one-filter.yaml", policy: patient + sharedPool(1), pools: []string{"chat-fp16"}, envoy: func(tree envoytest.Tree) {
		unhurried(tree)
		envoytest.Filter(tree, "envoy.filters.http.ext_proc")["max_message_timeout"] = "600s"
		examples.Set(envoytest.HCM(tree), 1000, "http2_protocol_options", "max_concurrent_streams")
	}})
	w.occupy("standard")
	token := w.token(nil)
	body := modelBody("deepseek-v4", strings.Repeat("x", 2000))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all sync.WaitGroup
	defer all.Wait()
	hold := func(n int) {
		for range n {
			all.Go(func() {
				_ = w.do(w.request(ctx, http.MethodPost, chatPath, body, "Authorization", "Bearer "+token))
			})
		}
	}
	hold(100) // what is made once is made
	w.sees("the first wait", func(q queue) bool { return q.Waiting == 100 })
	before := w.weir.Memory(t, "VmRSS")
	for n := 100; n < held; n += 100 {
		hold(100)
		w.sees("they wait", func(q queue) bool { return q.Waiting == n+100 })
	}
	each := (w.weir.Memory(t, "VmRSS") - before) * 1024 / (held - 100)
	t.Logf("weir took %d bytes for each of %d; heap in use %.0f, stacks %.0f, released %.0f, next GC %.0f", each, held,
		w.metric("go_memstats_heap_inuse_bytes"), w.metric("go_memstats_stack_inuse_bytes"), w.metric("go_memstats_heap_released_bytes"), w.metric("go_memstats_next_gc_bytes"))
	if each > most {
		t.Errorf("weir takes %d bytes for each request that waits, want at most %d", each, most)
	}
	cancel()
}

// TestMemoryComesBack: what a flood of large bodies took, of which weir keeps
// each until its pool is known, is the system's again within a minute.
func TestMemoryComesBack(t *testing.T) {
	const calls, size, spare, limit = 140, 4<<20 - 4096, 80 << 10, time.Minute // spare in KiB
	b := envoytest.Envoys(t)[0]
	w := newWorld(t, b, setup{example: "one-filter.yaml", envoy: unhurried, policy: patience + `
queue: {maxAwaitedBytes: 4GiB, maxAwaitedBytesPerTenant: 4GiB, maxHeldBytes: 4GiB, length: {min: 200, max: 200}, perTenant: 100%, softLimit: 100%, coldStart: []}
classes: [{name: critical, maxWait: 50s}, {name: standard, maxWait: 50s}, {name: batch, maxWait: 50s}]
` + sharedPool(1), pools: []string{"chat-fp16"}})
	w.occupy("standard")
	token := w.token(nil)
	before := w.weir.Memory(t, "VmRSS")
	// A stream's body is changed: its usage is asked for.
	body := strings.Replace(modelBody("deepseek-v4", strings.Repeat("x", size)), "{", `{"stream":true,`, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all sync.WaitGroup
	defer all.Wait()
	for range calls {
		all.Go(func() {
			_ = w.do(w.request(ctx, http.MethodPost, chatPath, body, "Authorization", "Bearer "+token))
		})
	}
	w.sees("all wait", func(q queue) bool { return q.Waiting == calls })
	most := w.weir.Memory(t, "VmRSS")
	if grown := (most - before) << 10; grown < calls*size {
		t.Errorf("weir grew by %d MiB, want those of the bodies at least: %d", grown>>20, calls*size>>20)
	}
	cancel()
	w.sees("all have left", func(q queue) bool { return q.Waiting == 0 })
	start := time.Now()
	envoytest.Eventually(t, limit, "the memory comes back", func() bool { return w.weir.Memory(t, "VmRSS") < before+spare })
	t.Logf("weir had %d MiB, %d MiB at most, and %d MiB %v after the flood", before>>10, most>>10, w.weir.Memory(t, "VmRSS")>>10, time.Since(start))
}
