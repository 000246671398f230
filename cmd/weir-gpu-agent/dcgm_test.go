package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/gpu/agent"
	"github.com/weirproxy/weir/gpu/dcgm/dcgmtest"
	"github.com/weirproxy/weir/gpu/scrape"
	"github.com/weirproxy/weir/gpu/sourcetest"
	"github.com/weirproxy/weir/internal/envoytest"
	"github.com/weirproxy/weir/policy"
)

// shim is a libdcgm.so.4 that the agent may read.
func shim(t *testing.T) dcgmtest.Library {
	t.Helper()
	l, err := dcgmtest.Compile(t.TempDir())
	if err != nil {
		fmt.Printf("%s reads no libdcgm.so.4, which could not be compiled: %v\n", t.Name(), err)
		t.Skip(err)
	}
	return l
}

// alone is an agent of the node "node", its stream and its page.
func alone(t *testing.T, env []string, args ...string) (stream *agent.Source, page string) {
	t.Helper()
	socket := "unix:" + filepath.Join(shortDir(t), "s")
	address := net.JoinHostPort("127.0.0.1", fmt.Sprint(envoytest.FreePort(t)))
	started(t, env, nil, append([]string{"--every=100ms", "--host=node", "--listen=" + socket, "--metrics=" + address}, args...)...)
	return sourcetest.Open(t, agent.New, agent.Config{Name: "node", Address: socket}), "http://" + address
}

// get is what a page says, once the agent listens.
func get(t *testing.T, url string) (status int, body string) {
	t.Helper()
	envoytest.Eventually(t, 30*time.Second, url, func() bool {
		r, err := http.Get(url)
		if err != nil {
			return false
		}
		defer func() { _ = r.Body.Close() }()
		text, err := io.ReadAll(r.Body)
		status, body = r.StatusCode, string(text)
		return err == nil
	})
	return status, body
}

// The agent reads DCGM as a process of its own, and its stream and its text
// say the same of each figure, as weir's two readers see it; auto takes DCGM
// where it is there.
func TestAgentAloneReadsDCGM(t *testing.T) {
	l := shim(t)
	if err := l.Fault("value 1 -1 230 i 79", "stamp 1 -1 230 1700000000500000", "value 1 -1 1002 d 140737488355328"); err != nil {
		t.Fatal(err)
	}
	for _, source := range []string{"dcgm", "auto"} {
		stream, page := alone(t, l.Environ(), "--source="+source)
		byText, err := scrape.New("text", policy.TelemetrySource{Kind: policy.KindDCGMExporter, URL: page + "/metrics"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = byText.Close() })
		var a, b gpu.Sample
		envoytest.Eventually(t, 30*time.Second, "both tell of two GPUs", func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			var errA, errB error
			a, errA = byText.Sample(ctx)
			b, errB = stream.Sample(ctx)
			return errA == nil && errB == nil && len(a.Cards) == 2 && len(b.Cards) == 2
		})
		fell := time.UnixMilli(1_700_000_000_500)
		for i := range a.Cards {
			for _, at := range []*time.Time{&a.Cards[i].XIDAt, &b.Cards[i].XIDAt} {
				if i == 0 && !at.IsZero() || i == 1 && at.Sub(fell).Abs() > 2*time.Second {
					t.Errorf("--source %s: XID of GPU %d at %v, want that of GPU 1 at %v", source, i, at, fell)
				}
				*at = time.Time{}
			}
		}
		if !reflect.DeepEqual(a.Cards, b.Cards) || a.Util != b.Util || a.GPUs != 2 || b.GPUs != 2 {
			t.Errorf("--source %s: by text\n%+v\nby stream\n%+v", source, a, b)
		}
		c, d := b.Cards[0], b.Cards[1]
		if c.ID != "GPU-0" || c.Host != "node" || c.Util != gpu.Some(0.4) || c.SM != gpu.Some(0.25) || c.MemoryUsed != gpu.Some(20<<30) || c.Power != gpu.Some(310.5) ||
			c.XID != gpu.Some(0) || d.ID != "GPU-1" || d.XID != gpu.Some(79) || d.SM.OK {
			t.Errorf("--source %s: cards\n%+v\n%+v", source, c, d)
		}
		if _, text := get(t, page+"/metrics"); !strings.Contains(text, `weir_gpu_agent_source{source="dcgm"} 1`) || !strings.Contains(text, "weir_gpu_agent_up 1") {
			t.Errorf("--source %s: %s", source, text)
		}
	}
}

// Without any library the agent runs, and says what is missing wherever it is
// asked. A machine that has NVML is read by it.
func TestAgentAloneWithoutALibrary(t *testing.T) {
	for source, want := range map[string][]string{
		"auto": {"dcgm", "nvml"},
		"dcgm": {"dcgm"},
	} {
		stream, page := alone(t, []string{"LD_LIBRARY_PATH=" + t.TempDir()}, "--source="+source)
		got, err := stream.Sample(t.Context())
		for deadline := time.Now().Add(30 * time.Second); gpu.FaultOf(err) == gpu.FaultConnect && time.Now().Before(deadline); {
			got, err = stream.Sample(t.Context()) // it does not listen yet
		}
		if source == "auto" && err == nil && len(got.Cards) > 0 {
			if _, text := get(t, page+"/metrics"); !strings.Contains(text, `weir_gpu_agent_source{source="nvml"} 1`) {
				t.Errorf("--source auto reads by another than NVML: %s", text)
			}
			continue
		}
		if gpu.FaultOf(err) != gpu.FaultStatus || !strings.Contains(err.Error(), "the agent sees no GPU") {
			t.Fatalf("--source %s: %+v, %v", source, got, err)
		}
		status, text := get(t, page+"/readyz")
		for _, missing := range want {
			if status != http.StatusServiceUnavailable || !strings.Contains(strings.ToLower(text), missing) || !strings.Contains(strings.ToLower(err.Error()), missing) {
				t.Errorf("--source %s names no %s: stream %v, /readyz %d %s", source, missing, err, status, text)
			}
		}
		if _, text := get(t, page+"/metrics"); !strings.Contains(text, "weir_gpu_agent_up 0") || strings.Contains(text, "DCGM_FI") {
			t.Errorf("--source %s: %s", source, text)
		}
	}
}

// Wrong usage ends the process with 2, what fails at the start with 1; both
// say why.
func TestExitCodes(t *testing.T) {
	for line, want := range map[string]struct {
		code int
		says string
	}{
		"--source cuda":                     {2, "--source must be auto, dcgm, nvml or script"},
		"--every 1h":                        {2, "--every must be in 100ms..10m0s"},
		"--listen 0.0.0.0:9411":             {2, "--tls-cert"},
		"--nonsense":                        {2, "nonsense"},
		"serve":                             {2, "serve"},
		"--source script --script /nowhere": {1, "/nowhere"},
		"--source dcgm --listen unix:/nowhere/at/all":     {1, "--listen"},
		"--check --source dcgm --dcgm /run/dcgm.sock":     {0, ""},
		"--check --source script --script /not/read/here": {0, ""},
	} {
		cmd, said := started(t, nil, nil, strings.Fields(line)...)
		err := cmd.Wait()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) || cmd.ProcessState.ExitCode() != want.code || !strings.Contains(said.String(), want.says) {
			t.Errorf("%q: exit code %d, want %d with %q: %s", line, cmd.ProcessState.ExitCode(), want.code, want.says, said)
		}
	}
}
