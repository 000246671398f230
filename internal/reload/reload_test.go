package reload

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weirproxy/weir/policy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const good = `version: 1
identity: {issuers: [{issuer: https://id.example, audiences: [llm], jwks: {file: jwks.json}}]}
models: [{name: m, pools: [p]}]
pools: [{name: p, variant: fp16, seats: {requests: 100}}]
`

// patience bounds each wait for something that must happen.
const patience = 20 * time.Second

// house is a policy file that is watched.
type house struct {
	t       *testing.T
	holder  *policy.Holder
	reports chan Report
	log     bytes.Buffer // read it after stop only
	stop    func()
}

func watchFile(t *testing.T, path string, poll time.Duration) *house {
	t.Helper()
	p, err := policy.LoadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	h := &house{t: t, holder: policy.NewHolder(p), reports: make(chan Report, 1000)}
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		first := true
		Policy(ctx, Options{
			Path: path, Holder: h.holder, Poll: poll,
			Log:    slog.New(slog.NewTextHandler(&h.log, nil)),
			Report: func(r Report) { h.reports <- r },
			Load: func(path string) (*policy.Policy, error) {
				if first {
					first = false
					defer close(ready)
				}
				return policy.LoadFile(path)
			},
		})
	}()
	h.stop = func() { cancel(); <-done }
	t.Cleanup(h.stop)
	<-ready // the directory is watched
	return h
}

func (h *house) next() Report {
	h.t.Helper()
	select {
	case r := <-h.reports:
		return r
	case <-time.After(patience):
		h.t.Fatal("nothing was reported")
		return Report{}
	}
}

// until waits for the seats of the policy in force.
func (h *house) until(seats int64) Report {
	h.t.Helper()
	for {
		r := h.next()
		if h.holder.Current().Pools[0].Seats.Requests == seats {
			return r
		}
	}
}

func withSeats(n int) string {
	return strings.Replace(good, "requests: 100", fmt.Sprintf("requests: %d", n), 1)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

func TestPlainWriteAndRename(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weir.yaml")
	write(t, path, good)
	h := watchFile(t, path, time.Hour) // events alone
	write(t, path, withSeats(10))
	if r := h.until(10); !r.Changed() || r.Err != nil || r.Restart != nil {
		t.Errorf("%+v", r)
	}
	write(t, path+".new", withSeats(11))
	rename(t, path+".new", path)
	h.until(11)
}

// A mounted ConfigMap: weir.yaml -> ..data/weir.yaml, ..data -> a directory
// with a time stamp; the kubelet swaps ..data by a rename.
func TestConfigMapSwap(t *testing.T) {
	dir := t.TempDir()
	version := func(name, text string) {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, name, "weir.yaml"), text)
	}
	link := func(to, name string) {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	version("..1", good)
	link("..1", "..data")
	link("..data/weir.yaml", "weir.yaml")
	h := watchFile(t, filepath.Join(dir, "weir.yaml"), time.Hour)
	for i := 2; i < 5; i++ {
		version(fmt.Sprintf("..%d", i), withSeats(i))
		link(fmt.Sprintf("..%d", i), "..data_tmp")
		rename(t, filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data"))
		if err := os.RemoveAll(filepath.Join(dir, fmt.Sprintf("..%d", i-1))); err != nil {
			t.Fatal(err)
		}
		h.until(int64(i))
	}
}

func TestDeleteAndCreateAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "conf")
	path := filepath.Join(dir, "weir.yaml")
	create := func(text string) {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, path, text)
	}
	create(good)
	h := watchFile(t, path, 50*time.Millisecond)
	before := h.holder.Current()
	for i := 2; i < 4; i++ {
		if err := os.RemoveAll(dir); err != nil { // the watch goes with it
			t.Fatal(err)
		}
		r := h.next()
		for r.Err == nil {
			r = h.next()
		}
		if h.holder.Current() != before {
			t.Fatal("the last good policy is gone")
		}
		create(withSeats(i))
		h.until(int64(i))
		before = h.holder.Current()
	}
}

func TestPollAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	changed := make(chan struct{}, 10)
	ctx, cancel := context.WithCancel(t.Context())
	started, done := make(chan struct{}), make(chan struct{})
	w := watch{paths: []string{path}, poll: 10 * time.Millisecond, noHint: true, log: slog.New(slog.DiscardHandler)}
	go func() {
		defer close(done)
		w.run(ctx, func() { close(started) }, func() { changed <- struct{}{} })
	}()
	<-started
	write(t, path, "x")
	select {
	case <-changed:
	case <-time.After(patience):
		t.Error("not found")
	}
	cancel()
	<-done
}

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	write(t, a, "1")
	changed := make(chan struct{}, 10)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		Files(ctx, []string{a, b}, func() { changed <- struct{}{} })
	}()
	heard := func(what string) {
		t.Helper()
		select {
		case <-changed:
		case <-time.After(patience):
			t.Fatal("not found: ", what)
		}
	}
	heard("the beginning, for what changed before it")
	for i, path := range []string{b, a, b} {
		write(t, path, fmt.Sprint("new", i))
		heard(path)
	}
	cancel()
	<-done
}

