package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirproxy/weir/authz"
	"github.com/weirproxy/weir/identity"
	"github.com/weirproxy/weir/policy"
)

// What minted tokens say where no flag does: the values of the example
// policies.
const (
	defaultIssuer   = "https://id.example"
	defaultAudience = "llm"
	defaultScope    = "llm_service chat_completion completion embedding"
	defaultTTL      = time.Hour
)

func tokenCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "token",
		Short:   "Make keys and tokens",
		Example: "  weir token keygen --out key.jwk --jwks jwks.json\n  weir token mint --key key.jwk --tenant acme --class standard --ttl 1h",
		Args:    cobra.NoArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(mintCommand(), keygenCommand())
	return c
}

// mint is what one token shall say.
type mint struct {
	tenant, class, colour, tier, user, keyID string
	scopes                                   []string
	issuer                                   string
	audiences                                []string
	ttl                                      time.Duration
}

func mintCommand() *cobra.Command {
	var m mint
	var key, alg, kid string
	c := &cobra.Command{
		Use:   "mint --key KEY.jwk --tenant T",
		Short: "Print a signed token",
		Long: "mint signs a token with a private JWK and prints it. Its claims have the names that a policy reads by\n" +
			"default: tenant, class, colour, tier, sub (user), key, scope. A scope is a service, a function, or a bound\n" +
			"on a parameter (max_tokens<=1024, n=1, model=a|b).",
		Example: "  weir token mint --key key.jwk --tenant acme --class critical --scope \"llm_service chat_completion\" --ttl 1h\n" +
			"  curl -H \"Authorization: Bearer $(weir token mint --key key.jwk --tenant acme)\" ...",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			data, err := os.ReadFile(key)
			if err != nil {
				return err
			}
			signer, err := authz.NewSigner(data, alg)
			if err != nil {
				return fmt.Errorf("%s: %w", key, err)
			}
			if kid != "" {
				signer = signer.WithKeyID(kid)
			}
			claims, err := m.claims(time.Now())
			if err != nil {
				return usageError{err}
			}
			token, err := signer.Sign(claims)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), token)
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&key, "key", "", "private JWK `file`")
	f.StringVar(&m.tenant, "tenant", "", "tenant `name`")
	f.StringVar(&m.class, "class", "standard", "highest class allowed: critical, standard or batch")
	f.StringArrayVar(&m.scopes, "scope", []string{defaultScope}, "`scopes`, separated by spaces; may be repeated")
	f.DurationVar(&m.ttl, "ttl", defaultTTL, "how long the token is valid")
	f.StringVar(&m.issuer, "issuer", defaultIssuer, "iss claim")
	f.StringArrayVar(&m.audiences, "audience", []string{defaultAudience}, "aud claim; may be repeated")
	f.StringVar(&m.colour, "colour", "", "red, yellow or green")
	f.StringVar(&m.tier, "tier", "", "tier `name`")
	f.StringVar(&m.user, "user", "", "sub claim")
	f.StringVar(&m.keyID, "key-id", "", "key claim: `id` of the caller's key, as counted by quotas")
	f.StringVar(&kid, "kid", "", "`id` of the signing key in the header (default: the JWK's)")
	f.StringVar(&alg, "alg", "", "signature algorithm (default: the JWK's)")
	require(c, "key", "tenant")
	return c
}

// claims checks what the token shall say by the rules that weir reads it by,
// so that nothing is minted that would be refused.
func (m *mint) claims(now time.Time) (map[string]any, error) {
	if m.ttl <= 0 {
		return nil, errors.New("--ttl must be above 0")
	}
	if m.issuer == "" || len(m.audiences) == 0 {
		return nil, errors.New("--issuer and --audience must not be empty")
	}
	class, ok := policy.ParseClass(m.class)
	if !ok {
		return nil, fmt.Errorf("--class %q: want critical, standard or batch", m.class)
	}
	claims := map[string]any{
		"iss": m.issuer, "aud": m.audiences, "iat": now.Unix(), "exp": now.Add(m.ttl).Unix(),
		"jti": rand.Text(), "tenant": m.tenant, "class": class.String(), "scope": strings.Join(m.scopes, " "),
	}
	if len(m.audiences) == 1 {
		claims["aud"] = m.audiences[0]
	}
	for name, value := range map[string]string{"colour": m.colour, "tier": m.tier, "sub": m.user, "key": m.keyID} {
		if value != "" {
			claims[name] = value
		}
	}
	if _, err := identity.FromClaims(mintable(claims), policy.Default().Identity.Claims); err != nil {
		return nil, err
	}
	return claims, nil
}

// mintable is the claims as a reader will have them: numbers as float64.
func mintable(claims map[string]any) map[string]any {
	out := make(map[string]any, len(claims))
	for name, v := range claims {
		if n, ok := v.(int64); ok {
			v = float64(n)
		}
		out[name] = v
	}
	return out
}

func keygenCommand() *cobra.Command {
	var out, jwks, alg, kid string
	var force bool
	c := &cobra.Command{
		Use:   "keygen --out KEY.jwk --jwks JWKS.json",
		Short: "Make a key pair for tokens",
		Long: "keygen writes a private JWK, readable by you alone, and a JWK set with the public key for\n" +
			"identity.issuers[].jwks.file. Files that are there stay untouched unless --force is given.",
		Example: "  weir token keygen --out key.jwk --jwks jwks.json\n  weir token keygen --out key.jwk --jwks jwks.json --alg ES256 --kid 2030-03",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			private, public, err := authz.GenerateKey(alg, kid)
			if err != nil {
				return usageError{err}
			}
			if err := writeFile(out, private, 0o600, force); err != nil {
				return err
			}
			if err := writeFile(jwks, public, 0o644, force); err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "private key: %s\npublic key set: %s\n", out, jwks)
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&out, "out", "", "`file` for the private key")
	f.StringVar(&jwks, "jwks", "", "`file` for the public key set")
	f.StringVar(&alg, "alg", "EdDSA", "EdDSA, ES256 or RS256")
	f.StringVar(&kid, "kid", "", "key `id` (default: the key's thumbprint)")
	f.BoolVar(&force, "force", false, "replace files that are there")
	require(c, "out", "jwks")
	return c
}

// require makes the command fail with a usage error where a flag is missing.
func require(c *cobra.Command, names ...string) {
	c.PreRunE = func(c *cobra.Command, _ []string) error {
		for _, name := range names {
			if c.Flag(name).Value.String() == "" {
				return usageError{fmt.Errorf("--%s is required (see %s --help)", name, c.CommandPath())}
			}
		}
		return nil
	}
}

// writeFile writes a file whole or not at all, with the mode given from its
// first byte on.
func writeFile(path string, data []byte, mode os.FileMode, force bool) error {
	if !force {
		if _, err := os.Lstat(path); err == nil {
			return fmt.Errorf("%s is there already (--force replaces it)", path)
		}
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".weir-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // gone already where all went well
	_, err = f.Write(append(data, '\n'))
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
