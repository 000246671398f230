package main

import (
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weirproxy/weir/internal/envoytest"
	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota/redisstore"
)

// redisHouse is a weir with the Redis store, and a look into that Redis.
type redisHouse struct {
	*envoytest.Sidecar
	t     *testing.T
	dir   string
	redis *envoytest.Redis
	look  *redisstore.Store
}

func newRedisHouse(t *testing.T, drain string, concurrency int) *redisHouse {
	t.Helper()
	h := &redisHouse{t: t, dir: envoytest.Dir(t), redis: envoytest.StartRedis(t)}
	h.Sidecar = envoytest.Serve(t, h.dir, "version: 1\n"+strings.Replace(envoytest.Server(h.dir), "drain: 25s", "drain: "+drain, 1)+fmt.Sprintf(`
identity: {from: metadata, metadata: {namespace: door}}
store: {redis: {addresses: [%q]}}
models: [{name: m, pools: [chat]}]
pools: [{name: chat, variant: fp16, seats: {requests: 2000}}]
queue: {perTenant: 100%%, coldStart: []}
quotas: [{name: all, match: {tenant: "*"}, by: [tenant], limits: [{concurrency: %d}, {requests: 1000000, per: 1h}, {outputTokens: 100000000, per: 1h}]}]
`, h.redis.Addr, concurrency))
	var err error
	h.look, err = redisstore.New(policy.Redis{Addresses: []string{h.redis.Addr}, Timeout: 10 * time.Second}, redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.look.Close() })
	return h
}

// used is what Redis counts of the tenant acme.
func (h *redisHouse) used(u policy.Unit) int64 {
	h.t.Helper()
	counters, err := h.look.Usage(h.t.Context(), time.Time{}, "acme")
	if err != nil {
		h.t.Fatal(err)
	}
	for _, c := range counters {
		if c.Limit.Unit == u {
			return c.Used
		}
	}
	return 0
}

func (h *redisHouse) dial() *grpc.ClientConn {
	h.t.Helper()
	conn, err := grpc.NewClient("unix:"+h.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { conn.Close() })
	return conn
}

// begin sends a call as Envoy would, up to its admission; nil = it was refused,
// or weir is gone.
func begin(t *testing.T, conn *grpc.ClientConn) extprocv3.ExternalProcessor_ProcessClient {
	t.Helper()
	stream, err := extprocv3.NewExternalProcessorClient(conn).Process(t.Context())
	if err != nil {
		return nil
	}
	who, err := structpb.NewStruct(map[string]any{"tenant": "acme", "scope": "llm_service chat_completion"})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []*extprocv3.ProcessingRequest{
		{
			Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{
				Headers: headerMap(":method", "POST", ":path", "/v1/chat/completions", "content-type", "application/json"),
			}},
			MetadataContext: &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"door": who}},
		},
		{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{
			Body: []byte(`{"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}`), EndOfStream: true,
		}}},
	} {
		if stream.Send(m) != nil {
			return nil
		}
		if r, err := stream.Recv(); err != nil || r.GetImmediateResponse() != nil {
			return nil
		}
	}
	return stream
}

func headerMap(pairs ...string) *corev3.HeaderMap {
	m := &corev3.HeaderMap{}
	for i := 0; i < len(pairs); i += 2 {
		m.Headers = append(m.Headers, &corev3.HeaderValue{Key: pairs[i], RawValue: []byte(pairs[i+1])})
	}
	return m
}

// answer ends a call by a whole answer of so many tokens.
func answer(t *testing.T, stream extprocv3.ExternalProcessor_ProcessClient, tokens int) {
	t.Helper()
	for _, m := range []*extprocv3.ProcessingRequest{
		{Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extprocv3.HttpHeaders{
			Headers: headerMap(":status", "200", "content-type", "application/json"),
		}}},
		{Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: &extprocv3.HttpBody{
			Body:        fmt.Appendf(nil, `{"choices":[{"index":0,"message":{"content":"x"},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":%d}}`, tokens),
			EndOfStream: true,
		}}},
	} {
		if err := stream.Send(m); err != nil {
			t.Error(err)
			return
		}
		if _, err := stream.Recv(); err != nil {
			t.Error(err)
			return
		}
	}
	_ = stream.CloseSend()
}

// all begins n calls on a few connections; it fails unless all run.
func (h *redisHouse) all(n int) []extprocv3.ExternalProcessor_ProcessClient {
	h.t.Helper()
	out := make([]extprocv3.ExternalProcessor_ProcessClient, n)
	const at = 20
	var wg sync.WaitGroup
	for w := range at {
		conn := h.dial()
		wg.Go(func() {
			for i := w; i < n; i += at {
				out[i] = begin(h.t, conn)
			}
		})
	}
	wg.Wait()
	for i, s := range out {
		if s == nil {
			h.t.Fatalf("call %d of %d was not admitted", i+1, n)
		}
	}
	return out
}

