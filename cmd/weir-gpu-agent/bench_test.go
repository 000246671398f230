package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/gpu/agent"
	gpuv1 "github.com/weirproxy/weir/proto/gpu/v1"
)

// BenchmarkLook is what one look at eight GPUs costs beside the reading and
// the sending: judged, encoded, and put on the wire for fifty watchers. At one
// look a second 10 ms would be 1 % of a core.
func BenchmarkLook(b *testing.B) {
	fields := agent.Fields()
	board := newBoard(func(cards []gpu.Card) []*gpuv1.Card {
		wire := make([]*gpuv1.Card, len(cards))
		for i := range cards {
			wire[i] = agent.Encode(&cards[i], fields)
		}
		return wire
	})
	k := &keeper{fields: fields}
	w := &watchService{board: board}
	cards := cards8()
	b.ReportAllocs()
	for b.Loop() {
		now := time.Now()
		board.put(seen{source: "script", cards: cards, dropped: k.judge(cards)}, now)
		last, _, _ := board.newest()
		for range 50 {
			if _, err := proto.Marshal(w.snapshot(last, now)); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// BenchmarkAgent: the CPU time of an agent's process, with eight scripted
// GPUs, one weir that listens and one Prometheus that reads the page after
// each look; as percent of a core at one look a second. The goal is 1 %. What
// DCGM takes is not in it (gpu/dcgm's BenchmarkCards).
func BenchmarkAgent(b *testing.B) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	page := l.Addr().String()
	_ = l.Close()
	socket := "unix:" + filepath.Join(shortDir(b), "s")
	cmd, _ := process(b, socket, nil, "--metrics="+page)
	s, err := agent.New(agent.Config{Name: "node", Address: socket, Every: 100 * time.Millisecond})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	look := func() {
		for {
			got, err := s.Sample(b.Context())
			if err == nil && len(got.Cards) == 8 {
				break
			}
		}
		r, err := http.Get("http://" + page + "/metrics")
		if err != nil {
			b.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, r.Body); err != nil || n < 1000 {
			b.Fatal(n, err)
		}
		_ = r.Body.Close()
	}
	for range 3 {
		look()
	}
	before, looks := threadTime(b, cmd.Process.Pid), 0
	for b.Loop() {
		for range 10 {
			look()
			looks++
		}
	}
	spent := (threadTime(b, cmd.Process.Pid) - before).Seconds() / float64(looks)
	b.ReportMetric(spent*1e6, "cpu-µs/look")
	b.ReportMetric(spent*100, "%core@1s")
}

// threadTime is what a process had of CPUs, over all its threads.
func threadTime(b *testing.B, pid int) (sum time.Duration) {
	b.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(files) == 0 {
		b.Skipf("no schedstat: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has just ended
		}
		first, _, _ := strings.Cut(string(text), " ")
		ns, err := strconv.ParseInt(first, 10, 64)
		if err != nil {
			b.Fatal(err)
		}
		sum += time.Duration(ns)
	}
	return sum
}
