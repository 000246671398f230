package main

import (
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
	c.AddCommand(&cobra.Command{
		Use:   "snippet FILE",
		Short: "Print the Envoy filter sections that fit a policy",
		Long: "snippet prints http_filters, the weir cluster and what the bootstrap needs (runtime layers, statistics), with\n" +
			"the timeouts and limits of the policy; \"weir envoy cluster\" prints the model clusters. Complete\n" +
			"configurations to start from are in examples/envoy.",
		Example: "  weir envoy snippet weir.yaml > filters.yaml",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			p, err := policy.LoadFile(args[0])
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
	})
	c.AddCommand(envoyClusterCommand())
	c.AddCommand(envoyCheckCommand())
	return c
}
