package policy

import (
	"time"

	"go.yaml.in/yaml/v3"
)

// sections are the keys of the file in the order of dumps; profiles apart
// (see load.go), because each of them is laid over all of these.
func sections() codec[Policy] {
	return object(
		key("version", func(p *Policy) *int { return &p.Version }, version()).need(),
		key("mode", func(p *Policy) *Mode { return &p.Mode }, mode()),
		key("server", func(p *Policy) *Server { return &p.Server }, serverTable()),
		key("store", func(p *Policy) *Store { return &p.Store }, storeTable()),
		key("identity", func(p *Policy) *Identity { return &p.Identity }, identityTable()),
		key("envoy", func(p *Policy) *Envoy { return &p.Envoy }, envoyTable()),
		key("apis", func(p *Policy) *[]API { return &p.APIs }, list(apiTable(), zero[API], 1, 1000)),
		key("models", func(p *Policy) *[]Model { return &p.Models }, list(modelTable(), zero[Model], 1, 1000)).need(),
		key("pools", func(p *Policy) *[]Pool { return &p.Pools }, list(poolTable(), func() Pool { return Pool{MaxHold: maxHold} }, 1, 1000)).need(),
		key("classes", func(p *Policy) *[NumClasses]ClassPolicy { return &p.Classes }, classList(classTable())),
		key("tiers", func(p *Policy) *[]Tier { return &p.Tiers }, maybe(list(tierTable(), func() Tier { return Tier{Weight: 1} }, 1, 100), emptyList)),
		key("shares", func(p *Policy) *Shares { return &p.Shares }, sharesTable()),
		key("tenants", func(p *Policy) *[]TenantRule { return &p.Tenants }, maybe(list(tenantTable(), zero[TenantRule], 0, 10_000), emptyList)),
		key("quotas", func(p *Policy) *[]QuotaRule { return &p.Quotas }, maybe(quotaList(), emptyList)),
		key("queue", func(p *Policy) *Queue { return &p.Queue }, queueTable()),
		key("nonStreaming", func(p *Policy) **NonStreaming { return &p.NonStreaming }, pointer(nonStreamingTable(), defaultNonStreaming)),
		key("variants", func(p *Policy) *Variants { return &p.Variants }, variantsTable()),
		key("gauge", func(p *Policy) *Gauge { return &p.Gauge }, gaugeTable()),
		key("engines", func(p *Policy) *[]EngineMetrics { return &p.Engines }, maybe(list(engineTable(), zero[EngineMetrics], 0, 100), emptyList)),
		key("breaker", func(p *Policy) *Breaker { return &p.Breaker }, breakerTable()),
		key("estimate", func(p *Policy) *Estimate { return &p.Estimate }, estimateTable()),
		key("body", func(p *Policy) *Body { return &p.Body }, bodyTable()),
		key("retryAfter", func(p *Policy) *RetryAfter { return &p.RetryAfter }, retryAfterTable()),
		key("retryControl", func(p *Policy) *RetryControl { return &p.Retry }, retryControlTable()),
		key("metering", func(p *Policy) *Metering { return &p.Metering }, meteringTable()),
		key("telemetry", func(p *Policy) *Telemetry { return &p.Telemetry }, telemetryTable()),
		key("priorityHeaders", func(p *Policy) *[]string { return &p.PriorityHeaders }, headerList()),
		key("upgrade", func(p *Policy) *Upgrade { return &p.Upgrade }, upgrade()),
		profilesField(),
	)
}

// profileSections are what a profile may set: what is judged request by
// request. Seats and their shares, weights, bookings, breakers and gauges
// belong to pools, which all profiles share.
func profileSections() codec[Policy] {
	return object(
		key("mode", func(p *Policy) *Mode { return &p.Mode }, mode()),
		key("classes", func(p *Policy) *[NumClasses]ClassPolicy { return &p.Classes }, classList(profileClassTable())),
		key("quotas", func(p *Policy) *[]QuotaRule { return &p.Quotas }, quotaList()),
		key("queue", func(p *Policy) *Queue { return &p.Queue }, profileQueueTable()),
		key("nonStreaming", func(p *Policy) **NonStreaming { return &p.NonStreaming }, pointer(nonStreamingTable(), defaultNonStreaming)),
		key("variants", func(p *Policy) *Variants { return &p.Variants }, profileVariantsTable()),
		key("body", func(p *Policy) *Body { return &p.Body }, bodyTable()),
		key("retryAfter", func(p *Policy) *RetryAfter { return &p.RetryAfter }, profileRetryAfterTable()),
		key("metering", func(p *Policy) *Metering { return &p.Metering }, meteringTable()),
		key("priorityHeaders", func(p *Policy) *[]string { return &p.PriorityHeaders }, headerList()),
	)
}

