package breaker

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// B6: the documented table is the one that decides, row by row.
func TestRulesAreDocumented(t *testing.T) {
	raw, err := os.ReadFile("../docs/reasons.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(raw), "\n## What a breaker counts\n")
	if !found {
		t.Fatal("docs/reasons.md has no such section")
	}
	var got []string
	for line := range strings.Lines(section) {
		if strings.HasPrefix(line, "## ") {
			break
		}
		if strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| answered by") && !strings.HasPrefix(line, "|---") {
			got = append(got, strings.TrimSpace(line))
		}
	}
	for i, r := range Rules() {
		want := fmt.Sprintf("| %s | %s | %s | %s | %s |", r.Who, r.Protocol, r.What, r.Counts, r.Why)
		if i >= len(got) || got[i] != want {
			t.Errorf("row %d of docs/reasons.md is not\n%s", i+1, want)
		}
	}
	if len(got) != len(rules) {
		t.Errorf("%d rows are documented, there are %d", len(got), len(rules))
	}
}

// Every row decides something, and what it says: none is hidden by those
// before it.
func TestEveryRuleDecides(t *testing.T) {
	reset := "upstream_reset_before_response_started{"
	for i, examples := range [len(rules)][]Evidence{
		{{Ours: true}, {Ours: true, Status: 429}, {Ours: true, Status: 503, Details: viaUpstream}, {Ours: true, Details: "ext_proc_local_response"}},
		{{Status: 503, Details: "drop_overload"}, {Status: 503, Details: "maintenance_mode"}},
		{{Status: 503, Details: "no_healthy_upstream"}, {Status: 503, Details: "cluster_not_found"}},
		{{Status: 504, Details: "response_timeout"}, {Status: 504, Details: "upstream_per_try_timeout"}},
		{{Status: 408, Details: "stream_idle_timeout", Uploading: true}},
		{{Status: 504, Details: "stream_idle_timeout"}},
		{{Status: 503, Details: reset + "overflow}"}, {Status: 503, Details: reset + "local_reset}"}, {Status: 503, Details: reset + "overload_manager_reset}"}},
		{
			{Status: 503, Details: reset + "connection_termination}"}, {Status: 503, Details: reset + "remote_refused_stream_reset}"},
			{Status: 503, Details: reset + "protocol_error}"}, {Status: 200, Details: "upstream_reset_after_response_started{remote_reset}"},
			{Status: 503, Details: reset + "remote_connection_failure|delayed_connect_error:_Connection_refused}"},
		},
		{
			{Status: 200, Details: "direct_response"}, {Status: 404, Details: "route_not_found"}, {Status: 403, Details: "ext_authz_denied"},
			{Status: 504, Details: "max_duration_timeout"}, {Status: 504, Details: "request_overall_timeout"}, {Status: 413, Details: "request_payload_too_large"},
			{Status: 503, Details: "ext_proc_error_gRPC_error_14{upstream_reset_before_response_started{connection_termination}}"},
			{Status: 503, Details: "upstream_reset_of_another_name{connection_termination}"}, {Details: "downstream_remote_disconnect"},
		},
		{{Status: 429}, {Status: 429, Details: viaUpstream}, {Status: 500}, {Status: 503, Cancelled: true}, {Status: 599, GRPC: true, GRPCStatus: 3}},
		{{Status: 400}, {Status: 404, Error: true}, {Status: 422, Details: viaUpstream}, {Status: 600}},
		{{Status: 200, Error: true, CallersFault: true}},
		{{Status: 200, Error: true}, {Status: 200, Error: true, Cut: true}},
		{{Status: 200, GRPC: true, GRPCStatus: 14}, {Status: 200, GRPC: true, GRPCStatus: 8, Cancelled: true}, {GRPC: true, GRPCStatus: 13}},
		{{Status: 200, GRPC: true, GRPCStatus: 4}, {Status: 200, GRPC: true, GRPCStatus: 1, Cancelled: true}, {GRPC: true, GRPCStatus: 99}},
		{{Cancelled: true}, {Status: 200, Cancelled: true}},
		{{Cut: true}, {Status: 200, Cut: true}},
		{{Status: 200, GRPC: true}, {GRPC: true}},
		{{Status: 200}, {Status: 204, Details: viaUpstream}, {Status: 302}},
		{{}, {Status: 103}, {Details: viaUpstream}},
	} {
		if len(examples) == 0 {
			t.Errorf("row %d has no example", i)
		}
		for _, e := range examples {
			if got := ruleOf(e); got != i {
				t.Errorf("%+v: row %d (%s), want row %d (%s)", e, got, rules[got].What, i, rules[i].What)
			}
			if got := Classify(e); got != rules[i].Counts {
				t.Errorf("%+v: %v, want %v", e, got, rules[i].Counts)
			}
		}
	}
}

// Field reports: what must never open a breaker does not, however often; what
// must, does.
func TestWhatCountsOpens(t *testing.T) {
	for name, c := range map[string]struct {
		e    Evidence
		want State
	}{
		"callers' 400":                {Evidence{Status: 400, Details: viaUpstream}, Closed},
		"callers' 401":                {Evidence{Status: 401}, Closed},
		"callers' 404":                {Evidence{Status: 404, Details: viaUpstream}, Closed},
		"callers' 413":                {Evidence{Status: 413}, Closed},
		"callers' 422":                {Evidence{Status: 422, Details: viaUpstream}, Closed},
		"our own 429":                 {Evidence{Status: 429, Ours: true}, Closed},
		"shedding that we pushed":     {Evidence{Status: 503, Details: "drop_overload"}, Closed},
		"maintenance that we pushed":  {Evidence{Status: 503, Details: "maintenance_mode"}, Closed},
		"connections that we limited": {Evidence{Status: 503, Details: "upstream_reset_before_response_started{overflow}"}, Closed},
		"clients that press stop":     {Evidence{Status: 200, Cancelled: true}, Closed},
		"slow but good":               {Evidence{Status: 200}, Closed},
		"upstream 429":                {Evidence{Status: 429, Details: viaUpstream}, Hard},
		"error inside a 200":          {Evidence{Status: 200, Error: true}, Hard},
		"trailers say UNAVAILABLE":    {Evidence{Status: 200, GRPC: true, GRPCStatus: 14}, Hard},
	} {
		b := newHTTP(defaults(), dice(1))
		for range 100 {
			if o := Classify(c.e); o != Ignored {
				b.Record(at(0), o == Failure, false)
			}
		}
		if v := b.View(at(0)); v.State != c.want {
			t.Errorf("100 of %s: %v, want %v", name, v.State, c.want)
		}
	}
}

func BenchmarkClassify(b *testing.B) {
	e := Evidence{Status: 200, Details: viaUpstream}
	b.ReportAllocs()
	for b.Loop() {
		Classify(e)
	}
}
