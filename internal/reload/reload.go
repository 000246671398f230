// Package reload watches files and puts a changed policy in force.
//
// It watches directories, not files: Kubernetes swaps the symbolic link
// "..data" of a mounted ConfigMap, and editors rename, so that a watch on the
// file itself would stay on what is no longer there. Events are a hint only;
// what counts is the content, read again after a short quiet time and every
// few seconds in any case (inotify(7): events may be lost, network file
// systems send none).
//
// Invariants: a file that cannot be read or does not pass keeps the last good
// policy (mechanism O5) and is reported once for each content. Sections that
// need a restart keep the values of the start. Policy and Files return only
// after ctx ends, with all their goroutines gone.
package reload

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/weirproxy/weir/policy"
)

// Options say what Policy watches and whom it tells.
type Options struct {
	Path   string         // the policy file
	Holder *policy.Holder // holds a policy already
	// Load reads the file; nil = policy.LoadFile.
	Load func(path string) (*policy.Policy, error)
	// Apply makes what depends on a policy follow, just before it comes into
	// force; an error keeps the old one, and Apply must have left everything
	// as it was. nil = nothing to do.
	Apply func(next *policy.Policy) error
	// Report hears of each attempt, after the holder was swapped; nil = nobody.
	Report func(Report)
	Log    *slog.Logger  // nil = silent
	Poll   time.Duration // safety net; <= 0 = 5s
}

// Report is one attempt at a changed file.
type Report struct {
	Old     *policy.Policy // in force before
	New     *policy.Policy // in force now; Old itself after an error or where nothing that counts changed
	Restart []string       // sections whose change needs a restart: "server", "store"
	Err     error          // why the file is not in force
}

// Changed reports whether another policy came into force.
func (r *Report) Changed() bool { return r.Old != r.New }

// Policy keeps o.Holder up to date until ctx ends. A file that changed before
// the watch began is found at once.
func Policy(ctx context.Context, o Options) {
	if o.Load == nil {
		o.Load = func(path string) (*policy.Policy, error) { return policy.LoadFile(path) }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	w := watch{paths: []string{o.Path}, poll: o.Poll, log: o.Log}
	w.run(ctx, func() { o.attempt(true) }, func() { o.attempt(false) })
}

// attempt loads the file and swaps. The first one, at the start, is quiet
// where nothing changed since the process read the file.
func (o *Options) attempt(first bool) {
	r := Report{Old: o.Holder.Current()}
	r.New = r.Old
	next, err := o.Load(o.Path)
	if err == nil {
		next, r.Restart, err = next.WithRunning(r.Old)
	}
	changed := err == nil && next.Hash != r.Old.Hash
	if changed && o.Apply != nil {
		err = o.Apply(next)
	}
	switch {
	case err != nil:
		r.Err = fmt.Errorf("policy not reloaded: %w", err)
		o.Log.Error("policy not reloaded, the last good one stays", "file", o.Path, "policy", r.Old.Hash,
			"violations", violations(err), "restart", r.Restart, "error", summary(err))
	case !changed:
		if first && r.Restart == nil {
			return
		}
		o.Log.Info("policy file changed, the policy in force did not", "file", o.Path, "policy", r.Old.Hash, "restart", r.Restart)
	default:
		r.New = next
		o.Holder.Swap(next)
		o.Log.Info("policy reloaded", "file", o.Path, "policy", next.Hash, "before", r.Old.Hash, "restart", r.Restart)
	}
	if o.Report != nil {
		o.Report(r)
	}
}

func violations(err error) int {
	var errs policy.Errors
	if errors.As(err, &errs) {
		return len(errs)
	}
	return 1
}

// summary keeps a log line short: the first ten violations.
func summary(err error) string {
	const most = 10
	lines := strings.Split(err.Error(), "\n")
	if len(lines) > most {
		lines = append(lines[:most], fmt.Sprintf("and %d more", len(lines)-most))
	}
	return strings.Join(lines, "; ")
}

// Files calls changed each time the content of one of the files changed,
// until ctx ends: key sets, certificates, secrets. A file that goes away or
// comes counts as changed. It calls once as the watch begins, for what changed
// since the caller read the files.
func Files(ctx context.Context, paths []string, changed func()) {
	w := watch{paths: paths, log: slog.New(slog.DiscardHandler)}
	w.run(ctx, changed, changed)
}