// profilesField keeps the nodes of the profiles until the base is read.
func profilesField() field[Policy] {
	one := profileSections()
	return field[Policy]{
		key:   "profiles",
		shape: shape{kind: "map", item: &one.shape, maxItems: 64, bounds: "at most 64 entries"},
		read: func(d *decoder, n *yaml.Node, at string, p *Policy) {
			keys := d.mapping(n, at)
			if len(keys) > 64 {
				d.report(n, at, "", "has more than 64 entries")
				return
			}
			d.profiles = keys
		},
		write: func(e *encoder, p *Policy) *yaml.Node {
			if len(p.profiles) == 0 {
				return nil
			}
			m := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
			for _, name := range p.ProfileNames() {
				m.Content = append(m.Content, plain("!!str", name), one.write(e, p.profiles[name]))
			}
			return m
		},
	}
}

func version() codec[int] {
	c := whole[int](0, 1_000_000)
	c.shape.min, c.shape.max = 1, 1
	return checked(c, "1", func(v int) string {
		if v != 1 {
			return "must be 1: this weir reads no other version"
		}
		return ""
	})
}

func mode() codec[Mode] {
	return enum(choice[Mode]{"enforce", Enforce}, choice[Mode]{"shadow", Shadow}, choice[Mode]{"pass", Pass})
}

func upgrade() codec[Upgrade] {
	return enum(choice[Upgrade]{"refuse", RefuseUpgrade}, choice[Upgrade]{"opaque", OpaqueUpgrade})
}

func class() codec[Class] {
	return enum(choice[Class]{"critical", Critical}, choice[Class]{"standard", Standard}, choice[Class]{"batch", Batch})
}

func headerList() codec[[]string] {
	header := checked(text(1, 128), "a header name, not one of weir's or Envoy's own", headerRule)
	return unique(list(header, zero[string], 0, 16))
}

func serverTable() codec[Server] {
	tls := object(
		key("cert", func(t *TLS) *string { return &t.Cert }, fileName()).need(),
		key("key", func(t *TLS) *string { return &t.Key }, fileName()).need(),
		key("clientCA", func(t *TLS) *string { return &t.ClientCA }, fileName()),
		key("clients", func(t *TLS) *[]string { return &t.Clients }, maybe(unique(list(clientName(), zero[string], 1, 100)), emptyList)),
	)
	return object(
		key("grpc", func(s *Server) *string { return &s.GRPC }, address()),
		key("insecure", func(s *Server) *bool { return &s.Insecure }, boolean()),
		key("admin", func(s *Server) *string { return &s.Admin }, address()),
		key("adminToken", func(s *Server) *Secret { return &s.AdminToken }, secret()),
		key("tls", func(s *Server) **TLS { return &s.TLS }, pointer(tls, zero[TLS])),
		key("drain", func(s *Server) *time.Duration { return &s.Drain }, duration(0, 10*time.Minute, true)),
		key("maxBody", func(s *Server) *int64 { return &s.MaxBody }, size(1<<10, 1<<30)),
		key("bodyTimeout", func(s *Server) *time.Duration { return &s.BodyTimeout }, duration(time.Second, time.Hour, false)),
		key("replicas", func(s *Server) *int { return &s.Replicas }, whole[int](1, 10_000)),
		key("workers", func(s *Server) *int { return &s.Workers }, whole[int](0, 4096)),
	)
}

func storeTable() codec[Store] {
	memory := object(
		key("maxTenants", func(s *Store) *int { return &s.MaxTenants }, whole[int](1, 10_000_000)),
	)
	c := objectThen(func(d *decoder, n *yaml.Node, at string, _ *Store, has func(string) bool) {
		if has("memory") && has("redis") {
			d.report(n, at, "", "must have one of memory and redis, not both")
		}
	}, withoutRedis(group("memory", memory)),
		key("redis", func(s *Store) **Redis { return &s.Redis }, pointer(redisTable(), defaultRedis)),
	)
	c.shape.notBoth = []string{"memory", "redis"}
	return c
}

// withoutRedis leaves the memory store out of a dump that names Redis.
func withoutRedis(f field[Store]) field[Store] {
	write := f.write
	f.write = func(e *encoder, s *Store) *yaml.Node {
		if s.Redis != nil {
			return nil
		}
		return write(e, s)
	}
	return f
}

