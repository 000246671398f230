package policy

import (
	"time"

	"go.yaml.in/yaml/v3"
)

func identityTable() codec[Identity] {
	from := enum(choice[IdentityFrom]{"authz", FromAuthz}, choice[IdentityFrom]{"extproc", FromExtProc}, choice[IdentityFrom]{"metadata", FromMetadata})
	metadata := object(
		key("namespace", func(m *MetadataSource) *string { return &m.Namespace }, namespace()),
		key("key", func(m *MetadataSource) *string { return &m.Key }, maybe(text(1, 128), noValue)),
	)
	return object(
		key("from", func(i *Identity) *IdentityFrom { return &i.From }, from),
		key("issuers", func(i *Identity) *[]Issuer { return &i.Issuers }, maybe(list(issuerTable(), func() Issuer { return Issuer{JWKS: defaultJWKS()} }, 0, 100), emptyList)),
		key("algorithms", func(i *Identity) *[]string { return &i.Algorithms }, algorithmList()),
		key("claims", func(i *Identity) *Claims { return &i.Claims }, claimsTable()),
		key("leeway", func(i *Identity) *time.Duration { return &i.Leeway }, duration(0, 5*time.Minute, true)),
		key("maxLifetime", func(i *Identity) *time.Duration { return &i.MaxLifetime }, duration(time.Minute, 8760*time.Hour, true)),
		key("cacheFor", func(i *Identity) *time.Duration { return &i.CacheFor }, duration(100*time.Millisecond, 10*time.Second, true)),
		key("cacheSize", func(i *Identity) *int { return &i.CacheSize }, whole[int](1, 10_000_000)),
		key("maxToken", func(i *Identity) *int64 { return &i.MaxToken }, size(256, 64<<10)),
		key("service", func(i *Identity) *string { return &i.Service }, name()),
		key("realm", func(i *Identity) *string { return &i.Realm }, name()),
		key("preflight", func(i *Identity) *bool { return &i.Preflight }, boolean()),
		key("forward", func(i *Identity) *bool { return &i.Forward }, boolean()),
		key("metadata", func(i *Identity) *MetadataSource { return &i.Metadata }, metadata),
	)
}

// algorithmList takes asymmetric signatures alone (K2): with a shared key
// whoever can verify can also sign.
func algorithmList() codec[[]string] {
	return unique(list(words(algorithms()...), zero[string], 1, 3))
}

func issuerTable() codec[Issuer] {
	algs := algorithmList()
	return object(
		key("issuer", func(i *Issuer) *string { return &i.Issuer }, text(1, 512)).need(),
		key("audiences", func(i *Issuer) *[]string { return &i.Audiences }, unique(list(text(1, 512), zero[string], 1, 100))).need(),
		key("algorithms", func(i *Issuer) *[]string { return &i.Algorithms }, algs),
		key("jwks", func(i *Issuer) *JWKS { return &i.JWKS }, jwksTable()).need(),
	)
}

func jwksTable() codec[JWKS] {
	c := objectThen(checkJWKS,
		key("file", func(j *JWKS) *string { return &j.File }, fileName()),
		key("url", func(j *JWKS) *string { return &j.URL }, maybe(webAddress(keyServerRule), noValue)),
		key("ca", func(j *JWKS) *string { return &j.CA }, fileName()),
		key("refresh", func(j *JWKS) *time.Duration { return &j.Refresh }, duration(time.Second, 24*time.Hour, false)),
		key("minRefresh", func(j *JWKS) *time.Duration { return &j.MinRefresh }, duration(time.Second, time.Hour, false)),
		key("staleFor", func(j *JWKS) *time.Duration { return &j.StaleFor }, duration(0, 720*time.Hour, true)),
		key("timeout", func(j *JWKS) *time.Duration { return &j.Timeout }, duration(10*time.Millisecond, 30*time.Second, false)),
		key("allowEmpty", func(j *JWKS) *bool { return &j.AllowEmpty }, boolean()),
	)
	c.shape.one = []string{"file", "url"}
	return c
}

func checkJWKS(d *decoder, n *yaml.Node, at string, j *JWKS, has func(string) bool) {
	if has("file") == has("url") {
		d.report(n, at, "", "must have one of file and url")
		return
	}
	if has("ca") && !has("url") {
		d.report(d.places[join(at, "ca")], join(at, "ca"), "", "is used with url only")
	}
	if j.MinRefresh > j.Refresh {
		d.failAt(join(at, "minRefresh"), formatDuration(j.MinRefresh), "must not exceed refresh, "+formatDuration(j.Refresh))
	}
}

func claimsTable() codec[Claims] {
	claim := func() codec[string] { return checked(text(0, 128), `a claim, dots descend; "" = not read`, claimRule) }
	return object(
		key("tenant", func(c *Claims) *string { return &c.Tenant }, checked(claim(), "a claim, dots descend", func(s string) string {
			if s == "" {
				return "must not be empty: a call without a tenant is refused"
			}
			return ""
		})),
		key("class", func(c *Claims) *string { return &c.Class }, claim()),
		key("colour", func(c *Claims) *string { return &c.Colour }, claim()),
		key("tier", func(c *Claims) *string { return &c.Tier }, claim()),
		key("user", func(c *Claims) *string { return &c.User }, claim()),
		key("key", func(c *Claims) *string { return &c.Key }, claim()),
		key("scope", func(c *Claims) *string { return &c.Scope }, checked(claim(), "a claim, dots descend", func(s string) string {
			if s == "" {
				return "must not be empty: without scopes no call has the service scope"
			}
			return ""
		})),
	)
}
