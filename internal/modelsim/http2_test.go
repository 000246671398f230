package modelsim_test

import (
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"testing"

	"github.com/weirproxy/weir/internal/modelsim"
)

// overHTTP2 makes the rig's client speak HTTP/2 without TLS.
func overHTTP2(r *rig) {
	transport := &http.Transport{Protocols: new(http.Protocols), DisableCompression: true}
	transport.Protocols.SetUnencryptedHTTP2(true)
	r.t.Cleanup(transport.CloseIdleConnections)
	r.client = &http.Client{Transport: transport}
}

// reused makes a call and says whether it went over a connection that was there.
func reused(r *rig, fault string) (old bool, err error) {
	trace := &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { old = i.Reused }}
	resp, err := r.post(httptrace.WithClientTrace(r.t.Context(), trace), chatPath, jsonBody, modelsim.FaultHeader, fault)
	if err != nil {
		return old, err
	}
	defer resp.Body.Close()
	_, err = io.ReadAll(resp.Body)
	if resp.ProtoMajor != 2 {
		r.t.Errorf("answer by %s, want HTTP/2", resp.Proto)
	}
	return old, err
}

// GOAWAY ends the connection after the answer, nothing else does.
func TestHTTP2GoAway(t *testing.T) {
	r := start(t, modelsim.Config{})
	overHTTP2(r)
	for i, step := range []struct {
		fault string
		old   bool
	}{{"", false}, {"", true}, {"goaway", true}, {"", false}, {"", true}} {
		if old, err := reused(r, step.fault); err != nil || old != step.old {
			t.Errorf("call %d: connection reused = %v, %v; want %v", i, old, err, step.old)
		}
	}
}

// A reset ends its own stream alone.
func TestHTTP2Reset(t *testing.T) {
	r := start(t, modelsim.Config{})
	overHTTP2(r)
	if _, err := reused(r, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := reused(r, "reset"); err == nil || !strings.Contains(err.Error(), "stream error") {
		t.Errorf("reset: %v, want a stream error", err)
	}
	if old, err := reused(r, ""); err != nil || !old {
		t.Errorf("after a reset: connection reused = %v, %v; want the same connection", old, err)
	}
	if c := r.idle(); c.Aborted != 1 || c.Finished != 2 {
		t.Errorf("totals = %+v", c.Count)
	}
}
