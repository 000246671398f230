package modelsim_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/modelsim"
)

// exact is a machine whose times are easy to add up.
func exact() modelsim.EngineConfig {
	return modelsim.EngineConfig{
		Running:         8,
		KVTokens:        1000,
		StepBase:        10 * time.Millisecond,
		StepPerSequence: time.Millisecond,
		PrefillPerToken: 100 * time.Microsecond,
		PrefillChunk:    100,
	}
}

// inside runs a simulator in virtual time.
func inside(t *testing.T, cfg modelsim.Config, f func(t *testing.T, sim *modelsim.Sim)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		sim := modelsim.New(cfg)
		f(t, sim)
		if err := sim.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
}

// ask runs one chat in the bubble and returns how long it took.
func ask(t *testing.T, sim *modelsim.Sim, body string) time.Duration {
	t.Helper()
	start := time.Now()
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/chat/completions", strings.NewReader(body))
	sim.Handler().ServeHTTP(w, r)
	if w.Code != http.StatusOK {
		t.Errorf("status %d: %s", w.Code, w.Body)
	}
	return time.Since(start)
}

const fourTokens = `{"model":"m",` + hello + `,"max_tokens":4}`

func TestStepTime(t *testing.T) {
	inside(t, modelsim.Config{Engine: exact()}, func(t *testing.T, sim *modelsim.Sim) {
		// Four steps of one sequence; the first reads five prompt tokens.
		if got, want := ask(t, sim, fourTokens), 4*11*time.Millisecond+500*time.Microsecond; got != want {
			t.Errorf("one request took %v, want %v", got, want)
		}
	})
}

func TestSpeed(t *testing.T) {
	inside(t, modelsim.Config{Engine: exact(), Speed: 10}, func(t *testing.T, sim *modelsim.Sim) {
		if got, want := ask(t, sim, fourTokens), (4*11*time.Millisecond+500*time.Microsecond)/10; got != want {
			t.Errorf("one request took %v, want %v", got, want)
		}
	})
}

// Service time grows with load.
func TestBatchSlowsDown(t *testing.T) {
	inside(t, modelsim.Config{Engine: exact()}, func(t *testing.T, sim *modelsim.Sim) {
		took := together(t, sim, 8, fourTokens)
		// Eight sequences a step, but for the first step, which began before
		// the others came.
		if last := took[7]; last < 4*18*time.Millisecond || last > 6*18*time.Millisecond {
			t.Errorf("the last of eight took %v, want about four steps of 18ms", last)
		}
	})
}

// together runs n requests at once and returns their times, shortest first.
func together(t *testing.T, sim *modelsim.Sim, n int, body string) []time.Duration {
	t.Helper()
	var mu sync.Mutex
	var took []time.Duration
	var work sync.WaitGroup
	for range n {
		work.Go(func() {
			d := ask(t, sim, body)
			mu.Lock()
			defer mu.Unlock()
			took = append(took, d) // in order of the ends
		})
	}
	work.Wait()
	return took
}

// A long prompt is read in chunks, beside the others' tokens.
func TestPrefillInChunks(t *testing.T) {
	inside(t, modelsim.Config{Engine: exact()}, func(t *testing.T, sim *modelsim.Sim) {
		// 988 bytes are 247 tokens, and 3: three steps read 100, 100, 50.
		body := `{"messages":[{"role":"user","content":"` + strings.Repeat("x", 988) + `"}],"max_tokens":2}`
		want := 4*11*time.Millisecond + 250*100*time.Microsecond // the third step yields the first token
		if got := ask(t, sim, body); got != want {
			t.Errorf("took %v, want %v", got, want)
		}
		if c := sim.Totals(); c.Prompt != 250 || c.Output != 2 {
			t.Errorf("totals = %+v", c.Count)
		}
	})
}

// Requests wait inside the engine when the cache is full, in order.
func TestCacheIsFull(t *testing.T) {
	cfg := exact()
	cfg.KVTokens = 18 // two of 5 + 4
	inside(t, modelsim.Config{Engine: cfg}, func(t *testing.T, sim *modelsim.Sim) {
		var work sync.WaitGroup
		for range 6 {
			work.Go(func() { ask(t, sim, fourTokens) })
		}
		time.Sleep(25 * time.Millisecond)
		synctest.Wait()
		if l := sim.Load(); l.Running != 2 || l.Waiting != 4 || l.KVUsed != 18 || l.KVTokens != 18 {
			t.Errorf("load = %+v, want 2 running, 4 waiting, the cache full", l)
		}
		work.Wait()
		if l := sim.Load(); l.Running != 0 || l.Waiting != 0 || l.KVUsed != 0 || l.PromptTokens != 30 || l.OutputTokens != 24 {
			t.Errorf("load at the end = %+v", l)
		}
	})
}

// The batch has Running places.
func TestBatchIsFull(t *testing.T) {
	cfg := exact()
	cfg.Running = 3
	inside(t, modelsim.Config{Engine: cfg}, func(t *testing.T, sim *modelsim.Sim) {
		var work sync.WaitGroup
		for range 5 {
			work.Go(func() { ask(t, sim, fourTokens) })
		}
		time.Sleep(25 * time.Millisecond)
		synctest.Wait()
		if l := sim.Load(); l.Running != 3 || l.Waiting != 2 {
			t.Errorf("load = %+v, want 3 running, 2 waiting", l)
		}
		work.Wait()
	})
}

// Equal seeds give equal times, different ones do not.
func TestDeterministic(t *testing.T) {
	cfg := exact()
	cfg.Jitter = 0.5
	run := func(seed uint64) (took []time.Duration) {
		inside(t, modelsim.Config{Engine: cfg, Seed: seed}, func(t *testing.T, sim *modelsim.Sim) {
			for range 5 {
				took = append(took, ask(t, sim, fourTokens))
			}
		})
		return took
	}
	a, b, c := run(1), run(1), run(2)
	same := true
	for i := range a {
		if a[i] != b[i] {
			t.Errorf("request %d took %v and %v with one seed", i, a[i], b[i])
		}
		same = same && a[i] == c[i]
	}
	if same {
		t.Error("two seeds gave the same times")
	}
}

// An idle machine waits without steps, and one that is closed ends what runs.
func TestCloseUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sim := modelsim.New(modelsim.Config{Engine: exact()})
		time.Sleep(time.Hour)
		if l := sim.Load(); l.Steps != 0 || l.Busy != 0 {
			t.Errorf("load of an idle machine = %+v", l)
		}
		var work sync.WaitGroup
		for range 4 {
			work.Go(func() {
				w := httptest.NewRecorder()
				body := strings.NewReader(`{"stream":true,` + hello + `,"max_tokens":200}`)
				ctx := t.Context()
				defer func() { _ = recover() }() // a stream that is cut ends its handler
				sim.Handler().ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodPost, "/v1/chat/completions", body))
			})
		}
		time.Sleep(50 * time.Millisecond)
		if err := sim.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		work.Wait()
		if c := sim.Totals(); c.Started != 4 || c.Aborted != 4 || c.InFlight != 0 || c.Peak != 4 {
			t.Errorf("totals = %+v", c)
		}
		if sim.Reset(); sim.Totals().Peak != 0 {
			t.Errorf("peak of an idle machine after Reset = %d", sim.Totals().Peak)
		}
	})
}
