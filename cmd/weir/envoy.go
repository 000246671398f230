package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/weirproxy/weir/envoy"
	"github.com/weirproxy/weir/policy"
)

func envoyCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "envoy",
		Short:   "What Envoy has to be told",
		Example: "  weir envoy snippet weir.yaml\n  weir envoy check envoy.yaml --config weir.yaml",
		Args:    cobra.NoArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(envoySnippetCommand())
	c.AddCommand(envoyClusterCommand())
	c.AddCommand(envoyCheckCommand())
	return c
}

// policyFile is the policy that a command names, as its argument or by
// --config.
func policyFile(args []string, config string) (string, error) {
	switch {
	case len(args) == 1 && config == "":
		return args[0], nil
	case len(args) == 0 && config != "":
		return config, nil
	}
	return "", usageError{errors.New("name one policy file: FILE or --config FILE")}
}

func envoySnippetCommand() *cobra.Command {
	var config string
	c := &cobra.Command{
		Use:   "snippet FILE",
		Short: "Print the Envoy filter sections that fit a policy",
		Long: "snippet prints http_filters, the weir cluster and what the bootstrap needs (runtime layers, statistics), with\n" +
			"the timeouts and limits of the policy; \"weir envoy cluster\" prints the model clusters. Complete\n" +
			"configurations to start from are in examples/envoy.",
		Example: "  weir envoy snippet weir.yaml > filters.yaml",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			file, err := policyFile(args, config)
			if err != nil {
				return err
			}
			p, err := policy.LoadFile(file)
			if err != nil {
				return err
			}
			out, err := envoy.Snippet(p)
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(c.OutOrStdout(), out)
			return err
		},
	}
	c.Flags().StringVar(&config, "config", "", "policy `file`, in place of FILE")
	return c
}
