package breaker

import (
	"fmt"
	"testing"
)

// B6, row by row.
func TestClassify(t *testing.T) {
	type row struct {
		name string
		e    Evidence
		want Outcome
	}
	rows := []row{
		{"nothing seen", Evidence{}, Ignored},
		{"200", Evidence{Status: 200}, Success},
		{"200 by the upstream", Evidence{Status: 200, Details: "via_upstream"}, Success},
		{"upstream 429", Evidence{Status: 429, Details: "via_upstream"}, Failure},
		{"upstream 503", Evidence{Status: 503, Details: "via_upstream"}, Failure},
		{"our 429", Evidence{Status: 429, Ours: true}, Ignored},
		{"our 503", Evidence{Status: 503, Ours: true}, Ignored},
		{"client cancel in mid stream", Evidence{Status: 200, Cancelled: true}, Ignored},
		{"client cancel before an answer", Evidence{Cancelled: true}, Ignored},
		{"500, then the client left", Evidence{Status: 500, Cancelled: true}, Failure},
		{"cut in mid stream", Evidence{Status: 200, Cut: true}, Ignored},
		{"cut before an answer", Evidence{Cut: true}, Ignored},
		{"499", Evidence{Status: 499}, Ignored},
		{"informational", Evidence{Status: 103}, Ignored},

		{"error in a 200", Evidence{Status: 200, Error: true}, Failure},
		{"error in a 200 that blames the caller", Evidence{Status: 200, Error: true, CallersFault: true}, Ignored},
		{"error inside, then the client left", Evidence{Status: 200, Error: true, Cancelled: true}, Failure},
		{"500 whose body blames the caller", Evidence{Status: 500, Error: true, CallersFault: true}, Failure},
		{"400 with an error body", Evidence{Status: 400, Error: true}, Ignored},

		{"gRPC OK", Evidence{Status: 200, GRPC: true}, Success},
		{"gRPC OK without HTTP status", Evidence{GRPC: true}, Success},
		{"gRPC failure in trailers over 200", Evidence{Status: 200, GRPC: true, GRPCStatus: 14}, Failure},
		{"gRPC refusal of ours", Evidence{Status: 200, GRPC: true, GRPCStatus: 8, Ours: true}, Ignored},
		{"gRPC without a status, cut", Evidence{Status: 200, Cut: true}, Ignored},

		{"idle before the answer", Evidence{Status: 504, Details: "stream_idle_timeout"}, Failure},
		{"idle while the caller uploads", Evidence{Status: 408, Details: "stream_idle_timeout", Uploading: true}, Ignored},
		{"anything else while uploading", Evidence{Status: 503, Details: "no_healthy_upstream", Uploading: true}, Failure},
	}
	for _, s := range []int{400, 401, 403, 404, 408, 413, 415, 422} {
		rows = append(rows, row{fmt.Sprint("caller's ", s), Evidence{Status: s}, Ignored})
	}
	for _, s := range []int{500, 502, 503, 504, 529, 599} {
		rows = append(rows, row{fmt.Sprint("upstream ", s), Evidence{Status: s}, Failure})
	}
	for code := range 17 {
		want := Ignored
		switch code {
		case 0:
			want = Success
		case 8, 13, 14: // RESOURCE_EXHAUSTED, INTERNAL, UNAVAILABLE
			want = Failure
		}
		rows = append(rows, row{fmt.Sprint("gRPC ", code), Evidence{Status: 200, GRPC: true, GRPCStatus: code}, want})
	}
	for d, want := range map[string]Outcome{
		"no_healthy_upstream":       Failure,
		"cluster_not_found":         Failure,
		"response_timeout":          Failure,
		"upstream_response_timeout": Failure,
		"upstream_per_try_timeout":  Failure,
		"upstream_reset_before_response_started{connection_failure}":                                   Failure,
		"upstream_reset_before_response_started{connection_termination}":                               Failure,
		"upstream_reset_before_response_started{remote_refused_stream_reset}":                          Failure,
		"upstream_reset_before_response_started{remote_connection_failure|delayed_connect_error:_111}": Failure,
		"upstream_reset_after_response_started{remote_reset}":                                          Failure,
		"upstream_reset_before_response_started{overflow}":                                             Ignored,
		"upstream_reset_before_response_started{local_reset}":                                          Ignored,
		"upstream_reset_after_response_started{local_reset}":                                           Ignored,
		"route_not_found":                           Ignored,
		"direct_response":                           Ignored,
		"maintenance_mode":                          Ignored,
		"ext_authz_denied":                          Ignored,
		"request_payload_too_large":                 Ignored,
		"downstream_remote_disconnect":              Ignored,
		"request_overall_timeout":                   Ignored,
		"local_rate_limited":                        Ignored,
		"ext_proc_error_gRPC_error_14{unavailable}": Ignored,
	} {
		// The status of a local reply is Envoy's, not the model's.
		rows = append(rows, row{"local reply " + d, Evidence{Status: 503, Details: d}, want})
	}
	for _, r := range rows {
		if got := Classify(r.e); got != r.want {
			t.Errorf("%s: %d, want %d", r.name, got, r.want)
		}
	}
}
