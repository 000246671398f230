package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weirproxy/weir/internal/envoytest"
)

// TestWeirIsReadyWithoutItsNeighbours: a bus that is away, a state that is broken
// and endpoints that cannot be read keep weir from nothing, and are seen.
func TestWeirIsReadyWithoutItsNeighbours(t *testing.T) {
	dir := envoytest.Dir(t)
	if err := os.WriteFile(filepath.Join(dir, "xds-state"), []byte("weir-xds-state 1 sha256 00\n{"), 0o600); err != nil {
		t.Fatal(err)
	}
	nobody := fmt.Sprintf("127.0.0.1:%d", envoytest.FreePort(t))
	w := envoytest.Serve(t, dir, "version: 1\n"+envoytest.Server(dir)+`identity: {from: metadata, metadata: {namespace: door}}
models: [{name: m, pools: [chat]}]
pools: [{name: chat, variant: fp16, seats: {requests: 64}}]
breaker: {cascade: {bus: etcd, etcd: {endpoints: ["`+nobody+`"]}}}
envoy:
  xds: {state: "`+dir+`"}
  watch: {admin: [{node: e, url: "http://`+nobody+`"}]}
  clusters: [{name: chat, endpoints: {priorities: [{file: "`+dir+`/none.yaml"}]}}]
`)
	conn, err := grpc.NewClient("unix:"+w.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if status := askWeir(t, conn); status != 200 {
		t.Errorf("a request: %d", status)
	}
	at := "unix:" + filepath.Join(dir, "admin.sock")
	for _, line := range []string{"weir_bus_up 0", "weir_xds_state_refused 1", "weir_discovery_sources_failing 1"} {
		envoytest.Eventually(t, 10*time.Second, line, func() bool {
			body, err := adminGet(t.Context(), at, "", "/metrics")
			return err == nil && strings.Contains(string(body), "\n"+line+"\n")
		})
	}
	if body, err := adminGet(t.Context(), at, "", "/readyz"); err != nil {
		t.Errorf("readyz: %s, %v", body, err)
	}
	w.Signal(syscall.SIGTERM)
	select {
	case <-w.Exited():
		if w.ExitCode() != 0 {
			t.Errorf("exit code %d:\n%s", w.ExitCode(), w.Log())
		}
	case <-time.After(10 * time.Second):
		t.Error("weir does not end")
	}
}

// askWeir sends a request as Envoy would; 200 = admitted.
func askWeir(t *testing.T, conn *grpc.ClientConn) int {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
	defer stop()
	stream, err := extprocv3.NewExternalProcessorClient(conn).Process(ctx)
	if err != nil {
		t.Fatal(err)
	}
	who, err := structpb.NewStruct(map[string]any{"tenant": "acme", "scope": "llm_service chat_completion"})
	if err != nil {
		t.Fatal(err)
	}
	head := &corev3.HeaderMap{}
	for k, v := range map[string]string{":method": "POST", ":path": "/v1/chat/completions", "content-type": "application/json"} {
		head.Headers = append(head.Headers, &corev3.HeaderValue{Key: k, RawValue: []byte(v)})
	}
	for _, m := range []*extprocv3.ProcessingRequest{
		{
			Request:         &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{Headers: head}},
			MetadataContext: &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"door": who}},
		},
		{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: []byte(`{"model": "m", "messages": [{"role": "user", "content": "hi"}]}`), EndOfStream: true}}},
	} {
		if err := stream.Send(m); err != nil {
			t.Fatal(err)
		}
		r, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if i := r.GetImmediateResponse(); i != nil {
			return int(i.GetStatus().GetCode())
		}
	}
	return 200
}