// A weir that is killed leaves its units of concurrency behind: they are free
// within five seconds, also for a weir that starts again meanwhile.
func TestKilledWeirFreesItsUnits(t *testing.T) {
	h := newRedisHouse(t, "25s", 20)
	for round := range 2 {
		h.all(20)
		if begin(t, h.dial()) != nil {
			t.Fatal("call 21 of 20 was admitted")
		}
		if n := h.used(policy.Concurrency); n != 20 {
			t.Fatalf("Redis counts %d units, want 20", n)
		}
		h.Kill()
		killed := time.Now()
		h.Sidecar = envoytest.Restart(t, h.dir)
		conn := h.dial()
		envoytest.Eventually(t, 10*time.Second, "a call is admitted", func() bool {
			s := begin(t, conn)
			if s != nil {
				answer(t, s, 1)
			}
			return s != nil
		})
		took := time.Since(killed)
		t.Logf("round %d: %v after the kill", round, took)
		if took > 5*time.Second {
			t.Errorf("a call is admitted %v after the kill, want 5 s", took)
		}
		envoytest.Eventually(t, 10*time.Second, "nothing runs", func() bool { return h.used(policy.Concurrency) == 0 })
	}
}

// A weir that stands still for longer than its units count takes them up again
// when it goes on.
func TestPausedWeirHoldsItsUnits(t *testing.T) {
	h := newRedisHouse(t, "25s", 20)
	running := h.all(20)
	h.Signal(syscall.SIGSTOP)
	t.Cleanup(func() { h.Signal(syscall.SIGCONT) })
	envoytest.Eventually(t, 10*time.Second, "its units count no longer", func() bool { return h.used(policy.Concurrency) == 0 })
	h.Signal(syscall.SIGCONT)
	envoytest.Eventually(t, 10*time.Second, "its units count again", func() bool { return h.used(policy.Concurrency) == 20 })
	for _, s := range running {
		answer(t, s, 3)
	}
	envoytest.Eventually(t, 10*time.Second, "nothing runs", func() bool { return h.used(policy.Concurrency) == 0 })
	if n := h.used(policy.OutputTokens); n != 20*3 {
		t.Errorf("Redis counts %d output tokens, want 60", n)
	}
}

// SIGTERM with 1,000 running calls, of which half end within the drain:
// afterwards Redis holds no unit, and every call is charged what it used.
func TestDrainTellsRedis(t *testing.T) {
	const n, tokens = 1000, 3
	h := newRedisHouse(t, "4s", n)
	running := h.all(n)
	// So many calls at once may find Redis slow: what was decided meanwhile is
	// told when it is back.
	envoytest.Eventually(t, 20*time.Second, "Redis counts them all", func() bool { return h.used(policy.Concurrency) == n })
	h.Signal(syscall.SIGTERM)
	var wg sync.WaitGroup
	for _, s := range running[:n/2] {
		wg.Go(func() { answer(t, s, tokens) })
	}
	wg.Wait()
	select {
	case <-h.Exited():
	case <-time.After(20 * time.Second):
		t.Fatal("weir runs on")
	}
	if got := h.used(policy.Concurrency); got != 0 {
		t.Errorf("Redis counts %d units of a weir that ended, want 0\n%s", got, h.Log())
	}
	if got := h.used(policy.Requests); got != n {
		t.Errorf("Redis counts %d requests, want %d", got, n)
	}
	// Those that were let go are charged by the estimate, at most what they
	// were reserved.
	if got, least, most := h.used(policy.OutputTokens), int64(n/2*tokens), int64(n/2*tokens+n/2*50); got < least || got > most {
		t.Errorf("Redis counts %d output tokens, want %d to %d", got, least, most)
	}
	if strings.Contains(h.Log(), "was not told") {
		t.Errorf("the log says that something is left:\n%s", h.Log())
	}
}

// SIGTERM while Redis is away: weir ends in time, and its log says how much
// Redis was not told.
func TestDrainWithoutRedis(t *testing.T) {
	h := newRedisHouse(t, "1s", 100)
	running := h.all(30)
	h.redis.Signal(syscall.SIGSTOP)
	defer h.redis.Signal(syscall.SIGCONT)
	for _, s := range running {
		answer(t, s, 3)
	}
	start := time.Now()
	h.Signal(syscall.SIGTERM)
	select {
	case <-h.Exited():
	case <-time.After(20 * time.Second):
		t.Fatal("weir runs on")
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("the end took %v, want 1 s of drain, 2 s of farewell and 5 s for Redis at most", took)
	}
	if !strings.Contains(h.Log(), "redis was not told") || !strings.Contains(h.Log(), `"requests":30`) {
		t.Errorf("the log does not say how much is left:\n%s", h.Log())
	}
}
