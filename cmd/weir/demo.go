package main

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirproxy/weir/authz"
	"github.com/weirproxy/weir/internal/demo"
)

func demoCommand() *cobra.Command {
	var envoy string
	var short bool
	c := &cobra.Command{
		Use:   "demo",
		Short: "Show a burst of four times the capacity, on this machine",
		Long: "demo starts a real Envoy, weir and two simulated model pools on loopback, sends steady load and one burst\n" +
			"of four times the capacity from three tenants of three classes, shows what happens, and ends by itself.\n" +
			"DEMO_HOLD=1 keeps everything up afterwards and prints lines to paste.",
		Example: "  make demo\n  weir demo --envoy /usr/local/bin/envoy\n  DEMO_HOLD=1 make demo",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if envoy == "" {
				return usageError{errors.New("demo needs --envoy PATH, an Envoy 1.36 or newer (make demo fetches one)")}
			}
			self, err := os.Executable()
			if err != nil {
				return err
			}
			return runDemo(c.Context(), c.OutOrStdout(), demo.Options{Envoy: envoy, Weir: self, Short: short})
		},
	}
	c.Flags().StringVar(&envoy, "envoy", os.Getenv("ENVOY"), "`path` of an Envoy binary")
	c.Flags().BoolVar(&short, "short", false, "a few seconds only")
	return c
}

func runDemo(ctx context.Context, out io.Writer, o demo.Options) error {
	o.Out = out
	o.Live = isTerminal(out)
	o.Hold = os.Getenv("DEMO_HOLD") != ""
	private, public, err := authz.GenerateKey("EdDSA", "")
	if err != nil {
		return err
	}
	signer, err := authz.NewSigner(private, "")
	if err != nil {
		return err
	}
	o.Keys = func(dir string) (string, error) {
		file := filepath.Join(dir, "jwks.json")
		return file, os.WriteFile(file, public, 0o600)
	}
	o.Mint = func(g demo.Group) (string, error) {
		now := time.Now()
		return signer.Sign(map[string]any{
			"iss": "https://demo.weir.example", "aud": "llm", "sub": "demo", "jti": rand.Text(),
			"iat": now.Unix(), "exp": now.Add(time.Hour).Unix(),
			"tenant": g.Tenant, "class": g.Class, "tier": g.Tier,
			"scope": "llm_service chat_completion completion embedding",
		})
	}
	if err := demo.Run(ctx, o); ctx.Err() == nil || !errors.Is(err, context.Canceled) {
		return err
	}
	return nil // stopped by its user
}

// isTerminal reports whether somebody watches.
func isTerminal(out io.Writer) bool {
	f, ok := out.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
}
