package admission

import (
	"regexp"
	"strings"
	"testing"

	"github.com/weirproxy/weir/queue"
)

// Every reason has a whole row, and its status says what its action means:
// 429 = capacity exists, wait; 503 = nothing to give.
func TestReasonTable(t *testing.T) {
	name := regexp.MustCompile(`^[a-z][a-z0-9_]*$`)
	names, codes := map[string]Reason{}, regexp.MustCompile(`^[a-z][a-z0-9_]*$`)
	for r := range numReasons {
		row := r.Row()
		if !name.MatchString(row.Name) {
			t.Errorf("reason %d: name %q", r, row.Name)
		}
		if other, twice := names[row.Name]; twice {
			t.Errorf("%s: also reason %d", row.Name, other)
		}
		names[row.Name] = r
		if got, ok := ParseReason(r.String()); !ok || got != r {
			t.Errorf("ParseReason(%q) = %v, %v", r, got, ok)
		}
		if row.Counts {
			t.Errorf("%s: our own decisions never count for a breaker (B6)", r)
		}
		if !statusFits(r, row) {
			t.Errorf("%s: action %s with HTTP %d", r, row.Action, row.HTTP)
		}
		if r.Admits() != (row.HTTP == 200 && row.GRPC == 0) {
			t.Errorf("%s: admits %v with HTTP %d, gRPC %d", r, r.Admits(), row.HTTP, row.GRPC)
		}
		if r.Admits() {
			continue
		}
		if row.Type == "" || !codes.MatchString(row.Code) || !strings.HasSuffix(row.Message, ".") || strings.Count(row.Message, ". ") > 0 {
			t.Errorf("%s: type %q, code %q, message %q: one sentence wanted", r, row.Type, row.Code, row.Message)
		}
	}
}

func statusFits(r Reason, row Row) bool {
	switch row.Action {
	case Admit, Degrade:
		return row.HTTP == 200 && row.Advice == AdviceNone
	case Reject:
		return row.HTTP == 429 && row.GRPC == grpcResourceExhausted && (row.Advice != AdviceNone || r == QuotaNever)
	case Shed:
		if r == Internal {
			return row.HTTP == 500 // the only one: our own bug
		}
		return row.HTTP == 503 && (row.GRPC == grpcUnavailable || row.GRPC == grpcResourceExhausted) && (row.Advice != AdviceNone || r == OverrideInvalid)
	case Challenge:
		return (row.HTTP == 401 && row.GRPC == grpcUnauthenticated || row.HTTP == 403 && row.GRPC == grpcPermissionDenied) && row.Advice == AdviceNone
	case Deny:
		switch row.HTTP {
		case 400, 413, 415:
			return row.GRPC == grpcInvalidArgument && row.Advice == AdviceNone
		case 403:
			return row.GRPC == grpcPermissionDenied && row.Advice == AdviceNone
		case 404:
			return (row.GRPC == grpcNotFound || row.GRPC == grpcUnimplemented) && row.Advice == AdviceNone
		case 499:
			return r == ClientGone // never sent
		}
	}
	return false
}

// Refusals of queue and quota are RESOURCE_EXHAUSTED: a mesh retries
// UNAVAILABLE.
func TestQueueAndQuotaAreResourceExhausted(t *testing.T) {
	for r := QuotaRequests; r <= Deadline; r++ {
		if got := r.Row().GRPC; got != grpcResourceExhausted {
			t.Errorf("%s: gRPC %d, want 8", r, got)
		}
	}
}

// The statuses that P2, P3, Q5 and Q6 name.
func TestStatusesOfTheSource(t *testing.T) {
	for _, c := range []struct {
		reason Reason
		http   int
	}{
		{QueueSoft, 429},      // Q5
		{QueueFull, 503},      // Q6
		{ClassFull, 429},      // P2
		{ExpiredDrop, 503},    // P3 class 0
		{ExpiredDegrade, 429}, // P3 class 1
		{ExpiredRetry, 429},   // P3 class 2
		{RetryFull, 429},      // P3 class 2
		{BreakerOpen, 503},    // B1
		{BreakerShed, 503},    // B1
		{TenantBreaker, 429},  // B5: the others are served
		{ModelUnknown, 404},
		{TenantBlocked, 403},
		{TokenMissing, 401},
		{Draining, 503},
	} {
		if got := c.reason.Row().HTTP; got != c.http {
			t.Errorf("%s: HTTP %d, want %d", c.reason, got, c.http)
		}
	}
}

func TestUnknownReason(t *testing.T) {
	r := Reason(255)
	if r.String() != "unknown" || r.Row().HTTP != 500 || r.Admits() {
		t.Errorf("reason 255: %s, HTTP %d, admits %v", r, r.Row().HTTP, r.Admits())
	}
	if _, ok := ParseReason("unknown"); ok {
		t.Error("ParseReason takes a name that is in no row")
	}
}

// Every refusal of a line has its reason.
func TestRefusalReasons(t *testing.T) {
	for refusal := queue.SoftFull; refusal <= queue.Draining; refusal++ {
		if r := refusalReason(refusal); r == Internal || r.Admits() {
			t.Errorf("refusal %d: %s", refusal, r)
		}
	}
}
