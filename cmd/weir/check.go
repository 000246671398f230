package main

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/weirproxy/weir/policy"
)

func checkCommand() *cobra.Command {
	var sample, against string
	c := &cobra.Command{
		Use:   "check FILE",
		Short: "Check a policy file and print what it means",
		Long: "check loads a policy exactly as serve does, lists every violation with its line, and prints the\n" +
			"effective policy. Key sets, certificates and telemetry scripts that the policy names are read too; one that\n" +
			"is not on this machine is only noted. Nothing is fetched.\n" +
			"With --request it tells which API, model, pools, waits and quota rules bind a request.\n" +
			"With --against it tells what becomes of counted usage when FILE takes the place of another policy by a reload.",
		Example: "  weir check weir.yaml\n  weir check weir.yaml --request sample.json\n  weir check new.yaml --against weir.yaml\n\n" +
			`  # sample.json: {"tenant": "acme", "class": "standard", "tier": "gold", "model": "deepseek-v4",` + "\n" +
			`  #               "method": "POST", "path": "/v1/chat/completions"}`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			p, err := policy.LoadFile(args[0])
			if err != nil {
				return err
			}
			missing, err := checkFiles(p)
			if err != nil {
				return err
			}
			for _, m := range missing {
				fmt.Fprintf(c.ErrOrStderr(), "weir: note: %s; serve needs it\n", m)
			}
			if against != "" {
				return checkAgainst(c.OutOrStdout(), against, p)
			}
			if sample == "" {
				_, err = fmt.Fprint(c.OutOrStdout(), policy.Report(p))
				return err
			}
			data, err := os.ReadFile(sample)
			if err != nil {
				return err
			}
			s, err := policy.ParseSample(sample, data)
			if err != nil {
				return err
			}
			report, err := policy.ReportSample(p, s)
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(c.OutOrStdout(), report)
			return err
		},
	}
	c.Flags().StringVar(&sample, "request", "", "JSON `file` of a sample request")
	c.Flags().StringVar(&against, "against", "", "the policy `file` that it is to replace")
	c.MarkFlagsMutuallyExclusive("request", "against")
	return c
}

// checkAgainst prints what becomes of usage when next replaces an older policy.
func checkAgainst(w io.Writer, file string, next *policy.Policy) error {
	old, err := policy.LoadFile(file, policy.WithoutSecrets())
	if err != nil {
		return err
	}
	changes := policy.QuotaChanges(old, next)
	if len(changes) == 0 {
		_, err = fmt.Fprintln(w, "quotas: all usage stays with its rules")
		return err
	}
	for _, c := range changes {
		mark := "moves"
		if c.Anew {
			mark = "ANEW "
		}
		if _, err = fmt.Fprintf(w, "%s  quota %s %s\n", mark, c.Rule, c.Says); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintln(w, "A restart in place of a reload: usage in memory is lost, usage in Redis stays with rules whose id, by and per stay.")
	return err
}
