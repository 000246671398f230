package scrape

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/policy"
)

// enginePage is a page as vLLM's: its gauges among the buckets of histograms,
// at least size bytes.
func enginePage(size int) []byte {
	var b bytes.Buffer
	gauge := func(name string, v float64) {
		fmt.Fprintf(&b, "# HELP vllm:%s What it says.\n# TYPE vllm:%s gauge\nvllm:%s{engine=\"0\",model_name=\"lantern-7b\"} %g\n", name, name, name, v)
	}
	gauge("num_requests_running", 24)
	gauge("num_requests_waiting", 3)
	for i := 0; b.Len() < size; i++ {
		name := fmt.Sprintf("vllm:some_histogram_%d_seconds", i)
		fmt.Fprintf(&b, "# HELP %s Histogram of something in seconds.\n# TYPE %s histogram\n", name, name)
		for le := range 20 {
			fmt.Fprintf(&b, "%s_bucket{engine=\"0\",le=\"%g\",model_name=\"lantern-7b\"} %d.0\n", name, 0.001*float64(le*le), i*le*37)
		}
		fmt.Fprintf(&b, "%s_bucket{engine=\"0\",le=\"+Inf\",model_name=\"lantern-7b\"} %d.0\n%s_count{engine=\"0\",model_name=\"lantern-7b\"} %d.0\n%s_sum{engine=\"0\",model_name=\"lantern-7b\"} %g\n", name, i*999, name, i*999, name, float64(i)*1.37)
	}
	gauge("kv_cache_usage_perc", 0.91)
	return b.Bytes()
}

const pageSize = 85 << 10

// BenchmarkParse: one page of 85 KB; the goal is 0.05 ms without allocation.
func BenchmarkParse(b *testing.B) {
	page := enginePage(pageSize)
	s, err := New("s", policy.TelemetrySource{Kind: policy.KindVLLM, URL: "http://127.0.0.1:1/"}, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(page)))
	b.ReportAllocs()
	for b.Loop() {
		if got, err := s.parse(page, instant); err != nil || got.KV.V != 0.91 {
			b.Fatal(got, err)
		}
	}
}

// serveEnv makes the test binary serve pages; the server's work is then not
// the benchmark's.
const serveEnv = "WEIR_SCRAPE_SERVE"

// servePages serves a page until stdin ends, plain or compressed, as asked.
func servePages() {
	page := enginePage(pageSize)
	var zip bytes.Buffer
	z := gzip.NewWriter(&zip)
	_, _ = z.Write(page)
	_ = z.Close()
	listen, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		os.Exit(1)
	}
	fmt.Println(listen.Addr())
	go func() {
		_ = http.Serve(listen, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
			if strings.HasSuffix(r.URL.Path, "gzip") {
				w.Header().Set("Content-Encoding", "gzip")
				_, _ = w.Write(zip.Bytes())
				return
			}
			_, _ = w.Write(page)
		}))
	}()
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// BenchmarkScrape: 500 targets of 85 KB, whose server is another process; the
// CPU time of this process alone, as microseconds a look and as percent of a
// core for 500 looks a second. The goal is 10 %.
func BenchmarkScrape(b *testing.B) {
	for _, form := range []string{"plain", "gzip"} {
		b.Run(form, func(b *testing.B) {
			addr := pageServer(b)
			targets := make([]*Source, 500)
			var buffers Buffers
			for i := range targets {
				s, err := buffers.New("s", policy.TelemetrySource{Kind: policy.KindVLLM, URL: "http://" + addr + "/" + form}, nil)
				if err != nil {
					b.Fatal(err)
				}
				defer func() { _ = s.Close() }()
				targets[i] = s
				if _, err := s.Sample(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			before, looks := cpuTime(b), 0
			for b.Loop() {
				if got, err := targets[looks%len(targets)].Sample(b.Context()); err != nil || got.KV.V != 0.91 {
					b.Fatal(got, err)
				}
				looks++
			}
			each := (cpuTime(b) - before).Seconds() / float64(looks)
			b.ReportMetric(each*1e6, "cpu-µs/look")
			b.ReportMetric(500*each*100, "%core/500")
		})
	}
}

// pageServer starts servePages as a process and is its address.
func pageServer(b *testing.B) string {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), serveEnv+"=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	return strings.TrimSpace(addr)
}

// BenchmarkPolled is the same as weir does it: 500 targets of 50 pools, each
// looked at once a second by a goroutine that sleeps in between. Waking up is
// in it, which BenchmarkScrape has not; the goal is 10 % of a core.
func BenchmarkPolled(b *testing.B) {
	for _, form := range []string{"plain", "gzip"} {
		b.Run(form, func(b *testing.B) {
			addr := pageServer(b)
			var gauges []*gpu.Gauge
			var buffers Buffers
			for pool := range 50 {
				var targets []gpu.Target
				var infos []gpu.SourceInfo
				for i := range 10 {
					s, err := buffers.New(fmt.Sprint("s", i), policy.TelemetrySource{Kind: policy.KindVLLM, URL: "http://" + addr + "/" + form}, nil)
					if err != nil {
						b.Fatal(err)
					}
					target := gpu.Target{Source: s, Every: time.Second}
					targets, infos = append(targets, target), append(infos, target.Info())
				}
				g := gpu.NewGauge(policy.Default().Gauge, infos, time.Now())
				p := gpu.StartPoller(g, targets, uint64(pool), slog.New(slog.DiscardHandler))
				defer p.Close()
				gauges = append(gauges, g)
			}
			time.Sleep(2 * time.Second) // all looked at once; from now on each has its phase
			looks := func() (n, missed uint64) {
				for _, g := range gauges {
					for _, s := range g.Reading().Sources {
						n, missed = n+s.Samples, missed+s.Missed
					}
				}
				return n, missed
			}
			before, start := cpuTime(b), time.Now()
			first, _ := looks()
			for b.Loop() {
				time.Sleep(time.Second)
			}
			spent, wall := cpuTime(b)-before, time.Since(start)
			last, missed := looks()
			if rate := float64(last-first) / wall.Seconds(); missed > 0 || rate < 450 {
				b.Fatalf("%d missed, %.0f looks a second", missed, rate)
			}
			b.ReportMetric(100*spent.Seconds()/wall.Seconds(), "%core/500")
			b.ReportMetric(float64(spent.Microseconds())/float64(last-first), "cpu-µs/look")
		})
	}
}

func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
