package examples_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/envoytest"
)

// TestDemo runs `DEMO_HOLD=1 weir demo` as a user would: the show, the summary,
// then every line that it prints is pasted into a shell; Ctrl-C ends all.
func TestDemo(t *testing.T) {
	ctx, stop := context.WithTimeout(t.Context(), 3*time.Minute)
	defer stop()
	out, dir := &envoytest.Log{}, envoytest.Dir(t)
	cmd := exec.CommandContext(ctx, envoytest.Weir(t), "demo", "--short", "--envoy", newest(t).Path)
	cmd.Env = append(os.Environ(), "DEMO_HOLD=1", "TMPDIR="+dir)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	const last = "Everything stays up until Ctrl-C."
	for !strings.Contains(out.String(), last) {
		select {
		case err := <-ended:
			t.Fatalf("the demo ended by itself: %v\n%s", err, out)
		case <-time.After(50 * time.Millisecond):
		}
	}
	text := out.String()
	for _, want := range []string{"critical", "standard", "batch", "Tokens: weir charged", "Every request got an answer or a refusal with a hint"} {
		if !strings.Contains(text, want) {
			t.Errorf("the show misses %q:\n%s", want, text)
		}
	}
	lines := text[strings.Index(text, "CRITICAL="):strings.Index(text, last)]
	shell := exec.CommandContext(ctx, "bash", "-eu")
	shell.Stdin = strings.NewReader(lines)
	shell.Env = append(os.Environ(), "PYTHONPATH="+openAI(t))
	pasted, err := shell.CombinedOutput()
	if err != nil {
		t.Errorf("pasted lines: %v\n%s", err, pasted)
	}
	for _, want := range []string{"HTTP/1.1 200", "data: [DONE]", `"object":"list"`, "HTTP/1.1 401", `"waiting": 0`, `"tenant": "globex-rag"`, `"reason": "admitted"`} {
		if !strings.Contains(string(pasted), want) {
			t.Errorf("the pasted lines do not show %s:\n%s", want, pasted)
		}
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("after Ctrl-C: %v", err)
	}
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range commands {
		if line, err := os.ReadFile(file); err == nil && bytes.Contains(line, []byte(dir)) { // gone in between is fine
			t.Errorf("left running: %q", line)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("left in the temporary folder: %v %v", entries, err)
	}
}
