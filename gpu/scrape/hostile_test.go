package scrape

import (
	"context"
	"testing"
	"time"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/internal/envoytest"
	"github.com/weirproxy/weir/policy"
)

// Whatever a metrics page answers: a look ends in its time, takes no more
// memory than a text may have, and is a miss.
func TestHostilePages(t *testing.T) {
	for name, page := range envoytest.Pages() {
		t.Run(name, func(t *testing.T) {
			s := from(t, envoytest.StartParrot(t, page).Addr)
			ctx, stop := context.WithTimeout(t.Context(), time.Second)
			defer stop()
			before, began := envoytest.Allocated(), time.Now()
			_, err := s.Sample(ctx)
			if err == nil || gpu.FaultOf(err) == 0 && gpu.FaultOf(err) != gpu.FaultConnect {
				t.Errorf("%v, want a miss of some kind", err)
			}
			if took := time.Since(began); took > 3*time.Second {
				t.Errorf("took %v", took)
			}
			if got := int(envoytest.Allocated() - before); got > envoytest.AllocFactor*4*MaxText {
				t.Errorf("%d MiB allocated", got>>20)
			}
		})
	}
}

func from(t testing.TB, addr string) *Source {
	t.Helper()
	s, err := New("node", policy.TelemetrySource{Kind: policy.KindVLLM, URL: "http://" + addr}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// FuzzAnswer: any bytes in answer to a look.
func FuzzAnswer(f *testing.F) {
	for _, page := range envoytest.Pages() {
		if len(page) < 1000 {
			f.Add(page)
		}
	}
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\nvllm:num_requests_waiting 240\n"))
	f.Fuzz(func(t *testing.T, page []byte) {
		if len(page) > 1<<16 {
			return
		}
		s := from(t, envoytest.StartParrot(t, page).Addr)
		ctx, stop := context.WithTimeout(t.Context(), 30*time.Millisecond)
		defer stop()
		began := time.Now()
		_, _ = s.Sample(ctx)
		if took := time.Since(began); took > time.Second {
			t.Errorf("took %v", took)
		}
	})
}
