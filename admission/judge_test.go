package admission

import "testing"

// B6: ends by what was seen; what counts is the breaker's rule.
func TestJudge(t *testing.T) {
	for _, c := range []struct {
		name string
		e    Evidence
		want Result
	}{
		{"200", Evidence{Status: 200}, ResultOK},
		{"upstream 429", Evidence{Status: 429}, ResultFailed},
		{"upstream 500", Evidence{Status: 500}, ResultFailed},
		{"404", Evidence{Status: 404}, ResultCaller},
		{"error in a 200", Evidence{Status: 200, Error: true}, ResultFailed},
		{"error in a 200 that blames the caller", Evidence{Status: 200, Error: true, CallersFault: true}, ResultCaller},
		{"stream without its last event", Evidence{Status: 200, Cut: true}, ResultUnknown},
		{"error, then cut", Evidence{Status: 200, Error: true, Cut: true}, ResultFailed},
		{"gRPC OK", Evidence{Status: 200, GRPC: true}, ResultOK},
		{"gRPC UNAVAILABLE", Evidence{Status: 200, GRPC: true, GRPCStatus: 14}, ResultFailed},
		{"gRPC NOT_FOUND", Evidence{Status: 200, GRPC: true, GRPCStatus: 5}, ResultCaller},
		{"gRPC UNKNOWN", Evidence{Status: 200, GRPC: true, GRPCStatus: 2}, ResultUnknown},
		{"gRPC DATA_LOSS", Evidence{Status: 200, GRPC: true, GRPCStatus: 15}, ResultUnknown},
		{"gRPC without a status", Evidence{Status: 200, Cut: true}, ResultUnknown},
	} {
		if got := Judge(&c.e); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	for details, failed := range map[string]bool{
		"no_healthy_upstream": true, "cluster_not_found": true, "stream_idle_timeout": true,
		"upstream_reset_before_response_started{connection_failure}": true,
		"upstream_reset_before_response_started{overflow}":           false,
		"upstream_reset_before_response_started{local_reset}":        false,
		"request_payload_too_large":                                  false, "something new": false,
	} {
		e := LocalReply(&Evidence{Details: details, Status: 503})
		if _, counts := e.counted(); e.Result != ResultNoAnswer || counts != failed || !e.Usage.Refund {
			t.Errorf("%s: %+v, want counted %v", details, e, failed)
		}
	}
	if e := LocalReply(&Evidence{Details: "stream_idle_timeout", Uploading: true}); e.Failed {
		t.Error("a caller that stalls its upload counts against the pool")
	}
}
