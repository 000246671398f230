package examples_test

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/weirproxy/weir/internal/envoytest"
	"github.com/weirproxy/weir/internal/modelsim"
)

// hastyPython is gRPC's client for Python (gRPC core), which many languages
// share. It starts 60 calls a second until its input ends, each with its number
// in a header, and prints of each the number, when it began and how it ended.
const hastyPython = `
import sys, time, threading, grpc
addr, method, config, body, tokens = sys.argv[1], sys.argv[2], sys.argv[3], bytes.fromhex(sys.argv[4]), sys.argv[5:]
done, calls = threading.Event(), []
threading.Thread(target=lambda: (sys.stdin.read(), done.set()), daemon=True).start()
with grpc.insecure_channel(addr, options=[("grpc.service_config", config)]) as channel:
    infer, began = channel.unary_unary(method), time.monotonic()
    while not done.wait(max(0, began + len(calls) / 60 - time.monotonic())):
        n, at = len(calls), time.time_ns()
        metadata = (("call", str(n)), ("authorization", "Bearer " + tokens[n % len(tokens)]))
        calls.append((at, infer.future(body, timeout=20, metadata=metadata)))
    for n, (at, call) in enumerate(calls): print(n, at, call.code().name)
`

// logsCalls has Envoy write the number of the call for each attempt that
// reaches it.
func logsCalls(file string) func(tree envoytest.Tree) {
	return func(tree envoytest.Tree) {
		envoytest.HCM(tree)["access_log"] = []any{envoytest.Tree{
			"name": "envoy.access_loggers.file",
			"typed_config": envoytest.Tree{
				"@type":      "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog",
				"path":       file,
				"log_format": envoytest.Tree{"text_format_source": envoytest.Tree{"inline_string": "%REQ(CALL)%\n"}},
			},
		}}
	}
}

// restartedPython restarts all hosts of cluster infer under that client, then
// ends Envoy, which writes the rest of its log.
func (s *street) restartedPython(t *testing.T, packages, log string, away time.Duration) (a amplified) {
	t.Helper()
	body, err := proto.Marshal(question(3))
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"-c", hastyPython, s.envoy.Addr, modelsim.InferMethod, hasty, hex.EncodeToString(body)}
	for i := range 30 { // tenants of few calls each
		args = append(args, s.token(claims{"tenant": fmt.Sprintf("naive-%d", i)}))
	}
	cmd := exec.CommandContext(t.Context(), "python3", args...)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+packages)
	var out, wrong bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &wrong
	input, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	hosts := slices.Concat(s.near, s.far)
	envoytest.Eventually(t, longest, "calls are answered", func() bool {
		var n int64
		for _, h := range hosts {
			n += h.ended.Load()
		}
		return n >= 20
	})
	for _, h := range hosts {
		h.stop()
	}
	gone := time.Now()
	s.wait(away)
	back := time.Now()
	for _, h := range hosts {
		h.start()
	}
	s.wait(300 * time.Millisecond)
	input.Close()
	if err := cmd.Wait(); err != nil || wrong.Len() > 0 {
		t.Fatalf("%v\n%s", err, wrong.String())
	}
	s.envoy.Signal(syscall.SIGTERM)
	<-s.envoy.Exited()
	return logged(t, out.String(), log, gone, back)
}

// logged joins what the client printed with Envoy's log, for the calls that
// began while the hosts were away.
func logged(t *testing.T, printed, log string, gone, back time.Time) (a amplified) {
	t.Helper()
	raw, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	attempts := map[string]int{}
	for number := range strings.FieldsSeq(string(raw)) {
		attempts[number]++
	}
	ends := map[string]int{}
	for line := range strings.Lines(printed) {
		var number, end string
		var ns int64
		if _, err := fmt.Sscan(line, &number, &ns, &end); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if attempts[number] == 0 {
			t.Errorf("call %s ended %s and is not in Envoy's log", number, end)
		}
		if at := time.Unix(0, ns); at.After(gone) && at.Before(back) {
			a.requests, a.attempts = a.requests+1, a.attempts+attempts[number]
			ends[end]++
		}
	}
	t.Logf("%v; they ended %v", a, ends)
	return a
}

// TestProtectRetriesPython (B9): gRPC's client for Python under a pool's
// restart, with a service config that tries five times. Without weir each
// request costs three attempts and more; with it, at most 1.3.
func TestProtectRetriesPython(t *testing.T) {
	const away = 2 * time.Second
	packages := openAI(t)
	if _, err := os.Stat(filepath.Join(packages, "grpc")); err != nil {
		t.Skipf("no grpcio to test with (%v): run build/openai", err)
	}
	b := newest(t)
	run := func(bare bool) amplified {
		t.Helper()
		dir := envoytest.Dir(t)
		log := filepath.Join(dir, "calls.log")
		s := newStreet(t, b, streetSetup{dir: dir, work: 10 * time.Millisecond, chat: map[string][]string{"a": {"127.0.0.1:1"}, "b": {"127.0.0.1:2"}}, bare: bare, envoy: logsCalls(log)})
		return s.restartedPython(t, packages, log, away)
	}
	bare, guarded := run(true), run(false)
	t.Logf("without weir: %v; with weir: %v", bare, guarded)
	if bare.each() < 3 || bare.requests < 50 {
		t.Errorf("without weir: %v, want 3 and more: nothing is shown", bare)
	}
	if guarded.each() > 1.3 || guarded.requests < 50 {
		t.Errorf("with weir: %v, want 1.3 at most", guarded)
	}
}
