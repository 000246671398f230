package demo

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// tally counts what callers of one group saw. Its own lock; read by the view.
type tally struct {
	mu                            sync.Mutex
	sent, admitted, queued        int
	degraded, rejected, shed, bad int
	returned, returnedOK          int
	waits                         []time.Duration // of admitted requests
	lastBad                       string
}

// row is a copy of a tally for display.
type row struct {
	sent, admitted, queued, degraded, rejected, shed, bad, returned, returnedOK int
	p50, p99                                                                    time.Duration
	lastBad                                                                     string
}

func (t *tally) read() row {
	t.mu.Lock()
	defer t.mu.Unlock()
	waits := slices.Clone(t.waits)
	slices.Sort(waits)
	return row{t.sent, t.admitted, t.queued, t.degraded, t.rejected, t.shed, t.bad, t.returned, t.returnedOK,
		quantile(waits, .5), quantile(waits, .99), t.lastBad}
}

func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

// caller sends the requests of one group.
type caller struct {
	group  Group
	url    string
	token  string
	client *http.Client
	tally  tally
	wg     sync.WaitGroup
	left   time.Time // requests end by then
	tokens int64     // charged by weir, as last seen; the view's own
}

// offer sends at a rate (requests a second, Poisson) until ctx ends.
func (c *caller) offer(ctx context.Context, rate float64, rng *rand.Rand) {
	next := time.Now()
	for {
		next = next.Add(time.Duration(rng.ExpFloat64() / rate * float64(time.Second)))
		timer := time.NewTimer(time.Until(next))
		select {
		case <-timer.C:
			c.wg.Go(func() { c.request(ctx) })
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// request sends one request, and a refused one once more at its hint.
func (c *caller) request(phase context.Context) {
	ctx, stop := context.WithDeadline(context.WithoutCancel(phase), c.left)
	defer stop()
	hint, ok := c.try(ctx, false)
	if ok || hint <= 0 || time.Now().Add(hint+2*time.Second).After(c.left) {
		return
	}
	timer := time.NewTimer(hint)
	defer timer.Stop()
	select {
	case <-timer.C:
		c.try(ctx, true)
	case <-ctx.Done():
	}
}

// try makes one call; hint is when a refused caller is asked to come back.
func (c *caller) try(ctx context.Context, again bool) (hint time.Duration, ok bool) {
	prompt := strings.TrimSpace(strings.Repeat("word ", promptWords))
	body := fmt.Sprintf(`{"model":"deepseek-v4","stream":true,"max_tokens":%d,"messages":[{"role":"user","content":%q}]}`, outputTokens, prompt)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader([]byte(body)))
	if err != nil {
		return 0, false
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	req.Header.Set("Content-Type", "application/json")
	if again {
		req.Header.Set("X-Stainless-Retry-Count", "1") // as OpenAI's clients say it
	}
	c.count(func(t *tally) { t.sent++ })
	res, err := c.client.Do(req)
	if err != nil {
		c.count(func(t *tally) { t.bad++; t.lastBad = err.Error() })
		return 0, false
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusOK {
		return 0, c.answer(res, again)
	}
	text, _ := io.ReadAll(io.LimitReader(res.Body, 4096))
	c.count(func(t *tally) {
		switch res.StatusCode {
		case http.StatusTooManyRequests:
			t.rejected++
		case http.StatusServiceUnavailable:
			t.shed++
		default:
			t.bad++
			t.lastBad = fmt.Sprintf("%s: %s", res.Status, text)
		}
		if again {
			t.returned++
		}
	})
	ms, _ := strconv.ParseFloat(res.Header.Get("retry-after-ms"), 64)
	return time.Duration(ms * float64(time.Millisecond)), false
}

// answer reads an SSE answer to its end.
func (c *caller) answer(res *http.Response, again bool) bool {
	waited, _ := strconv.ParseFloat(res.Header.Get("x-weir-waited-ms"), 64)
	wait := time.Duration(waited * float64(time.Millisecond))
	degraded := strings.HasPrefix(res.Header.Get("x-weir-reason"), "degraded")
	done := false
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		done = done || lines.Text() == "data: [DONE]"
	}
	c.count(func(t *tally) {
		if !done {
			t.bad++
			t.lastBad = fmt.Sprintf("an answer was cut: %v", lines.Err())
			return
		}
		t.admitted++
		t.waits = append(t.waits, wait)
		if wait > 0 {
			t.queued++
		}
		if degraded {
			t.degraded++
		}
		if again {
			t.returned++
			t.returnedOK++
		}
	})
	return done
}

func (c *caller) count(fn func(*tally)) {
	c.tally.mu.Lock()
	defer c.tally.mu.Unlock()
	fn(&c.tally)
}
