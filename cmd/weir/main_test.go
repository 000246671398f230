package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestEveryCommandShowsAnExample walks the command tree (contract: every
// command has --help with an example).
func TestEveryCommandShowsAnExample(t *testing.T) {
	var walk func(c *cobra.Command)
	seen := 0
	walk = func(c *cobra.Command) {
		if c.Name() == "help" || c.Hidden {
			return
		}
		seen++
		if c.Example == "" || c.Short == "" {
			t.Errorf("%s has no example or no short text", c.CommandPath())
		}
		if !strings.Contains(c.Example, "weir ") {
			t.Errorf("%s: the example shows no command line: %q", c.CommandPath(), c.Example)
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(rootCommand())
	if seen < 11 {
		t.Errorf("only %d commands were seen", seen)
	}
}

// execute runs a command line and returns its output and exit code.
func execute(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	read := func(swap **os.File) func() string {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		old := *swap
		*swap = w
		out := make(chan string)
		go func() {
			var b bytes.Buffer
			_, _ = io.Copy(&b, r)
			out <- b.String()
		}()
		return func() string { *swap = old; w.Close(); return <-out }
	}
	endOut, endErr := read(&os.Stdout), read(&os.Stderr)
	code = run(args)
	return endOut(), endErr(), code
}

func TestExitCodes(t *testing.T) {
	dir := t.TempDir()
	good, bad, sample := filepath.Join(dir, "good.yaml"), filepath.Join(dir, "bad.yaml"), filepath.Join(dir, "sample.json")
	keyless := filepath.Join(dir, "keyless.yaml")
	for file, text := range map[string]string{
		good:    defaultPolicy(t),
		bad:     "version: 1\nserver: {drian: 3s}\nqueue: {softLimit: 120%}\n",
		keyless: strings.ReplaceAll(defaultPolicy(t), "jwks.json", "sample.json"), // no key set
		sample:  `{"tenant": "acme", "class": "standard", "tier": "gold", "model": "deepseek-v4", "method": "POST", "path": "/v1/chat/completions"}`,
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		args string
		code int
		says string // in stdout or stderr
	}{
		{"--version", 0, "weir version"},
		{"check " + good, 0, "policy"},
		{"check " + good, 0, "jwks.json: no such file or directory; serve needs it"},
		{"check " + keyless, 1, "identity.issuers[0]: key set " + sample},
		{"check " + good + " --request " + sample, 0, "per-tenant"},
		{"envoy snippet " + good, 0, "message_timeout: 1s"},
		{"check " + bad, 1, "softLimit"}, // all violations at once
		{"check " + bad, 1, "drian"},
		{"check " + filepath.Join(dir, "none.yaml"), 1, "none.yaml"},
		{"check", 2, "see weir check --help"},
		{"check --nonsense", 2, "nonsense"},
		{"nonsense", 2, "nonsense"},
		{"serve", 2, "--config"},
		{"serve --config " + bad, 1, "softLimit"},
		{"demo", 2, "--envoy"},
		{"token mint", 2, "key"},
		{"explain --admin unix:" + filepath.Join(dir, "none.sock"), 1, "no weir answers"},
	} {
		t.Run(c.args, func(t *testing.T) {
			t.Setenv("ENVOY", "")
			out, errOut, code := execute(t, strings.Fields(c.args)...)
			if code != c.code {
				t.Errorf("exit code %d, want %d; %s%s", code, c.code, out, errOut)
			}
			if !strings.Contains(out+errOut, c.says) {
				t.Errorf("says %q, want it to name %q", out+errOut, c.says)
			}
		})
	}
}

// defaultPolicy is examples/policies/default.yaml.
func defaultPolicy(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile("../../examples/policies/default.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}
