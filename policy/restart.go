package policy

import "reflect"

// WithRunning is p as it can come into force in a process that started with
// running: what needs a restart stays as it is. That is the sections server
// and store, the bus of the cascade (breaker.cascade.bus and .etcd), and
// envoy.xds. restart names those of them that p would change: "server",
// "store", "breaker.cascade", "envoy.xds". The error is Errors where p does
// not fit the old ones; then running stays in force. Neither policy is
// changed.
func (p *Policy) WithRunning(running *Policy) (merged *Policy, restart []string, err error) {
	old, next := &running.Breaker.Cascade, &p.Breaker.Cascade
	for _, part := range []struct {
		name    string
		changed bool
	}{
		{"server", !reflect.DeepEqual(p.Server, running.Server)},
		{"store", !reflect.DeepEqual(p.Store, running.Store)},
		{"breaker.cascade", next.Bus != old.Bus || !reflect.DeepEqual(next.Etcd, old.Etcd)},
		{"envoy.xds", !reflect.DeepEqual(p.Envoy.XDS, running.Envoy.XDS)},
	} {
		if part.changed {
			restart = append(restart, part.name)
		}
	}
	if restart == nil {
		return p, nil, nil
	}
	q := *p
	q.keepRunning(running)
	q.profiles = make(map[string]*Policy, len(p.profiles))
	for name, profile := range p.profiles {
		r := *profile
		r.keepRunning(running)
		q.profiles[name] = &r
	}
	d := newDecoder("", "", false)
	d.checkServer(&q)
	d.checkSeats(&q)
	d.checkCascade(&q)
	d.checkXDS(&q)
	if err := d.result(); err != nil {
		return nil, restart, err
	}
	return q.seal(), restart, nil
}

// keepRunning takes over what needs a restart.
func (p *Policy) keepRunning(running *Policy) {
	p.Server, p.Store = running.Server, running.Store
	p.Breaker.Cascade.Bus, p.Breaker.Cascade.Etcd = running.Breaker.Cascade.Bus, running.Breaker.Cascade.Etcd
	p.Envoy.XDS = running.Envoy.XDS
}
