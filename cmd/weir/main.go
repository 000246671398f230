// Command weir is the sidecar and its tools. It holds the keys to the house:
// flags, wiring, signals. Decisions live in the rooms (see the package comment
// of the root).
//
// Exit codes: 0 done, 1 failed, 2 wrong usage.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// version is set by the linker.
var version = "dev"

// usageError is a wrong flag or argument: exit code 2.
type usageError struct{ error }

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), endings()...)
	defer stop()
	root := rootCommand()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	var usage usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &usage):
		fmt.Fprintf(os.Stderr, "weir: %v\n", err)
		return 2
	case errors.Is(err, errFound):
		return 1
	}
	fmt.Fprintf(os.Stderr, "weir: %v\n", err)
	return 1
}

// endings are the signals that end a command politely: also that its terminal
// closes, unless it was started to outlive it (nohup).
func endings() []os.Signal {
	list := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		list = append(list, syscall.SIGHUP)
	}
	return list
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "weir",
		Short:         "Admission control for LLM inference behind Envoy",
		Long:          "weir decides for every request to an LLM pool: admit, queue, degrade, 429 or 503.\nEnvoy carries the bytes; weir speaks ext_authz and ext_proc.",
		Example:       "  weir serve --config weir.yaml\n  weir check weir.yaml\n  weir demo",
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.AddCommand(serveCommand(), checkCommand(), explainCommand(), breakerCommand(), simulateCommand(), tokenCommand(), envoyCommand(), modelsimCommand(), demoCommand())
	root.CompletionOptions.HiddenDefaultCmd = true
	markUsage(root)
	return root
}

// markUsage turns flag and argument errors of a command tree into exit code 2.
func markUsage(c *cobra.Command) {
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w (see %s --help)", err, c.CommandPath())}
	})
	if args := c.Args; args != nil {
		c.Args = func(c *cobra.Command, a []string) error {
			if err := args(c, a); err != nil {
				return usageError{fmt.Errorf("%w (see %s --help)", err, c.CommandPath())}
			}
			return nil
		}
	}
	for _, sub := range c.Commands() {
		markUsage(sub)
	}
}
