package main

import (
	"maps"
	"reflect"
	"slices"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/policy"
)

// inherit hands what the gauges of the policy before know of GPUs to one that
// is new, so that a reload gives no faulty GPU its seats back.
func (s *poolGauge) inherit(old map[string]*poolGauge) {
	var own *gpu.Gauge
	var others []*gpu.Gauge
	same := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(old)) {
		was := old[name]
		if name != s.pool {
			others = append(others, was.gauge)
			continue
		}
		own = was.gauge
		for i := range s.telemetry {
			for k := range was.telemetry {
				if sameCards(s.telemetry[i], was.telemetry[k]) {
					same[sourceName(s.pool, i, s.telemetry[i])] = sourceName(name, k, was.telemetry[k])
				}
			}
		}
	}
	s.gauge.Inherit(own, same, others...)
}

// sameCards says that two sources look at the same GPUs: they differ at most
// in how, and in what endpoints these serve.
func sameCards(a, b policy.TelemetrySource) bool {
	plain := func(t policy.TelemetrySource) policy.TelemetrySource {
		t.Every, t.Timeout, t.TLS, t.Token = 0, 0, nil, policy.Secret{}
		t.Endpoint, t.EndpointLabel, t.EndpointsFile = "", "", ""
		return t
	}
	return reflect.DeepEqual(plain(a), plain(b))
}
