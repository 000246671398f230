package main

import (
	"encoding/json"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/weirproxy/weir/internal/envoytest"
)

// TestFloodOfNobody: 5,000 refusals of callers without an identity write less
// than 24 KiB of log (a line each would be 1.2 MB), which says how many more
// there were, and a decision made before them is still explained.
func TestFloodOfNobody(t *testing.T) {
	const flood, workers = 5000, 8
	dir := envoytest.Dir(t)
	w := envoytest.Serve(t, dir, "version: 1\n"+envoytest.Server(dir)+`identity: {from: metadata, metadata: {namespace: door}}
models: [{name: m, pools: [chat]}]
pools: [{name: chat, variant: fp16, seats: {requests: 64}}]
`)
	conn, err := grpc.NewClient("unix:"+w.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if status := askWeir(t, conn); status != 200 {
		t.Fatalf("a request: %d", status)
	}
	at := "unix:" + dir + "/admin.sock"
	admitted := func() (id string) {
		body, err := adminGet(t.Context(), at, "", "/debug/explain")
		if err != nil {
			t.Fatal(err)
		}
		var records []struct{ Request, Tenant string }
		if err := json.Unmarshal(body, &records); err != nil {
			t.Fatal(err)
		}
		for _, r := range records {
			if r.Tenant == "acme" {
				return r.Request
			}
		}
		return ""
	}
	before, id := len(w.Log()), admitted()
	if id == "" {
		t.Fatal("the request is not explained")
	}
	var work sync.WaitGroup
	for range workers {
		work.Go(func() {
			for range flood / workers {
				if code := askAsNobody(t, conn); code != 401 && code != 403 && code != 503 {
					t.Errorf("refused with %d", code)
					return
				}
			}
		})
	}
	work.Wait()
	if body, err := adminGet(t.Context(), at, "", "/debug/explain?request="+id); err != nil || !strings.Contains(string(body), `"acme"`) {
		t.Errorf("after the flood: %s, %v", body, err)
	}
	envoytest.Eventually(t, 20*time.Second, "a line says how many more", func() bool { return strings.Contains(w.Log()[before:], `"more":`) })
	w.Signal(syscall.SIGTERM)
	<-w.Exited()
	log := w.Log()[before:]
	lines, more := strings.Count(log, `"msg":"request"`), 0
	for line := range strings.Lines(log) {
		var l struct {
			More     int
			Verified bool
		}
		if err := json.Unmarshal([]byte(line), &l); err == nil && !l.Verified {
			more += l.More
		}
	}
	if len(log) > 24<<10 || lines == 0 || lines+more != flood {
		t.Errorf("%d bytes of log, %d lines and %d more of %d refusals", len(log), lines, more, flood)
	}
	t.Logf("%d bytes of log, %d lines and %d more of %d refusals", len(log), lines, more, flood)
}

// askAsNobody sends request headers without an identity and gives the status.
func askAsNobody(t *testing.T, conn *grpc.ClientConn) int {
	stream, err := extprocv3.NewExternalProcessorClient(conn).Process(t.Context())
	if err != nil {
		t.Error(err)
		return 0
	}
	head := &corev3.HeaderMap{}
	for k, v := range map[string]string{":method": "POST", ":path": "/v1/chat/completions", "content-type": "application/json"} {
		head.Headers = append(head.Headers, &corev3.HeaderValue{Key: k, RawValue: []byte(v)})
	}
	err = stream.Send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{Headers: head}}})
	if err != nil {
		t.Error(err)
		return 0
	}
	r, err := stream.Recv()
	if err != nil {
		t.Error(err)
		return 0
	}
	for err == nil {
		_, err = stream.Recv() // until it is over
	}
	return int(r.GetImmediateResponse().GetStatus().GetCode())
}
