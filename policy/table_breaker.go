package policy

import (
	"time"

	"go.yaml.in/yaml/v3"
)

// breakerTable reads grpc last, whatever stands first in the file: it is laid
// over what the other keys come to.
func breakerTable() codec[Breaker] {
	grpc := field[Breaker]{
		key:   "grpc",
		shape: object(breakerFields()...).shape,
		read:  func(*decoder, *yaml.Node, string, *Breaker) {},
		write: func(e *encoder, b *Breaker) *yaml.Node {
			if b.GRPC == nil {
				return nil
			}
			return object(breakerFields()...).write(e, b.GRPC)
		},
	}
	c := objectThen(checkBreaker, append(breakerFields(),
		grpc,
		key("tenant", func(b *Breaker) *TenantBreaker { return &b.Tenant }, tenantBreakerTable()),
		key("cascade", func(b *Breaker) *Cascade { return &b.Cascade }, cascadeTable()),
	)...)
	read := c.read
	c.read = func(d *decoder, n *yaml.Node, at string, b *Breaker) {
		before := len(d.errs)
		read(d, n, at, b)
		if over := d.places[join(at, "grpc")]; over != nil {
			b.GRPC = readOver(d, over, join(at, "grpc"), *b, len(d.errs) == before)
		}
	}
	return c
}

// readOver reads a breaker's keys over common ones. The cool-down is each
// one's own (B5 is for HTTP); levels are compared only where sound says that
// the common ones could be read.
func readOver(d *decoder, n *yaml.Node, at string, common Breaker, sound bool) *Breaker {
	common.Progressive, common.GRPC, common.Tenant, common.Cascade = false, nil, TenantBreaker{}, Cascade{}
	c := object(breakerFields()...)
	if sound {
		c = objectThen(checkBreaker, breakerFields()...)
	}
	c.read(d, n, at, &common)
	return &common
}

// breakerFields are the keys that each protocol may have its own values of.
func breakerFields() []field[Breaker] {
	coolDown := enum(choice[bool]{"fixed", false}, choice[bool]{"progressive", true})
	return []field[Breaker]{
		key("window", func(b *Breaker) *time.Duration { return &b.Window }, duration(time.Second, 10*time.Minute, false)),
		key("soft", func(b *Breaker) *Ratio { return &b.Soft }, ratio(true)),
		key("hard", func(b *Breaker) *Ratio { return &b.Hard }, ratio(true)),
		key("minRequests", func(b *Breaker) *int { return &b.MinRequests }, whole[int](1, 1_000_000)),
		key("open", func(b *Breaker) *time.Duration { return &b.Open }, duration(100*time.Millisecond, time.Hour, false)),
		key("probes", func(b *Breaker) *Ratio { return &b.Probes }, ratio(true)),
		key("release", func(b *Breaker) *[]Ratio { return &b.Release }, release()),
		key("releaseStep", func(b *Breaker) *time.Duration { return &b.ReleaseStep }, duration(100*time.Millisecond, time.Hour, false)),
		key("coolDown", func(b *Breaker) *bool { return &b.Progressive }, coolDown),
		key("dynamicThreshold", func(b *Breaker) *bool { return &b.DynamicThreshold }, boolean()),
		key("dynamicLiteral", func(b *Breaker) *bool { return &b.DynamicLiteral }, boolean()),
		key("disabled", func(b *Breaker) *bool { return &b.Off }, boolean()),
	}
}

func checkBreaker(d *decoder, _ *yaml.Node, at string, b *Breaker, _ func(string) bool) {
	checkLevels(d, at, b.Soft, b.Hard)
}

func checkLevels(d *decoder, at string, soft, hard Ratio) {
	if soft > hard {
		d.failAt(join(at, "soft"), formatRatio(soft), "must not exceed hard, "+formatRatio(hard))
	}
}

// release reads B2's steps: rising, and 100 % at the end.
func release() codec[[]Ratio] {
	c := list(ratio(true), zero[Ratio], 1, 32)
	c.shape.bounds = "1 to 32 ratios, rising, the last 100%"
	read := c.read
	c.read = func(d *decoder, n *yaml.Node, at string, v *[]Ratio) {
		var got []Ratio
		before := len(d.errs)
		if read(d, n, at, &got); len(d.errs) > before {
			return
		}
		for i := 1; i < len(got); i++ {
			if got[i] <= got[i-1] {
				d.report(n, at, "", "the steps must rise")
				return
			}
		}
		if got[len(got)-1] != 1 {
			d.report(n, at, "", "the last step must be 100%")
			return
		}
		*v = got
	}
	return c
}

