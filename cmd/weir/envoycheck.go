package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weirproxy/weir/envoy/lint"
	"github.com/weirproxy/weir/policy"
)

func envoyCheckCommand() *cobra.Command {
	var config, release string
	var asJSON, rules bool
	c := &cobra.Command{
		Use:   "check FILE",
		Short: "Find what is wrong with an Envoy bootstrap or a running Envoy's dump, and what Envoy would not tell",
		Long: "check reads a bootstrap, or a dump of what runs (Envoy's /config_dump, egctl x translate, istioctl\n" +
			"proxy-config -o json), as YAML or JSON, as strictly as Envoy and more: names of clusters and filters that\n" +
			"do not exist, overrides that nobody reads, clocks that cut what weir holds, limits below the policy's.\n" +
			"Each finding has its line and what to write. --config holds the file against a policy; without it waits,\n" +
			"seats, body limit, pools and names are not checked. Without --release the file has to work with every\n" +
			"supported Envoy, " + lint.Release(0).String() + ". Exit code: 0 nothing or warnings, 1 errors, 2 wrong usage.",
		Example: "  weir envoy check envoy.yaml --config weir.yaml --release 1.40\n  weir envoy check envoy.yaml --json | jq '.findings[].rule'\n  weir envoy check --rules",
		Args: func(_ *cobra.Command, args []string) error {
			if rules && len(args) == 0 || !rules && len(args) == 1 {
				return nil
			}
			return fmt.Errorf("takes one file, got %d", len(args))
		},
		RunE: func(c *cobra.Command, args []string) error {
			if rules {
				_, err := fmt.Fprint(c.OutOrStdout(), ruleList())
				return err
			}
			return checkEnvoy(c, args[0], config, release, asJSON)
		},
	}
	c.Flags().StringVar(&config, "config", "", "policy `file` to hold it against")
	c.Flags().StringVar(&release, "release", "", "`release` of Envoy: 1.36 to 1.40; default all")
	c.Flags().BoolVar(&asJSON, "json", false, "print the report as JSON")
	c.Flags().BoolVar(&rules, "rules", false, "list the rules")
	return c
}

func checkEnvoy(c *cobra.Command, file, config, release string, asJSON bool) error {
	var o lint.Options
	var err error
	if o.Release, err = lint.ParseRelease(release); err != nil {
		return usageError{fmt.Errorf("--release: %w", err)}
	}
	if config != "" {
		if o.Policy, err = policy.LoadFile(config, policy.WithoutSecrets()); err != nil {
			return err
		}
	}
	data, err := readFile(file, maxBootstrap)
	if err != nil {
		return err
	}
	report := lint.Check(file, data, o)
	if asJSON {
		e := json.NewEncoder(c.OutOrStdout())
		e.SetIndent("", "  ")
		e.SetEscapeHTML(false)
		err = e.Encode(report)
	} else {
		_, err = fmt.Fprint(c.OutOrStdout(), report)
	}
	if err == nil && report.Errors() > 0 {
		err = errFound
	}
	return err
}

// errFound ends the command with 1; what was found is printed already.
var errFound = errors.New("errors were found")

// maxBootstrap is the longest bootstrap that is checked, in bytes.
const maxBootstrap = 64 << 20

// readFile reads a file of at most so many bytes; it may be a pipe.
func readFile(file string, most int64) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(data)) > most {
		err = fmt.Errorf("%s: more than %d bytes", file, most)
	}
	return data, err
}

// ruleList is one line for each rule.
func ruleList() string {
	var b strings.Builder
	for _, r := range lint.Rules() {
		fmt.Fprintf(&b, "%-16s %s\n", r.ID, r.Text)
	}
	return b.String()
}
