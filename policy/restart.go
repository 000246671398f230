package policy

import "reflect"

// WithRunning is p as it can come into force in a process that started with
// running: the sections server and store, which need a restart, stay as they
// are. restart names those of the two that p would change. The error is
// Errors where p does not fit the old sections; then running stays in force.
// Neither policy is changed.
func (p *Policy) WithRunning(running *Policy) (merged *Policy, restart []string, err error) {
	if !reflect.DeepEqual(p.Server, running.Server) {
		restart = append(restart, "server")
	}
	if !reflect.DeepEqual(p.Store, running.Store) {
		restart = append(restart, "store")
	}
	if restart == nil {
		return p, nil, nil
	}
	q := *p
	q.Server, q.Store = running.Server, running.Store
	q.profiles = make(map[string]*Policy, len(p.profiles))
	for name, profile := range p.profiles {
		r := *profile
		r.Server, r.Store = running.Server, running.Store
		q.profiles[name] = &r
	}
	d := newDecoder("", "", false)
	d.checkServer(&q)
	d.checkSeats(&q)
	if err := d.result(); err != nil {
		return nil, restart, err
	}
	return q.seal(), restart, nil
}