// O5: a bad file keeps the last good policy, is reported once, and limits do
// not vanish; a good one heals.
func TestBadFileKeepsLastGood(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weir.yaml")
	write(t, path, good)
	h := watchFile(t, path, time.Hour)
	before := h.holder.Current()
	write(t, path, good+"quotes: []\n")
	r := h.next()
	if r.Err == nil || !strings.Contains(r.Err.Error(), "weir.yaml:5:1: quotes: unknown key; did you mean quotas?") {
		t.Errorf("%v", r.Err)
	}
	if r.Changed() || h.holder.Current() != before {
		t.Error("the last good policy is gone")
	}
	write(t, path, good)
	if r := h.next(); r.Err != nil || r.Changed() {
		t.Errorf("back to the same content: %+v", r)
	}
	h.stop()
	if n := strings.Count(h.log.String(), "level=ERROR"); n != 1 {
		t.Errorf("%d error lines, want 1:\n%s", n, h.log.String())
	}
}

// What cannot follow a policy keeps it out.
func TestApplyRefuses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weir.yaml")
	write(t, path, good)
	p, err := policy.LoadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, withSeats(9))
	holder := policy.NewHolder(p)
	ctx, cancel := context.WithCancel(t.Context())
	refused := errors.New("no such key file")
	Policy(ctx, Options{
		Path: path, Holder: holder,
		Apply: func(next *policy.Policy) error {
			if holder.Current() != p || next.Pools[0].Seats.Requests != 9 {
				t.Error("applied late, or another policy")
			}
			return refused
		},
		Report: func(r Report) {
			if !errors.Is(r.Err, refused) || r.Changed() {
				t.Errorf("%+v", r)
			}
			cancel()
		},
	})
	if holder.Current() != p {
		t.Error("in force all the same")
	}
}

// Changes of server and store wait for a restart, the rest is taken.
func TestRestartSections(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weir.yaml")
	write(t, path, good+"profiles: {edge: {mode: shadow}}\n")
	h := watchFile(t, path, time.Hour)
	write(t, path, withSeats(7)+"profiles: {edge: {mode: pass}}\nserver: {replicas: 3, drain: 1s}\nstore: {redis: {addresses: [\"r:1\"]}}\n")
	r := h.until(7)
	if !slices.Equal(r.Restart, []string{"server", "store"}) {
		t.Errorf("restart: %v", r.Restart)
	}
	p := h.holder.Current()
	if p.Server.Replicas != 1 || p.Server.Drain != 25*time.Second || p.Store.Redis != nil {
		t.Errorf("%+v %+v", p.Server, p.Store)
	}
	e, err := p.For(policy.Overrides{Profile: "edge"})
	if err != nil || e.Server.Replicas != 1 || e.ModeOf(policy.Batch) != policy.Pass {
		t.Errorf("%v %+v", err, e)
	}
	// The new limit needs a body limit that is not in force yet.
	write(t, path, withSeats(8)+"server: {maxBody: 1MiB}\nqueue: {maxHeldBytes: 2MiB}\n")
	if r := h.next(); r.Err == nil || !strings.Contains(r.Err.Error(), "queue.maxHeldBytes: must hold one body at least: server.maxBody is 4MiB") {
		t.Errorf("%+v", r)
	}
}

// A file that changed between the process's own reading and the watch.
func TestChangedBeforeTheWatch(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weir.yaml")
	write(t, path, good)
	p, err := policy.LoadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, withSeats(9))
	holder := policy.NewHolder(p)
	ctx, cancel := context.WithCancel(t.Context())
	Policy(ctx, Options{Path: path, Holder: holder, Report: func(Report) { cancel() }})
	if n := holder.Current().Pools[0].Seats.Requests; n != 9 {
		t.Errorf("seats %d, want 9", n)
	}
}

// 200 mutated files, one after the other under a running watch: the process
// lives, what is in force is always a policy that passed, and the last file
// wins.
func TestMutatedFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weir.yaml")
	write(t, path, good)
	h := watchFile(t, path, 20*time.Millisecond)
	rng := rand.New(rand.NewPCG(3, 14))
	for range 200 {
		write(t, path+".new", mutate(rng, good))
		rename(t, path+".new", path)
		if p := h.holder.Current(); len(p.Pools) == 0 || p.Pools[0].Seats.Requests < 1 {
			t.Fatalf("in force: %s", p.Dump())
		}
	}
	write(t, path, withSeats(42))
	h.until(42)
}

// mutate breaks a file as hands and templates do.
func mutate(rng *rand.Rand, text string) string {
	lines := strings.Split(text, "\n")
	at := rng.IntN(len(lines) - 1)
	switch rng.IntN(8) {
	case 0: // wrong type
		return strings.Replace(text, "requests: 100", "requests: many", 1)
	case 1: // a fraction for a whole number
		return strings.Replace(text, "requests: 100", "requests: 0.9", 1)
	case 2: // a line lost
		return strings.Join(slices.Delete(lines, at, at+1), "\n")
	case 3: // a line twice
		return strings.Join(slices.Insert(lines, at, lines[at]), "\n")
	case 4: // cut
		return text[:rng.IntN(len(text))]
	case 5: // a byte changed
		b := []byte(text)
		b[rng.IntN(len(b))] = byte(rng.IntN(256))
		return string(b)
	case 6: // a key misspelt
		return strings.Replace(text, "models", "modles", 1)
	}
	return withSeats(1 + rng.IntN(50)) // good
}