func tenantBreakerTable() codec[TenantBreaker] {
	coolDown := objectThen(func(d *decoder, _ *yaml.Node, at string, c *CoolDown, _ func(string) bool) {
		if c.First > c.Cap {
			d.failAt(join(at, "first"), formatDuration(c.First), "must not exceed cap, "+formatDuration(c.Cap))
		}
	},
		key("first", func(c *CoolDown) *time.Duration { return &c.First }, duration(time.Second, 24*time.Hour, false)),
		key("factor", func(c *CoolDown) *float64 { return &c.Factor }, number(1, 10)),
		key("cap", func(c *CoolDown) *time.Duration { return &c.Cap }, duration(time.Second, 24*time.Hour, false)),
	)
	return objectThen(func(d *decoder, _ *yaml.Node, at string, b *TenantBreaker, _ func(string) bool) {
		checkLevels(d, at, b.Soft, b.Hard)
	},
		key("enabled", func(b *TenantBreaker) *bool { return &b.On }, boolean()),
		key("soft", func(b *TenantBreaker) *Ratio { return &b.Soft }, ratio(true)),
		key("hard", func(b *TenantBreaker) *Ratio { return &b.Hard }, ratio(true)),
		key("minRequests", func(b *TenantBreaker) *int { return &b.MinRequests }, whole[int](1, 1_000_000)),
		key("coolDown", func(b *TenantBreaker) *CoolDown { return &b.CoolDown }, coolDown),
		key("max", func(b *TenantBreaker) *int { return &b.Max }, whole[int](1, 10_000_000)),
	)
}

func cascadeTable() codec[Cascade] {
	bus := enum(choice[BusKind]{"auto", BusAuto}, choice[BusKind]{"off", BusOff}, choice[BusKind]{"redis", BusRedis}, choice[BusKind]{"etcd", BusEtcd})
	return objectThen(checkCascadeKeys,
		key("bus", func(c *Cascade) *BusKind { return &c.Bus }, bus),
		key("etcd", func(c *Cascade) **Etcd { return &c.Etcd }, pointer(etcdTable(), defaultEtcd)),
		key("literal", func(c *Cascade) *bool { return &c.Literal }, boolean()),
		key("ttl", func(c *Cascade) *time.Duration { return &c.TTL }, duration(time.Second, 10*time.Minute, false)),
		key("renew", func(c *Cascade) *time.Duration { return &c.Renew }, duration(100*time.Millisecond, 5*time.Minute, false)),
	)
}

func checkCascadeKeys(d *decoder, n *yaml.Node, at string, c *Cascade, has func(string) bool) {
	switch {
	case c.Bus == BusEtcd && c.Etcd == nil:
		d.failAt(join(at, "bus"), "etcd", "needs etcd beside it: which endpoints")
	case c.Bus != BusEtcd && has("etcd"):
		d.report(d.places[join(at, "etcd")], join(at, "etcd"), "", "is used with bus: etcd only")
	}
	if 2*c.Renew > c.TTL {
		d.failAt(join(at, "renew"), formatDuration(c.Renew), "must not exceed half of ttl, "+formatDuration(c.TTL)+": one word lost would end what stands")
	}
}

func etcdTable() codec[Etcd] {
	return objectThen(checkEtcd,
		key("endpoints", func(e *Etcd) *[]string { return &e.Endpoints }, unique(list(tcpAddress(), zero[string], 1, 100))).need(),
		key("prefix", func(e *Etcd) *string { return &e.Prefix }, text(1, 256)),
		key("username", func(e *Etcd) *string { return &e.Username }, maybe(text(1, 256), noValue)),
		key("password", func(e *Etcd) *Secret { return &e.Password }, secret()),
		key("tls", func(e *Etcd) *bool { return &e.TLS }, boolean()),
		key("ca", func(e *Etcd) *string { return &e.CA }, fileName()),
		key("cert", func(e *Etcd) *string { return &e.Cert }, fileName()),
		key("key", func(e *Etcd) *string { return &e.Key }, fileName()),
	)
}

func checkEtcd(d *decoder, n *yaml.Node, at string, e *Etcd, has func(string) bool) {
	for _, k := range []string{"ca", "cert", "key"} {
		if has(k) && !e.TLS {
			d.report(d.places[join(at, k)], join(at, k), "", "is used with tls: true only")
		}
	}
	if has("cert") != has("key") {
		d.report(n, at, "", "cert and key go together")
	}
	if has("username") != has("password") {
		d.report(n, at, "", "username and password go together")
	}
}
