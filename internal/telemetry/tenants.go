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
	known  sync.Map // label pair → prometheus.Counter
	mu     sync.Mutex
	names  map[string]bool
	pinned map[string]bool
	cap    int
}

const otherTenant = "other"

func newTenants(limit int) *tenants {
	return &tenants{names: map[string]bool{}, pinned: map[string]bool{}, cap: limit}
}

type tenantKind struct{ tenant, kind string }

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
	if t.pinned[name] {
		return
	}
	t.pinned[name] = true
	for _, kind := range []string{"metered", "estimated"} {
		t.known.Delete(tenantKind{name, kind})
	}
}

func (t *tenants) counter(v *prometheus.CounterVec, tenant, kind string) prometheus.Counter {
	if c, ok := t.known.Load(tenantKind{tenant, kind}); ok {
		return c.(prometheus.Counter)
	}
	label, keep := t.label(tenant)
	c := v.WithLabelValues(label, kind)
	if keep {
		t.known.Store(tenantKind{tenant, kind}, c)
	}
	return c
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
