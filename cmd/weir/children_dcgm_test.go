package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weirproxy/weir/gpu/dcgm/dcgmtest"
	"github.com/weirproxy/weir/internal/envoytest"
)

// node is a real weir with a real agent as its child, which reads a
// libdcgm.so.4 of the test's with four GPUs, ten times a second.
type node struct {
	*envoytest.Sidecar
	t       *testing.T
	dir     string
	library dcgmtest.Library
	leave   context.CancelFunc // ends the request
}

func newNode(t *testing.T, faultFor time.Duration) *node {
	t.Helper()
	library, err := dcgmtest.Compile(t.TempDir())
	if err != nil {
		fmt.Printf("%s starts no agent that reads DCGM, for there is no libdcgm.so.4: %v\n", t.Name(), err)
		t.Skip(err)
	}
	n := &node{t: t, dir: envoytest.Dir(t), library: library}
	n.fault()
	policy := "version: 1\n" + envoytest.Server(n.dir) + `identity: {from: metadata, metadata: {namespace: door}}
models: [{name: m, pools: [chat]}]
pools:
  - name: chat
    variant: fp16
    seats: {requests: 64}
    telemetry: [{kind: dcgm, every: 100ms, agent: "` + envoytest.Agent(t) + `"}]
` + fmt.Sprintf("gauge: {faultFor: %v}\n", faultFor)
	n.Sidecar = envoytest.Serve(t, n.dir, policy, library.Environ()...)
	n.request()
	return n
}

// request is one that gets a seat and keeps it: seats follow the GPUs while
// somebody wants one.
func (n *node) request() {
	n.t.Helper()
	conn, err := grpc.NewClient("unix:"+n.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = conn.Close() })
	var ctx context.Context
	ctx, n.leave = context.WithCancel(n.t.Context())
	stream, err := extprocv3.NewExternalProcessorClient(conn).Process(ctx)
	if err != nil {
		n.t.Fatal(err)
	}
	who, err := structpb.NewStruct(map[string]any{"tenant": "acme", "scope": "llm_service chat_completion"})
	if err != nil {
		n.t.Fatal(err)
	}
	head := &corev3.HeaderMap{}
	for k, v := range map[string]string{":method": "POST", ":path": "/v1/chat/completions", "content-type": "application/json"} {
		head.Headers = append(head.Headers, &corev3.HeaderValue{Key: k, RawValue: []byte(v)})
	}
	body := []byte(`{"model": "m", "stream": true, "messages": [{"role": "user", "content": "hi"}]}`)
	for _, m := range []*extprocv3.ProcessingRequest{
		{
			Request:         &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{Headers: head}},
			MetadataContext: &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"door": who}},
		},
		{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: body, EndOfStream: true}}},
	} {
		if err := stream.Send(m); err != nil {
			n.t.Fatal(err)
		}
		if r, err := stream.Recv(); err != nil || r.GetImmediateResponse() != nil {
			n.t.Fatalf("no seat: %v, %v", r, err)
		}
	}
}

// restart is another weir with the same policy, at once after the end of the
// one that runs.
func (n *node) restart() {
	n.t.Helper()
	n.Kill()
	n.Sidecar = envoytest.Restart(n.t, n.dir, n.library.Environ()...)
	n.request()
}

func (n *node) fault(lines ...string) {
	n.t.Helper()
	if err := n.library.Fault(append(lines, "gpus 4")...); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) get(path string) []byte {
	n.t.Helper()
	r, err := n.Admin.Get("http://weir" + path)
	if err != nil {
		n.t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	body, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		n.t.Fatalf("%s: %s, %v: %s", path, r.Status, err, body)
	}
	return body
}

// gauge is /debug/gpu of the pool.
func (n *node) gauge() gaugePicture {
	n.t.Helper()
	var v gpuView
	if err := json.Unmarshal(n.get("/debug/gpu"), &v); err != nil || len(v.Pools) != 1 || len(v.Pools[0].Sources) != 1 {
		n.t.Fatalf("/debug/gpu: %+v, %v", v, err)
	}
	return v.Pools[0]
}

// seats are those of /debug/queue.
func (n *node) seats() int64 {
	n.t.Helper()
	var v struct {
		Pools []struct {
			Seats seatsView `json:"seats"`
		} `json:"pools"`
	}
	if err := json.Unmarshal(n.get("/debug/queue"), &v); err != nil || len(v.Pools) != 1 {
		n.t.Fatalf("/debug/queue: %+v, %v", v, err)
	}
	return v.Pools[0].Seats.Requests
}

// child is the process of the agent that was started last, by weir's log.
func (n *node) child() int {
	n.t.Helper()
	all := regexp.MustCompile(`"GPU agent runs".*"pid":(\d+)`).FindAllStringSubmatch(n.Log(), -1)
	if len(all) == 0 {
		return 0
	}
	pid, err := strconv.Atoi(all[len(all)-1][1])
	if err != nil {
		n.t.Fatal(err)
	}
	return pid
}

