package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirproxy/weir/examples"
	"github.com/weirproxy/weir/internal/simulate"
	"github.com/weirproxy/weir/internal/simulate/report"
	"github.com/weirproxy/weir/policy"
)

// simulation is what the flags ask for.
type simulation struct {
	policies []string
	compare  []string
	json     bool
	html     string
	seed     uint64
	requests int
	skipBad  bool
}

func simulateCommand() *cobra.Command {
	var f simulation
	c := &cobra.Command{
		Use:   "simulate SCENARIO.yaml",
		Short: "Play a scenario in virtual time and see what each policy makes of it",
		Long: "simulate plays arrivals, clients, engines and failures in virtual time against the cores that serve real\n" +
			"traffic, once for each policy, and prints what became of the requests. Equal seeds give equal runs.\n" +
			"A policy is a file, or one of weir's own: default, source. Without --policy and --compare it plays those that\n" +
			"the scenario names. The scenario's topology and overlay are laid over each policy.",
		Example: "  weir simulate examples/scenarios/pulse.yaml\n" +
			"  weir simulate pulse.yaml --compare default,weir.yaml --html report.html\n" +
			"  weir simulate yesterday.yaml --policy tomorrow.yaml --skip-bad --json",
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			switch {
			case f.requests < 0:
				return usageError{fmt.Errorf("--requests must not be negative (got %d)", f.requests)}
			case slices.Contains(f.policies, ""), slices.Contains(f.compare, ""), c.Flags().Changed("compare") && len(f.compare) == 0:
				return usageError{errors.New("--policy and --compare: a name is empty; each is a file, default or source")}
			}
			s, err := simulate.LoadFile(args[0])
			if err != nil {
				return err
			}
			if c.Flags().Changed("seed") {
				s.Seed = f.seed
			}
			return f.run(c.Context(), s, c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	c.Flags().StringArrayVar(&f.policies, "policy", nil, "policy `FILE`, default or source; may be given several times")
	c.Flags().StringSliceVar(&f.compare, "compare", nil, "policies side by side: `a.yaml,b.yaml`")
	c.Flags().BoolVar(&f.json, "json", false, "print an array with one object a policy instead of tables")
	c.Flags().StringVar(&f.html, "html", "", "write a report with charts into `FILE`; it needs no network")
	c.Flags().Uint64Var(&f.seed, "seed", 1, "of everything random, instead of the scenario's")
	c.Flags().IntVar(&f.requests, "requests", 0, "let the scenario go on until about `N` requests were sent")
	c.Flags().BoolVar(&f.skipBad, "skip-bad", false, "pass over lines of traces that cannot be read, and count them")
	return c
}

// run plays every policy and prints the results.
func (f *simulation) run(ctx context.Context, s *simulate.Scenario, out, notes io.Writer) error {
	candidates, err := f.candidates(s)
	if err != nil {
		return err
	}
	if f.requests > 0 {
		longer := s.Stretch(f.requests)
		if longer == s {
			fmt.Fprintf(notes, "weir: note: 30 days of %s do not send %d requests (traces do not count): it is played as it stands\n", s.Name, f.requests)
		}
		s = longer
	}
	var results []*simulate.Result
	for _, c := range candidates {
		r, err := f.play(ctx, s, c)
		if err != nil {
			return fmt.Errorf("%s: %w", c.Name, err)
		}
		if r.Skipped > 0 {
			fmt.Fprintf(notes, "weir: note: %s: %d lines of traces were passed over\n", r.Policy, r.Skipped)
		}
		if r.Cut && len(results) == 0 {
			fmt.Fprintln(notes, "weir: note: a trace goes on after its stream ends (arrivals[].to, else duration): the rest is not played")
		}
		results = append(results, r)
	}
	if f.html != "" {
		if err := writeReport(f.html, s, results); err != nil {
			return err
		}
	}
	write := simulate.WriteTable
	if f.json {
		write = simulate.WriteJSON
	}
	if err := write(out, results); err != nil {
		return err
	}
	return violations(results)
}

// play runs one policy, until it is through or ctx ends.
func (f *simulation) play(ctx context.Context, s *simulate.Scenario, c simulate.Candidate) (*simulate.Result, error) {
	type outcome struct {
		r   *simulate.Result
		err error
	}
	done := make(chan outcome, 1)
	go func() {
		start := time.Now()
		r, err := simulate.Run(s, c, f.skipBad)
		if err == nil {
			r.Wall = time.Since(start).Seconds()
		}
		done <- outcome{r, err}
	}()
	select {
	case o := <-done:
		return o.r, o.err
	case <-ctx.Done():
		return nil, errors.New("stopped")
	}
}

// violations are defects: a run in which an invariant did not hold has failed.
func violations(results []*simulate.Result) error {
	var errs []error
	for _, r := range results {
		for _, v := range r.Violated {
			errs = append(errs, fmt.Errorf("%s: an invariant did not hold: %s", r.Policy, v))
		}
	}
	return errors.Join(errs...)
}

func writeReport(name string, s *simulate.Scenario, results []*simulate.Result) error {
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(file)
	return errors.Join(report.Write(w, s, results), w.Flush(), file.Close())
}

// candidates loads the policies that the flags name, else the scenario's.
// Names on the command line are relative to the working directory, the
// scenario's to the scenario.
func (f *simulation) candidates(s *simulate.Scenario) (list []simulate.Candidate, err error) {
	var reloads []*policy.Policy
	for _, r := range s.Reloads {
		p, err := loadOver(s, r.Policy, s.Path)
		if err != nil {
			return nil, err
		}
		reloads = append(reloads, p)
	}
	names, place := slices.Concat(f.policies, f.compare), func(name string) string { return name }
	if len(names) == 0 {
		names, place = s.Policies, s.Path
	}
	var errs []error
	for _, name := range names {
		p, err := loadOver(s, name, place)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		list = append(list, simulate.Candidate{Name: title(name, names), Policy: p, Reloads: reloads})
	}
	return list, errors.Join(errs...)
}

// maxPolicy is how long a policy file may be, in bytes, as everywhere.
const maxPolicy = 1 << 20

// title is a file's name without directory and extension; the whole name where
// that is another's too.
func title(name string, names []string) string {
	short := func(name string) string {
		base := filepath.Base(name)
		return cmp.Or(strings.TrimSuffix(base, filepath.Ext(base)), base)
	}
	if slices.ContainsFunc(names, func(other string) bool { return other != name && short(other) == short(name) }) {
		return name
	}
	return short(name)
}

// loadOver reads a policy, weir's own or a file, with the scenario laid over.
func loadOver(s *simulate.Scenario, name string, place func(string) string) (*policy.Policy, error) {
	if name == "default" || name == "source" {
		data, err := examples.Files.ReadFile("policies/" + name + ".yaml")
		if err != nil {
			return nil, err
		}
		return s.Lay("weir's own "+name+".yaml", data)
	}
	data, err := policy.ReadFile(place(name), maxPolicy)
	if err != nil {
		return nil, fmt.Errorf("policy: %w", err)
	}
	return s.Lay(place(name), data)
}
