package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"
)

// breakerFlags say which weir is meant and how it is to answer.
type breakerFlags struct {
	admin, token string
	json         bool
}

func (f *breakerFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.admin, "admin", "127.0.0.1:9902", "admin `address` of the running weir (host:port or unix:/path)")
	c.Flags().StringVar(&f.token, "token-file", "", "`file` with the admin token")
	c.Flags().BoolVar(&f.json, "json", false, "print weir's answer as it is")
}

func breakerCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "breaker",
		Short: "Look at the breakers of a running weir, trip, reset and hold them",
		Long: "breaker asks a running weir for its breakers, or works one by hand. Working one needs the admin token, unless\n" +
			"the admin address is a Unix socket. What was done, by whom and why is in weir's log (\"audit\": true) and in\n" +
			"/debug/timeline. A hand counts for this replica alone: other replicas go by their own evidence.",
		Example: "  weir breaker list\n  weir breaker trip chat-fp16 --level soft --for 2m --reason 'bad build' --token-file admin-token\n  weir breaker reset chat-fp16 --admin unix:/run/weir/admin.sock",
		Args:    cobra.NoArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(breakerListCommand(),
		breakerHandCommand("trip", "Open a breaker", "trip opens a breaker, whatever holds it, for as long as --for says (default: the policy's open time); then it\nrecovers by probes. At the soft level batch is shed and standard degraded, at the hard level everything is refused.",
			"  weir breaker trip chat-fp16 --for 30s --reason 'rolling back' --token-file admin-token\n  weir breaker trip acme --tenant --admin unix:/run/weir/admin.sock"),
		breakerHandCommand("reset", "Close a breaker", "reset closes a breaker, ends a hold, and forgets what was counted.",
			"  weir breaker reset chat-fp16 --token-file admin-token"),
		breakerHandCommand("hold", "Keep a breaker in the state that it is in", "hold keeps a breaker in its state, whatever is seen, for as long as --for says, or until it is reset or tripped.",
			"  weir breaker hold chat-fp16 --for 1h --reason 'load test' --token-file admin-token"))
	return c
}

func breakerListCommand() *cobra.Command {
	var f breakerFlags
	c := &cobra.Command{
		Use:     "list",
		Short:   "Show all breakers",
		Long:    "list shows the breakers of all pools, and those of tenants that are open, half-open or held.",
		Example: "  weir breaker list\n  weir breaker list --json --admin unix:/run/weir/admin.sock",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			body, err := adminGet(c.Context(), f.admin, f.token, "/debug/breakers")
			if err != nil {
				return err
			}
			if f.json {
				_, err = c.OutOrStdout().Write(body)
				return err
			}
			var v breakersView
			if err := json.Unmarshal(body, &v); err != nil {
				return fmt.Errorf("%s does not answer as weir does: %w", f.admin, err)
			}
			return printBreakers(c.OutOrStdout(), &v)
		},
	}
	f.add(c)
	return c
}

// printBreakers makes a table.
func printBreakers(out io.Writer, v *breakersView) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tKIND\tSTATE\tFOR\tENDS\tFAILED\tOPENS AT\tADMITS\tELSEWHERE\tNEXT")
	for _, list := range [][]breakerView{v.Breakers, v.Tenants} {
		for i := range list {
			b := &list[i]
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\t%s\t%s\t%s\t%s\n", plain(b.Name), b.Kind, b.stateText(), lasting(v.At, b.Since), b.Requests, b.Failures,
				percent(b.Soft)+"/"+percent(b.Hard), percent(b.Release), b.elsewhereText(), b.nextText())
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "replica %s, bus %s, %d tenants known\n", plain(v.Replica), v.Bus, v.Known)
	return err
}

// plain is a name as a terminal may have it.
func plain(name string) string {
	if strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(name)
	}
	return name
}

func (b *breakerView) stateText() string {
	text := b.State
	if b.Level != "" && b.Level != b.State {
		text += " (" + b.Level + ")"
	}
	if b.Held != nil {
		text += ", held"
	}
	return text
}

func (b *breakerView) elsewhereText() string {
	if b.Elsewhere == nil {
		return "-"
	}
	return fmt.Sprintf("%s (%d of %d)", b.Elsewhere.State, b.Elsewhere.Open, b.Elsewhere.Votes)
}

func (b *breakerView) nextText() string {
	if b.Next.In != nil && b.Held != nil {
		return fmt.Sprintf("%s: its hold ends in %.1fs", b.Next.To, *b.Next.In)
	}
	if b.Next.In != nil {
		return fmt.Sprintf("%s in %.1fs", b.Next.To, *b.Next.In)
	}
	return b.Next.To + ": " + b.Next.When
}

// lasting is how long a state has lasted.
func lasting(now time.Time, since *time.Time) string {
	if since == nil {
		return "-"
	}
	return max(0, now.Sub(*since)).Round(time.Second / 10).String()
}

func percent(share float64) string { return fmt.Sprintf("%.0f%%", 100*share) }

func breakerHandCommand(action, short, long, example string) *cobra.Command {
	var f breakerFlags
	var level, reason string
	var lasts time.Duration
	var tenant bool
	c := &cobra.Command{
		Use:     action + " NAME",
		Short:   short,
		Long:    long,
		Example: example,
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if args[0] == "" {
				return usageError{errors.New("NAME is empty")}
			}
			body := map[string]string{"action": action}
			if tenant {
				body["kind"] = "tenant"
			}
			if reason != "" {
				body["reason"] = reason
			}
			if c.Flags().Changed("for") {
				if lasts <= 0 {
					return usageError{fmt.Errorf("--for %v: must be above 0", lasts)}
				}
				body["for"] = lasts.String()
			}
			if c.Flags().Changed("level") {
				if level != "soft" && level != "hard" {
					return usageError{fmt.Errorf("--level %q: must be soft or hard", level)}
				}
				body["level"] = level
			}
			return f.act(c.Context(), c.OutOrStdout(), args[0], body)
		},
	}
	f.add(c)
	c.Flags().BoolVar(&tenant, "tenant", false, "NAME is a tenant's, not a pool's")
	c.Flags().StringVar(&reason, "reason", "", "`why`, for audit and timeline")
	if action != "reset" {
		c.Flags().DurationVar(&lasts, "for", 0, "how long, up to 24h")
	}
	if action == "trip" {
		c.Flags().StringVar(&level, "level", "hard", "`soft` or hard")
	}
	return c
}

// segment is a name as one part of a path, also one that a path would lose.
func segment(name string) string {
	if name == "." || name == ".." {
		return strings.ReplaceAll(name, ".", "%2E")
	}
	return url.PathEscape(name)
}

func (f *breakerFlags) act(ctx context.Context, out io.Writer, name string, fields map[string]string) error {
	body, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	answer, err := adminCall(ctx, f.admin, f.token, "POST", "/debug/breakers/"+segment(name), body)
	if err != nil {
		return err
	}
	if f.json {
		_, err = out.Write(answer)
		return err
	}
	var v handView
	if err := json.Unmarshal(answer, &v); err != nil {
		return fmt.Errorf("%s does not answer as weir does: %w", f.admin, err)
	}
	_, err = fmt.Fprintf(out, "%s: %s, was %s; next %s\n", name, v.After, v.Before, strings.TrimSuffix(v.Breaker.nextText(), ": "))
	return err
}
