package gpu_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/weirproxy/weir/gpu"
)

func TestFaultOf(t *testing.T) {
	plain := errors.New("plain")
	for _, tt := range []struct {
		err  error
		want gpu.Fault
	}{
		{plain, gpu.FaultOther},
		{gpu.Missed(gpu.FaultSize, plain), gpu.FaultSize},
		{fmt.Errorf("source: %w", gpu.Missed(gpu.FaultForm, plain)), gpu.FaultForm},
		{gpu.Missed(gpu.FaultConnect, context.DeadlineExceeded), gpu.FaultTimeout},
		{nil, gpu.FaultOther},
	} {
		if got := gpu.FaultOf(tt.err); got != tt.want {
			t.Errorf("FaultOf(%v) = %v, want %v", tt.err, got, tt.want)
		}
	}
	if err := gpu.Missed(gpu.FaultSize, plain); !errors.Is(err, plain) || err.Error() != "plain" {
		t.Errorf("Missed(plain) = %v", err)
	}
	names := map[string]bool{}
	for f := range gpu.NumFaults {
		if f.String() == "" || names[f.String()] {
			t.Errorf("fault %d is called %q", f, f)
		}
		names[f.String()] = true
	}
}

// The state of a source counts the faults of readings and of looks.
func TestFaultsAreCounted(t *testing.T) {
	start := time.Unix(1_700_000_000, 0)
	g := gpu.NewGauge(defaults(), []gpu.SourceInfo{{Name: "card", Every: time.Second}}, start)
	var faults gpu.Faults
	faults[gpu.FaultBlank] = 2
	for i := range 2 {
		g.Observe(gpu.Sample{Source: "card", At: start.Add(time.Duration(i) * time.Second), Dropped: 2, Faults: faults})
	}
	g.Miss("card", start.Add(2*time.Second), gpu.Missed(gpu.FaultRedirect, errors.New("moved")))
	var want gpu.Faults
	want[gpu.FaultBlank], want[gpu.FaultRedirect] = 4, 1
	if got := g.Reading().Sources[0].Faults; got != want {
		t.Errorf("faults = %v, want %v", got, want)
	}
}