func redisTable() codec[Redis] {
	return objectThen(checkRedis,
		key("addresses", func(r *Redis) *[]string { return &r.Addresses }, unique(list(tcpAddress(), zero[string], 1, 100))).need(),
		key("master", func(r *Redis) *string { return &r.Master }, maybe(text(1, 256), noValue)),
		key("db", func(r *Redis) *int { return &r.DB }, whole[int](0, 1_000)),
		key("username", func(r *Redis) *string { return &r.Username }, maybe(text(1, 256), noValue)),
		key("password", func(r *Redis) *Secret { return &r.Password }, secret()),
		key("sentinelUsername", func(r *Redis) *string { return &r.SentinelUsername }, maybe(text(1, 256), noValue)),
		key("sentinelPassword", func(r *Redis) *Secret { return &r.SentinelPassword }, secret()),
		key("tls", func(r *Redis) *bool { return &r.TLS }, boolean()),
		key("ca", func(r *Redis) *string { return &r.CA }, fileName()),
		key("cert", func(r *Redis) *string { return &r.Cert }, fileName()),
		key("key", func(r *Redis) *string { return &r.Key }, fileName()),
		key("serverName", func(r *Redis) *string { return &r.ServerName }, maybe(text(1, 256), noValue)),
		key("timeout", func(r *Redis) *time.Duration { return &r.Timeout }, duration(time.Millisecond, time.Second, false)),
		key("prefix", func(r *Redis) *string { return &r.Prefix }, name()),
		key("pool", func(r *Redis) *int { return &r.Pool }, whole[int](1, 10_000)),
		key("retryAfterOutage", func(r *Redis) *time.Duration { return &r.RetryAfterOutage }, duration(10*time.Millisecond, time.Minute, false)),
	)
}

func checkRedis(d *decoder, n *yaml.Node, at string, r *Redis, has func(string) bool) {
	for _, k := range []string{"ca", "cert", "key", "serverName"} {
		if has(k) && !r.TLS {
			d.report(d.places[join(at, k)], join(at, k), "", "is used with tls: true only")
		}
	}
	if has("cert") != has("key") {
		d.report(n, at, "", "cert and key go together")
	}
	for _, k := range []string{"sentinelUsername", "sentinelPassword"} {
		if has(k) && r.Master == "" {
			d.report(d.places[join(at, k)], join(at, k), "", "is used with master only: without it the addresses are no sentinels")
		}
	}
	if has("sentinelUsername") && !has("sentinelPassword") {
		d.report(d.places[join(at, "sentinelUsername")], join(at, "sentinelUsername"), "", "needs sentinelPassword")
	}
	if r.DB != 0 && len(r.Addresses) > 1 && r.Master == "" {
		d.report(d.places[join(at, "db")], join(at, "db"), "", "must be 0 with several addresses: a cluster has one database")
	}
}

func telemetryTable() codec[Telemetry] {
	otlp := object(
		key("endpoint", func(o *OTLP) *string { return &o.Endpoint }, tcpAddress()).need(),
		key("insecure", func(o *OTLP) *bool { return &o.Insecure }, boolean()),
		key("ca", func(o *OTLP) *string { return &o.CA }, fileName()),
		key("sample", func(o *OTLP) *Ratio { return &o.Sample }, ratio(false)),
	)
	log := object(
		key("level", func(t *Telemetry) *string { return &t.LogLevel }, words("debug", "info", "warn", "error")),
	)
	refusals := object(
		key("share", func(r *Refusals) *Ratio { return &r.Share }, ratio(false)),
		key("perSecond", func(r *Refusals) *int { return &r.PerSecond }, whole[int](0, 10_000)),
		key("perTenant", func(r *Refusals) *int { return &r.PerTenant }, whole[int](0, 10_000)),
		key("explain", func(r *Refusals) *Ratio { return &r.Explain }, ratio(false)),
	)
	return object(
		group("log", log),
		key("otlp", func(t *Telemetry) **OTLP { return &t.OTLP }, pointer(otlp, func() OTLP { return OTLP{Sample: 0.01} })),
		key("tenants", func(t *Telemetry) *int { return &t.Tenants }, whole[int](0, 10_000)),
		key("explain", func(t *Telemetry) *int { return &t.Explain }, whole[int](0, 1_000_000)),
		key("refusals", func(t *Telemetry) *Refusals { return &t.Refusals }, refusals),
	)
}
