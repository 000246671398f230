package telemetry

import (
	"context"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/identity"
)

// TestStreet: what the street tells is shown as it is.
func TestStreet(t *testing.T) {
	m := New(10, "test")
	m.Street(func() StreetStats {
		return StreetStats{
			Pools: []admission.PoolBreaker{{
				Pool: "chat", View: breaker.View{Release: 0.25, Held: true},
				Ruling: breaker.Ruling{Elsewhere: breaker.Soft, Votes: 3, Open: 2},
			}},
			Tenants:  TenantBreakers{Known: 9, Soft: 1, Hard: 2, HalfOpen: 3, Held: 4},
			Bus:      &BusStats{Up: true, Age: 2 * time.Second, Said: 5, Heard: 6, Failed: 7, Losses: 8, Garbage: 9},
			Watch:    WatchStats{Envoys: 5, Silent: 2, Age: 3 * time.Second, Garbage: map[string]uint64{"form": 4}, Missed: 6},
			Clusters: []ClusterStats{{Cluster: "c", Connections: 7, Normal: 10, GoAways: 1.5, Resets: 2, Failures: 3, Retries: 4, Storm: true}, {Cluster: "new"}},
			XDS: &XDSStats{
				Nodes: 2, Streams: 3, Unsupported: 1, Unknown: 4, Inherited: 5, Pushes: 6, Withdrawn: 7, Lag: time.Second / 2, StateErrors: 8, StateRefused: true,
				Sent: map[string]uint64{"rtds": 11}, Acked: map[string]uint64{"rtds": 10}, Nacked: map[string]uint64{"rtds": 1}, Rejected: map[string]uint64{"group": 12},
			},
			Lookups: 13, SourcesTroubled: 1,
		}
	})
	m.Transition(&breaker.Transition{Breaker: "chat", Kind: breaker.GRPC, To: breaker.Hard, Cause: breaker.ByGoAway})
	m.Transition(&breaker.Transition{Breaker: "acme", Kind: breaker.Tenant, To: breaker.Hard, Cause: breaker.ByOverrun})
	for _, key := range []string{"circuit_breakers.a.b.default.max_requests", "circuit_breakers.a.default.retry_budget.budget_percent", "upstream.maintenance_mode.a.b", "drop_overloads", "health 10.0.0.1:80"} {
		m.ProtectionChanged(key)
	}
	got := scraped(t, m)
	for _, line := range []string{
		`weir_breaker_release_ratio{pool="chat"} 0.25`, `weir_breaker_held{pool="chat"} 1`,
		`weir_breaker_elsewhere{pool="chat",state="soft"} 1`, `weir_breaker_elsewhere{pool="chat",state="closed"} 0`,
		`weir_breaker_votes{pool="chat",word="any"} 3`, `weir_breaker_votes{pool="chat",word="open"} 2`,
		`weir_tenant_breakers{state="soft"} 1`, `weir_tenant_breakers{state="hard"} 2`, `weir_tenant_breakers{state="half_open"} 3`, `weir_tenant_breakers{state="held"} 4`, `weir_tenant_breakers_known 9`,
		`weir_bus_up 1`, `weir_bus_age_seconds 2`, `weir_bus_words_total{direction="said"} 5`, `weir_bus_words_total{direction="heard"} 6`,
		`weir_bus_errors_total{kind="publish"} 7`, `weir_bus_errors_total{kind="lost"} 8`, `weir_bus_errors_total{kind="garbage"} 9`,
		`weir_envoy_watch_envoys{state="heard"} 3`, `weir_envoy_watch_envoys{state="silent"} 2`, `weir_envoy_watch_age_seconds 3`,
		`weir_envoy_watch_garbage_total{kind="form"} 4`, `weir_envoy_watch_missed_total 6`,
		`weir_envoy_watch_connections{cluster="c"} 7`, `weir_envoy_watch_connections_normal{cluster="c"} 10`, `weir_envoy_watch_goaways_per_second{cluster="c"} 1.5`,
		`weir_envoy_watch_resets_per_second{cluster="c"} 2`, `weir_envoy_watch_connect_failures_per_second{cluster="c"} 3`, `weir_envoy_watch_retries_per_second{cluster="c"} 4`,
		`weir_envoy_watch_storm{cluster="c"} 1`, `weir_envoy_watch_protect{cluster="c"} 0`, `weir_envoy_watch_calm{cluster="c"} 0`,
		`weir_xds_nodes 2`, `weir_xds_nodes_unsupported 1`, `weir_xds_streams 3`, `weir_xds_pushes_total 6`, `weir_xds_unknown 4`, `weir_xds_inherited 5`, `weir_xds_withdrawn_total 7`,
		`weir_xds_responses_total{type="rtds"} 11`, `weir_xds_acks_total{type="rtds"} 10`, `weir_xds_nacks_total{type="rtds"} 1`, `weir_xds_rejected_total{reason="group"} 12`,
		`weir_xds_lag_seconds 0.5`, `weir_xds_state_errors_total 8`, `weir_xds_state_refused 1`,
		`weir_discovery_failed_total 13`, `weir_discovery_sources_failing 1`,
		`weir_breaker_transitions_total{cause="goaway",kind="grpc",pool="chat",to="hard"} 1`,
		`weir_breaker_transitions_total{cause="overrun",kind="tenant",pool="",to="hard"} 1`,
		`weir_protection_changes_total{key="max_requests"} 1`, `weir_protection_changes_total{key="budget_percent"} 1`, `weir_protection_changes_total{key="maintenance"} 1`,
		`weir_protection_changes_total{key="drop_overloads"} 1`, `weir_protection_changes_total{key="health"} 1`,
	} {
		if !strings.Contains(got, "\n"+line+"\n") {
			t.Errorf("%s is not shown", line)
		}
	}
	if strings.Contains(got, `weir_envoy_watch_connections_normal{cluster="new"}`) {
		t.Error("a normal number is shown that was not learnt")
	}
}

