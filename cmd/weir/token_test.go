package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirproxy/weir/authz"
	"github.com/weirproxy/weir/policy"
)

// runToken runs "weir token ..." and gives its output.
func runToken(t *testing.T, args ...string) (string, error) {
	t.Helper()
	c := tokenCommand()
	markUsage(c)
	var out bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&out)
	c.SilenceErrors, c.SilenceUsage = true, true
	c.SetArgs(args)
	err := c.ExecuteContext(t.Context())
	return out.String(), err
}

// TestMintedTokensAreAccepted: a policy with the public set takes what mint
// prints, with every claim (K1, K2).
func TestMintedTokensAreAccepted(t *testing.T) {
	for _, alg := range []string{"EdDSA", "ES256", "RS256"} {
		t.Run(alg, func(t *testing.T) {
			dir := t.TempDir()
			key, jwks := filepath.Join(dir, "key.jwk"), filepath.Join(dir, "jwks.json")
			if _, err := runToken(t, "keygen", "--out", key, "--jwks", jwks, "--alg", alg, "--kid", "one"); err != nil {
				t.Fatal(err)
			}
			if info, err := os.Stat(key); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("private key: %v, %v", info.Mode(), err)
			}
			if public, err := os.ReadFile(jwks); err != nil || bytes.Contains(public, []byte(`"d"`)) {
				t.Errorf("public set: %s, %v", public, err)
			}
			p := policy.Default().Identity
			p.Issuers = []policy.Issuer{{Issuer: defaultIssuer, Audiences: []string{defaultAudience}, JWKS: policy.JWKS{File: jwks}}}
			v, err := authz.NewVerifier(&p, authz.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer v.Close()
			out, err := runToken(t, "mint", "--key", key, "--tenant", "acme", "--class", "batch", "--tier", "gold", "--user", "ann",
				"--key-id", "k1", "--colour", "red", "--ttl", "5m", "--scope", "llm_service", "--scope", "chat_completion max_tokens<=64")
			if err != nil {
				t.Fatal(err)
			}
			id, err := v.Verify(t.Context(), func(string) []string { return []string{"Bearer " + strings.TrimSpace(out)} })
			if err != nil {
				t.Fatal(err)
			}
			if id.Tenant != "acme" || id.Class != policy.Batch || id.Tier != "gold" || id.User != "ann" || id.Key != "k1" ||
				id.Colour != policy.Red || id.JTI == "" || len(id.Scopes) != 2 || len(id.Params) != 1 {
				t.Errorf("identity %+v", id)
			}
		})
	}
}

func TestTokenUsage(t *testing.T) {
	dir := t.TempDir()
	key, jwks := filepath.Join(dir, "key.jwk"), filepath.Join(dir, "jwks.json")
	if _, err := runToken(t, "keygen", "--out", key, "--jwks", jwks); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		args  []string
		usage bool
	}{
		{"no key", []string{"mint", "--tenant", "acme"}, true},
		{"no tenant", []string{"mint", "--key", key}, true},
		{"unknown flag", []string{"mint", "--key", key, "--tenant", "acme", "--frob"}, true},
		{"an argument", []string{"mint", "x"}, true},
		{"unknown class", []string{"mint", "--key", key, "--tenant", "acme", "--class", "vip"}, true},
		{"bad scope", []string{"mint", "--key", key, "--tenant", "acme", "--scope", "max_tokens<1"}, true},
		{"tenant with a newline", []string{"mint", "--key", key, "--tenant", "a\nb"}, true},
		{"no time to live", []string{"mint", "--key", key, "--tenant", "acme", "--ttl", "0s"}, true},
		{"no such key", []string{"mint", "--key", key + "x", "--tenant", "acme"}, false},
		{"public key", []string{"mint", "--key", jwks, "--tenant", "acme"}, false},
		{"another algorithm", []string{"mint", "--key", key, "--tenant", "acme", "--alg", "RS256"}, false},
		{"no out", []string{"keygen", "--jwks", jwks}, true},
		{"HS256", []string{"keygen", "--out", key + "2", "--jwks", jwks + "2", "--alg", "HS256"}, true},
		{"key is there", []string{"keygen", "--out", key, "--jwks", jwks}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, err := runToken(t, c.args...)
			var usage usageError
			if err == nil || errors.As(err, &usage) != c.usage {
				t.Errorf("output %q, error %v, want usage = %v", out, err, c.usage)
			}
		})
	}
	before, _ := os.ReadFile(key)
	if _, err := runToken(t, "keygen", "--out", key, "--jwks", jwks, "--force"); err != nil {
		t.Error(err)
	}
	if after, _ := os.ReadFile(key); bytes.Equal(before, after) {
		t.Error("--force did not replace the key")
	}
	if files, _ := filepath.Glob(filepath.Join(dir, ".weir-*")); len(files) != 0 {
		t.Errorf("left behind: %v", files)
	}
}

// TestTokenHelp: every command shows an example.
func TestTokenHelp(t *testing.T) {
	for _, args := range [][]string{{"--help"}, {"mint", "--help"}, {"keygen", "--help"}, {}} {
		out, err := runToken(t, args...)
		if err != nil || !strings.Contains(out, "Examples:") || !strings.Contains(out, "weir token ") {
			t.Errorf("%v: %q, %v", args, out, err)
		}
	}
}
