package admission_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/admission/observertest"
	"github.com/weirproxy/weir/identity"
	"github.com/weirproxy/weir/policy"
)

var rules = policy.Default().Telemetry.Refusals

// TestSampler: of nobody's refusals so many of each reason are recorded as the
// rate says, however many come and however many reasons there are; of a
// tenant's too, and one tenant's flood costs no other its lines.
func TestSampler(t *testing.T) {
	start := time.Unix(1_900_000_000, 0)
	for _, tt := range []struct {
		name   string
		rules  policy.Refusals
		tenant string
		n      int
		every  time.Duration
		want   int // recorded
	}{
		{"one is", rules, "", 1, 0, 1},
		{"a flood at once", rules, "", 5000, 0, 10},
		{"2,500 a second for 2 s", rules, "", 5000, 400 * time.Microsecond, 13},
		{"one a second for an hour", rules, "", 3600, time.Second, 3600},
		{"no share", policy.Refusals{PerSecond: 2, PerTenant: 20}, "", 5000, 0, 0},
		{"no rate", policy.Refusals{Share: 1, PerTenant: 20}, "", 5000, 0, 0},
		{"a tenant's flood", rules, "acme", 5000, 0, 100},
		{"a tenant's ten a second", rules, "acme", 600, 100 * time.Millisecond, 600},
		{"the share is nobody's", policy.Refusals{PerTenant: 20}, "acme", 1, 0, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, kept := admission.NewSampler(), 0
			for i := range tt.n {
				if s.Keep(start.Add(time.Duration(i)*tt.every), &tt.rules, tt.tenant, admission.TokenMissing) {
					kept++
				}
			}
			if kept < tt.want || kept > tt.want+1 {
				t.Errorf("%d recorded, want %d", kept, tt.want)
			}
			var told, anonymous uint64
			s.Untold(func(nobody bool, r admission.Reason, n uint64) {
				if r != admission.TokenMissing || nobody != (tt.tenant == "") {
					t.Errorf("told of %v, nobody: %v", r, nobody)
				}
				told += n
			})
			s.Untold(func(bool, admission.Reason, uint64) { t.Error("told twice") })
			total := s.Total()
			if anonymous = total.Anonymous; tt.tenant != "" {
				anonymous = total.Tenants
			}
			if want := uint64(tt.n - kept); told != want || anonymous != want || total.Anonymous+total.Tenants != want {
				t.Errorf("told of %d and counted %+v, want %d", told, total, want)
			}
			if tt.rules == rules && !s.Keep(start, &rules, "other", admission.TokenMissing) {
				t.Error("another tenant's refusal is not recorded")
			}
			if tt.rules == rules && !s.Keep(start, &rules, tt.tenant, admission.PathUnknown) {
				t.Error("a refusal for another reason is not recorded")
			}
		})
	}
	half, kept := policy.Refusals{Share: 0.5, PerSecond: 10_000}, 0
	s := admission.NewSampler()
	for range 10_000 {
		if s.Keep(start, &half, "", admission.TokenInvalid) {
			kept++
		}
	}
	if kept < 4500 || kept > 5500 {
		t.Errorf("%d of 10000 at a share of half", kept)
	}
}

// TestExplainKeepsDecisionsThroughAFlood: a decision about a tenant is found
// after any number of refusals of nobody, of every reason, and of another
// tenant; the latest of nobody's are found too.
func TestExplainKeepsDecisionsThroughAFlood(t *testing.T) {
	p := policy.Default().Telemetry
	x := admission.NewExplain(p.Explain)
	x.Configure(&p)
	now := time.Unix(1_900_000_000, 0)
	acme := &identity.Identity{Tenant: "acme"}
	admitted, refused := admission.Decide(admission.Admitted, ""), admission.Decide(admission.QuotaTokens, "")
	x.Decided(&admission.Request{ID: "before", Identity: acme}, &admitted, now)
	x.Decided(&admission.Request{ID: "refused", Identity: acme}, &refused, now)
	flood := func(who *identity.Identity, reasons ...admission.Reason) {
		for i := range 5000 {
			for _, reason := range reasons {
				d := admission.Decide(reason, "")
				x.Decided(&admission.Request{ID: fmt.Sprint(who, i, reason), Identity: who}, &d, now.Add(time.Duration(i)*time.Millisecond))
			}
		}
	}
	flood(nil, admission.TokenMissing)
	flood(&identity.Identity{}, admission.TokenMissing, admission.TokenMalformed, admission.TokenExpired, admission.TokenInvalid, admission.PathUnknown, admission.HeaderInvalid)
	flood(&identity.Identity{Tenant: "flooder"}, admission.QuotaRequests)
	for _, id := range []string{"before", "refused"} {
		if rec, ok := x.Find(id); !ok || rec.Tenant != "acme" {
			t.Errorf("%s: found %v: %+v", id, ok, rec)
		}
	}
	recent, nobody := x.Recent(10_000), 0
	for _, r := range recent {
		if r.Tenant == "" {
			nobody++
		}
	}
	if nobody == 0 || nobody > 112 { // a tenth of 1000, in 16 shards
		t.Errorf("%d of %d records are nobody's", nobody, len(recent))
	}
	if u := x.Unrecorded(); u.Anonymous < 34_000 || u.Tenants < 4000 {
		t.Errorf("%+v", u)
	}
}

func TestConfiguredExplainConforms(t *testing.T) {
	observertest.Run(t, func(*testing.T) admission.Observer {
		x := admission.NewExplain(100)
		p := policy.Default().Telemetry
		x.Configure(&p)
		return x
	})
}