// TestStreetWithoutNeighbours: what there is not has no series, so that nobody
// is alarmed.
func TestStreetWithoutNeighbours(t *testing.T) {
	m := New(10, "test")
	m.Street(func() StreetStats { return StreetStats{} })
	got := scraped(t, m)
	if strings.Contains(got, "weir_bus_") || strings.Contains(got, "weir_xds_") || !strings.Contains(got, "\nweir_envoy_watch_age_seconds 0\n") {
		t.Error("series of a bus or a control plane that there is not, or none of the watch")
	}
}

// TestCascadeShed counts what was shed for peers' sake, and not what the own
// breaker refused.
func TestCascadeShed(t *testing.T) {
	m := New(10, "test")
	r := &admission.Request{Identity: &identity.Identity{Tenant: "acme"}}
	own := admission.Decision{Reason: admission.BreakerShed}
	own.Trail.Steps[0], own.Trail.N = admission.Step{Room: admission.RoomBreaker, What: "state"}, 1
	peers := own
	peers.Trail.Steps[1], peers.Trail.N = admission.Step{Room: admission.RoomBreaker, What: "elsewhere"}, 2
	m.Decided(r, &own, time.Now())
	m.Decided(r, &peers, time.Now())
	m.Decided(r, &peers, time.Now())
	if got := scraped(t, m); !strings.Contains(got, "\nweir_breaker_cascade_shed_total 2\n") {
		t.Error("weir_breaker_cascade_shed_total is not 2")
	}
}

// TestTransitionSpan: transitions are traced whatever share of requests is.
func TestTransitionSpan(t *testing.T) {
	exporter := tracetest.NewInMemoryExporter()
	tr := newTracer(exporter, 0, "test")
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	tr.Transition(&breaker.Transition{
		Breaker: "chat", Kind: breaker.GRPC, From: breaker.Closed, To: breaker.Hard, At: at, Cause: breaker.ByRatio,
		Requests: 40, Failures: 30, Limit: 0.5, Open: 5 * time.Second,
	})
	if err := tr.provider.ForceFlush(context.Background()); err != nil {
		t.Fatal(err)
	}
	spans := exporter.GetSpans()
	if len(spans) != 1 || spans[0].Name != "weir.breaker.transition" || !spans[0].StartTime.Equal(at) || !spans[0].EndTime.Equal(at) {
		t.Fatalf("%+v", spans)
	}
	attrs := map[string]any{}
	for _, a := range spans[0].Attributes {
		attrs[string(a.Key)] = a.Value.AsInterface()
	}
	for key, want := range map[string]any{
		"weir.breaker": "chat", "weir.breaker.kind": "grpc", "weir.breaker.from": "closed", "weir.breaker.to": "hard", "weir.breaker.cause": "ratio",
		"weir.breaker.requests": int64(40), "weir.breaker.failures": int64(30), "weir.breaker.limit": 0.5, "weir.breaker.open_ms": int64(5000),
	} {
		if attrs[key] != want {
			t.Errorf("%s is %v, want %v", key, attrs[key], want)
		}
	}
	if err := tr.Close(context.Background()); err != nil {
		t.Error(err)
	}
	(*Tracer)(nil).Transition(&breaker.Transition{})
}
