package examples_test

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/examples"
	"github.com/weirproxy/weir/internal/envoytest"
	"github.com/weirproxy/weir/internal/modelsim"
)

// TestProtectHungEngine (B6, B2): callers who open and leave open no breaker of an
// engine that hangs before its first byte; callers who wait for longer than
// pools[].firstByte do, while they wait, and who comes later is refused at once.
// Once the engine is well, a call each 200 ms is tried within two open times of
// the opening.
func TestProtectHungEngine(t *testing.T) {
	const bound, open = 2 * time.Second, 2 * time.Second
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		sim, addr := engine(t)
		s := newStreet(t, b, streetSetup{chat: map[string][]string{"a": {addr}, "b": {"127.0.0.1:2"}}, policy: func(tree envoytest.Tree) {
			examples.Set(tree, bound.String(), "pools", 0, "firstByte")
			examples.Set(tree, open.String(), "breaker", "open")
		}})
		token, before := s.token(nil), s.last()
		if err := sim.SetFault(modelsim.FaultRule{Fault: "hang"}); err != nil {
			t.Fatal(err)
		}
		ask := func(n int, patience time.Duration) {
			var all sync.WaitGroup
			for range n {
				all.Go(func() {
					ctx, leave := context.WithTimeout(t.Context(), patience)
					defer leave()
					s.do(s.request(ctx, http.MethodPost, "/v1/chat/completions", chatBody(3, true), "Authorization", "Bearer "+token))
				})
			}
			all.Wait()
		}
		ask(60, bound/2)
		s.wait(2 * bound)
		if e, tripped := s.entry(before, func(e *happened) bool { return e.What == "transition" }); tripped {
			t.Errorf("callers that left opened the breaker: %s", e.Because)
		}
		began := time.Now()
		waiting := make(chan struct{})
		go func() { defer close(waiting); ask(40, 10*time.Second) }() // ends with the engine, at the latest
		defer func() { <-waiting }()
		envoytest.Eventually(t, 2*bound+3*time.Second, "the breaker opens while they wait", func() bool {
			_, ok := s.entry(before, transition("chat", "hard"))
			return ok
		})
		opened, _ := s.entry(before, transition("chat", "hard"))
		a := s.chat(token, 3, true)
		t.Logf("open %v after the first (%s); the next caller has %d %s after %v", opened.At.Sub(began).Round(time.Millisecond), opened.Because, a.code, a.header.Get("x-weir-reason"), a.took.Round(time.Millisecond))
		if a.code != http.StatusServiceUnavailable || a.header.Get("x-weir-reason") != "breaker_open" || a.took > time.Second {
			t.Errorf("the next caller: %d %v after %v", a.code, a.header, a.took)
		}
		sim.ClearFault()
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			<-tick.C
			if a = s.chat(token, 3, true); a.done() || time.Since(opened.At) > 10*open {
				break
			}
		}
		if took := time.Since(opened.At) - a.took; took > 2*open {
			t.Errorf("tried %v after it opened, want %v at the latest", took, 2*open)
		} else {
			t.Logf("tried %v after it opened", took.Round(time.Millisecond))
		}
	})
}
