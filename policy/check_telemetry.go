package policy

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

func checkClientTLS(d *decoder, n *yaml.Node, at string, _ *ClientTLS, has func(string) bool) {
	if has("cert") != has("key") {
		d.report(n, at, "", "cert and key go together")
	}
}

func checkEngine(d *decoder, n *yaml.Node, at string, e *EngineMetrics, _ func(string) bool) {
	if len(e.Waiting)+len(e.KV) == 0 {
		d.report(n, at, "", "must name metrics of waiting or kv: without one of them it says nothing of load")
	}
}

// checkTelemetry: what a source is asked for is what its kind can do.
func (d *decoder) checkTelemetry(p *Policy) {
	used := make(map[string]bool)
	for i := range p.Pools {
		orca := -1
		for k := range p.Pools[i].Telemetry {
			t := &p.Pools[i].Telemetry[k]
			at := fmt.Sprintf("pools[%d].telemetry[%d]", i, k)
			used[t.Kind] = true
			d.checkSource(p, at, t)
			if t.Kind != KindORCA {
				continue
			}
			if orca >= 0 {
				d.failAt(join(at, "kind"), t.Kind, fmt.Sprintf("is that of telemetry[%d] too: the answers of a pool are heard once", orca))
			}
			orca = k
		}
	}
	for i := range p.Engines {
		e := &p.Engines[i]
		at := index2("engines", i, "name")
		if _, taken := builtInKind(e.Name); taken {
			d.failAt(at, e.Name, "is a kind that weir knows: take another name")
			continue
		}
		if j := slices.IndexFunc(p.Engines[:i], func(o EngineMetrics) bool { return o.Name == e.Name }); j >= 0 {
			d.failAt(at, e.Name, fmt.Sprintf("is the name of engines[%d] too", j))
		} else if !used[e.Name] {
			d.failAt(at, e.Name, "no telemetry is of this kind")
		}
	}
}

func (d *decoder) checkSource(p *Policy, at string, t *TelemetrySource) {
	has := func(k string) bool { return d.places[join(at, k)] != nil }
	kind, known := builtInKind(t.Kind)
	if !known {
		if !slices.ContainsFunc(p.Engines, func(e EngineMetrics) bool { return e.Name == t.Kind }) {
			d.failAt(join(at, "kind"), t.Kind, "must be one of "+kindNamesOf(sourceKinds())+", or the name of one of engines")
			return
		}
		kind = textKind(t.Kind)
	}
	wrong := false
	for _, k := range sourceKeys() {
		switch needed := slices.Contains(kind.needs, k); {
		case needed && !has(k):
			d.failAt(join(at, k), "", "is missing: kind "+t.Kind+" needs it")
			wrong = true
		case has(k) && !needed && !slices.Contains(kind.takes, k):
			d.failAt(join(at, k), "", "is not used by kind "+t.Kind)
			wrong = true
		}
	}
	if wrong {
		return
	}
	if has("every") && has("timeout") && t.Timeout > t.Every {
		d.failAt(join(at, "timeout"), formatDuration(t.Timeout), "must not exceed every, "+formatDuration(t.Every))
	}
	if given := slices.DeleteFunc([]string{keyEndpoint, keyEndpointLabel, keyEndpointsFile}, func(k string) bool { return !has(k) }); len(given) > 1 {
		d.failAt(join(at, given[1]), "", "is one of "+strings.Join(given, ", ")+": say in one way which endpoint a GPU serves")
	}
	if t.URL != "" {
		d.checkPlace(at, kind, t)
	}
}

// checkPlace: where a source is, and that its token is not told to others.
func (d *decoder) checkPlace(at string, kind sourceKind, t *TelemetrySource) {
	private, secure := false, t.TLS != nil
	if kind.grpc {
		if message := dialRule(t.URL); message != "" {
			d.failAt(join(at, keyURL), t.URL, message+": kind "+t.Kind+" speaks gRPC")
			return
		}
		private = isLoopback(t.URL)
	} else {
		u, message := parseWeb(t.URL)
		if message != "" {
			d.failAt(join(at, keyURL), t.URL, message+": kind "+t.Kind+" is read over HTTP")
			return
		}
		private, secure = loopbackHost(u.Hostname()), u.Scheme == "https"
		if t.TLS != nil && !secure {
			d.failAt(join(at, keyTLS), "", "is used with https only")
		}
	}
	if t.Token.File != "" && !secure && !private {
		d.failAt(join(at, keyToken), "", "would be told in plain text: use https, or tls")
	}
}

// dialRule is for where a gRPC server is reached.
func dialRule(s string) string {
	if strings.HasPrefix(s, "unix:") {
		return listenRule(s)
	}
	if message := hostPort(s, false); message != "" {
		return "must be host:port or unix:/path"
	}
	return ""
}
