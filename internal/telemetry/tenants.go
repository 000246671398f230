package telemetry

import (
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// tenants bounds the tenant label: tenants named in the policy always keep
// their series, others the first cap that come, the rest is "other". Reading a
// known tenant takes no lock.
type tenants struct {
	charged, used *prometheus.CounterVec

	known  sync.Map // tenantKind → *bill
	mu     sync.Mutex
	names  map[string]bool
	pinned map[string]bool
	cap    int
}

const otherTenant = "other"

func newTenants(limit int, charged, used *prometheus.CounterVec) *tenants {
	return &tenants{charged: charged, used: used, names: map[string]bool{}, pinned: map[string]bool{}, cap: limit}
}

// tenantKind names the counters of a tenant's tokens; variant is a rank.
type tenantKind struct {
	tenant, kind string
	variant      int
}

// bill counts tokens at the pool's rate and before it (V2).
type bill struct{ charged, used prometheus.Counter }

// limit changes how many tenants get their own series; those that have one
// keep it.
func (t *tenants) limit(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cap = n
}

// pin keeps a tenant's own series; patterns are not pinned.
func (t *tenants) pin(name string) {
	if name == "" || strings.Contains(name, "*") {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pinned[name] = true
}

func (t *tenants) bill(k tenantKind) *bill {
	if b, ok := t.known.Load(k); ok {
		return b.(*bill)
	}
	label, keep := t.label(k.tenant)
	variant := string(variants()[k.variant])
	b := &bill{t.charged.WithLabelValues(label, k.kind, variant), t.used.WithLabelValues(label, k.kind, variant)}
	if keep {
		t.known.Store(k, b)
	}
	return b
}

// label is the tenant's label value; keep says that it has its own, so that
// the cache stays bounded.
func (t *tenants) label(tenant string) (label string, keep bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.pinned[tenant] || t.names[tenant]:
		return tenant, true
	case len(t.names) < t.cap:
		t.names[tenant] = true
		return tenant, true
	}
	return otherTenant, false
}
