package breaker

import (
	"sync"
	"testing"
)

// The journal keeps the latest, in order, and says when there is more.
func TestJournal(t *testing.T) {
	j := &Journal{Max: 3}
	none, more := j.Since(0)
	if len(none) != 0 {
		t.Fatalf("%+v", none)
	}
	for i := range 10 {
		j.Add(Transition{Requests: i + 1})
		select {
		case <-more:
		default:
			t.Fatal("nobody was told")
		}
		var got []Transition
		got, more = j.Since(0)
		if len(got) != min(i+1, 3) || cap(j.kept) > 16 {
			t.Fatalf("after %d: %d given, room for %d", i+1, len(got), cap(j.kept))
		}
		for k, e := range got {
			if want := i + 1 - (len(got) - 1 - k); e.Seq != uint64(want) || e.Requests != want {
				t.Fatalf("after %d: %+v", i+1, got)
			}
		}
	}
	if got, _ := j.Since(9); len(got) != 1 || got[0].Seq != 10 {
		t.Fatalf("%+v", got)
	}
	if got, _ := j.Since(99); len(got) != 0 {
		t.Fatalf("%+v", got)
	}
	if _, again := j.Since(10); again != more {
		t.Fatal("another channel for the same wait")
	}
}

// Who waits for each change misses none that is kept.
func TestJournalConcurrently(t *testing.T) {
	j := &Journal{}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 200 {
				j.Add(Transition{})
			}
		})
	}
	var seq uint64
	for seq < 800 {
		got, more := j.Since(seq)
		for _, e := range got {
			if e.Seq != seq+1 {
				t.Fatalf("%d after %d", e.Seq, seq)
			}
			seq = e.Seq
		}
		if seq < 800 {
			<-more
		}
	}
	wg.Wait()
}

// The names are those of metrics and logs.
func TestNames(t *testing.T) {
	for k, want := range map[Kind]string{HTTP: "http", GRPC: "grpc", Tenant: "tenant", 9: "unknown"} {
		if k.String() != want {
			t.Errorf("%d = %q", k, k)
		}
	}
	for c, want := range map[Cause]string{
		ByRatio: "ratio", ByTime: "open_time_over", ByProbes: "probes_good", ByProbe: "probe_failed", ByGoAway: "goaway",
		ByHand: "hand", ByPolicy: "policy", ByOverrun: "overrun", ByRestore: "restore", 99: "unknown",
	} {
		if c.String() != want {
			t.Errorf("%d = %q", c, c)
		}
	}
}