func (n *node) eventually(what string, ok func() bool) {
	n.t.Helper()
	envoytest.Eventually(n.t, time.Minute, what, ok)
}

// follows: the pool's pressure is that of the four GPUs, 40 % to 43 % busy.
func (n *node) follows() bool {
	g := n.gauge()
	return !g.Stale && len(g.Cards) == 4 && g.Pressure > 0.4 && g.Pressure < 0.43
}

// stale: no sample for so long that the pressure decays to neutral.
func (n *node) stale() bool { return n.gauge().Stale }

// From a fatal XID in DCGM to the seats of a pool and back, through weir, its
// child and the library: the first sample that has the XID takes the GPU's
// part of the seats, a weir that is killed and started anew knows that the XID
// stands, and seats come back after FaultFor, not with the code's end.
func TestFatalXIDThroughTheAgent(t *testing.T) {
	const faultFor = 3 * time.Second
	n := newNode(t, faultFor)
	n.eventually("weir follows its agent", n.follows)
	if g, seats := n.gauge(), n.seats(); g.Capacity != 1 || seats != 64 {
		t.Errorf("all well: capacity %v, %d seats", g.Capacity, seats)
	}
	n.fault("value 2 -1 230 i 79")
	occurred := time.Now()
	// faulty: each picture with the XID has the capacity that follows.
	faulty := func() bool {
		g := n.gauge()
		if len(g.Cards) < 3 || g.Cards[2].XID == nil || *g.Cards[2].XID == 0 {
			return false
		}
		if g.Capacity != 0.75 || g.Cards[2].Health != "faulty" || !strings.Contains(g.Cards[2].Reason, "XID 79") {
			t.Errorf("a sample with the XID: capacity %v, card %+v", g.Capacity, g.Cards[2])
		}
		return true
	}
	n.eventually("a sample with the XID", faulty)
	n.eventually("48 of 64 seats", func() bool { return n.seats() == 48 })
	if took := time.Since(occurred); took > faultFor {
		t.Skipf("this machine is too busy: the seats fell %v after the XID", took)
	}
	n.restart()
	n.eventually("the next weir has seen the XID", faulty)
	if since := time.Since(occurred); since > faultFor {
		t.Skipf("this machine is too busy: %v after the XID weir runs again", since)
	}
	n.eventually("48 of 64 seats of the next weir", func() bool { return n.seats() == 48 })
	n.fault() // the code is gone
	n.eventually("a sample without the XID", func() bool { g := n.gauge(); return *g.Cards[2].XID == 0 })
	var back time.Time
	n.eventually("the GPU is healthy", func() bool { back = time.Now(); return n.gauge().Capacity == 1 })
	if after := back.Sub(occurred); after < faultFor {
		t.Errorf("the GPU counts %v after its XID, want %v at least", after, faultFor)
	}
	n.eventually("all seats", func() bool { return n.seats() == 64 })
}

// What can befall the child: killed, it is another process soon; stopped, or
// caught in a library that hangs, it is the same one when it goes on. weir
// serves meanwhile and goes by the stale rule.
func TestAgentChildThroughItsTroubles(t *testing.T) {
	n := newNode(t, time.Minute)
	n.eventually("weir follows its agent", n.follows)
	first := n.child()
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatalf("child %d: %v", first, err)
	}
	n.eventually("weir is without telemetry", n.stale)
	n.eventually("weir follows another agent", n.follows)
	second := n.child()
	if second == first || second == 0 || !strings.Contains(n.Log(), "signal: killed") {
		t.Errorf("child %d after %d: %s", second, first, n.Log())
	}

	for range 2 {
		if err := syscall.Kill(second, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		n.eventually("weir is without telemetry while the child is stopped", n.stale)
		if err := syscall.Kill(second, syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		n.eventually("weir follows the child that goes on", n.follows)
	}

	n.fault("hang dcgmEntityGetLatestValues")
	if os.Getenv("WEIR_LONG") != "" {
		<-time.After(30 * time.Second) // that it hangs so long is the case
	}
	n.eventually("the agent says that the library hangs", func() bool {
		g := n.gauge()
		said := g.Sources[0].Error
		return g.Stale && strings.Contains(said, "the agent sees no GPU") && (strings.Contains(said, "is under way") || strings.Contains(said, "does not come back"))
	})
	if g, seats := n.gauge(), n.seats(); g.Capacity != 1 || seats != 64 {
		t.Errorf("while the library hangs: capacity %v, %d seats", g.Capacity, seats)
	}
	n.fault()
	n.eventually("weir follows the agent whose library came back", n.follows)
	if last := n.child(); last != second {
		t.Errorf("child %d is gone: %d runs", second, last)
	}
	n.leave()
	n.Signal(syscall.SIGTERM)
	select {
	case <-n.Exited():
	case <-time.After(30 * time.Second):
		t.Fatal("weir does not end")
	}
	if n.ExitCode() != 0 || syscall.Kill(second, 0) == nil {
		t.Errorf("exit code %d, child %d is left behind", n.ExitCode(), second)
	}
}
