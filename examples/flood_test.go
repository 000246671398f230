package examples_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/envoytest"
)

// flood sends n calls in about two seconds, from tenants in turn, and counts
// their answers; open are the connections it has at most.
func (w *world) flood(t *testing.T, n, tenants, open int) map[int]*atomic.Int64 {
	t.Helper()
	tokens := make([]string, tenants)
	for i := range tokens {
		tokens[i] = w.token(claims{"tenant": fmt.Sprint("flood-", i)})
	}
	got := map[int]*atomic.Int64{}
	for _, code := range []int{0, 200, 429, 503, 504} {
		got[code] = new(atomic.Int64)
	}
	client := &http.Client{Transport: &http.Transport{MaxConnsPerHost: open, MaxIdleConnsPerHost: open}, Timeout: 30 * time.Second}
	defer client.CloseIdleConnections()
	var all sync.WaitGroup
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for sent := 0; sent < n; <-tick.C {
		for range min(n/200+1, n-sent) {
			token := tokens[sent%tenants]
			sent++
			all.Go(func() {
				res, err := client.Do(w.request(context.Background(), http.MethodPost, chatPath, chatBody(1, false), "Authorization", "Bearer "+token))
				code := 0
				if err == nil {
					code = res.StatusCode
					res.Body.Close()
				}
				if got[code] == nil {
					code = 0
				}
				got[code].Add(1)
			})
		}
	}
	all.Wait()
	return got
}

// TestFloodOfRefusals: a tenant, or many, ask for far more than their quota.
// They are refused at their headers, and others are served meanwhile. The full
// numbers: WEIR_FLOOD=20000 WEIR_FLOODERS=5000 WEIR_FLOOD_CONNECTIONS=20000.
func TestFloodOfRefusals(t *testing.T) {
	n, many := number("WEIR_FLOOD", 2000), number("WEIR_FLOODERS", 500)
	const quota = `
quotas:
  - {name: flood, match: {tenant: "flood-*"}, by: [tenant], limits: [{requests: 1, per: 1h}, {concurrency: 20}]}
`
	for _, form := range []string{"one-filter.yaml", "two-filters.yaml"} {
		for _, c := range []struct {
			tenants int
			least   float64
		}{{1, 0.95}, {many, 0.80}} {
			t.Run(fmt.Sprint(form, " ", c.tenants), func(t *testing.T) {
				b := envoytest.Envoys(t)[0]
				w := newWorld(t, b, setup{example: form, policy: quota + sharedPool(10000), pools: []string{"chat-fp16"}})
				l := w.load(t, 4, func(i int) answer {
					<-time.After(20 * time.Millisecond)
					return w.chat(w.token(claims{"tenant": fmt.Sprint("other-", i)}), 1, false)
				})
				start := time.Now()
				got := w.flood(t, n, c.tenants, number("WEIR_FLOOD_CONNECTIONS", 1000))
				took := time.Since(start)
				l.end()
				ok, failed := l.count(200), l.count(0)+l.count(503)+l.count(504)+l.count(429)
				share := float64(ok) / float64(max(ok+failed, 1))
				t.Logf("%d calls of %d tenants in %v: %d served, %d refused, %d of 503, %d of 504, %d broke; of others %d were served, %d not (%.1f %%)",
					n, c.tenants, took, got[200].Load(), got[429].Load(), got[503].Load(), got[504].Load(), got[0].Load(), ok, failed, 100*share)
				if ok == 0 || share < c.least {
					t.Errorf("%.1f %% of the others were served, want %.0f %%", 100*share, 100*c.least)
				}
			})
		}
	}
}

func number(env string, unset int) int {
	if n, err := strconv.Atoi(os.Getenv(env)); err == nil && n > 0 {
		return n
	}
	return unset
}
