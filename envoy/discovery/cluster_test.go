package discovery

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/weirproxy/weir/policy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func hosts(v View) []string {
	var out []string
	for _, e := range v.Endpoints {
		out = append(out, e.Address.String())
	}
	return out
}

func start(t *testing.T, e *policy.Endpoints, o Options) *Cluster {
	t.Helper()
	c, err := New(e, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); c.Run(ctx) }()
	t.Cleanup(func() { stop(); <-done })
	synctest.Wait()
	return c
}

func TestFileIsFollowedAndKeptWhenItBreaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "hosts.yaml")
		write(t, file, "- 10.0.0.2:80\n- 10.0.0.1:80\n")
		var changes atomic.Int64
		c := start(t, &policy.Endpoints{Priorities: []policy.EndpointSet{
			{Region: "a", File: file, Every: time.Second},
			{Region: "b", Static: []string{"10.9.0.1:80", "10.0.0.1:80"}},
		}}, Options{Changed: func() { changes.Add(1) }})

		v := c.View()
		want := []Endpoint{
			{Address: netip.MustParseAddrPort("10.0.0.1:80"), Region: "a"},
			{Address: netip.MustParseAddrPort("10.0.0.2:80"), Region: "a"},
			{Address: netip.MustParseAddrPort("10.9.0.1:80"), Region: "b", Priority: 1},
		}
		if !slices.Equal(v.Endpoints, want) || len(v.Unread) != 0 || changes.Load() != 1 {
			t.Fatalf("%+v after %d changes, want %+v after 1 (an address stands once, under the first priority)", v, changes.Load(), want)
		}

		write(t, file, "- 10.0.0.1:80\n- model:80\n")
		time.Sleep(3500 * time.Millisecond)
		synctest.Wait()
		if got := c.View(); got.Version != v.Version || c.Failures() != 3 {
			t.Errorf("a broken file: version %d, %d failures, want %d and 3", got.Version, c.Failures(), v.Version)
		}
		p := c.Problems()
		if len(p) != 1 || p[0].Source != "file "+file || !strings.Contains(p[0].Err.Error(), file+":2: address") || time.Since(p[0].Since) != 2500*time.Millisecond {
			t.Errorf("problems %+v", p)
		}

		_ = os.Remove(file)
		time.Sleep(time.Second)
		synctest.Wait()
		if got := c.View(); got.Version != v.Version {
			t.Errorf("a file that is gone took the endpoints with it")
		}

		write(t, file, "[]")
		time.Sleep(time.Second)
		synctest.Wait()
		if got := hosts(c.View()); !slices.Equal(got, []string{"10.0.0.1:80", "10.9.0.1:80"}) || len(c.Problems()) != 0 || changes.Load() != 2 {
			t.Errorf("after []: %v, problems %v, %d changes", got, c.Problems(), changes.Load())
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if changes.Load() != 2 {
			t.Errorf("%d changes of a file that stays", changes.Load())
		}
	})
}

func TestDNSKeepsTheLastGoodAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type answer struct {
			ips []netip.Addr
			err error
		}
		var next atomic.Pointer[answer]
		set := func(err error, ips ...string) {
			a := &answer{err: err}
			for _, s := range ips {
				a.ips = append(a.ips, netip.MustParseAddr(s))
			}
			next.Store(a)
		}
		var hang atomic.Bool
		resolve := func(ctx context.Context, host string) ([]netip.Addr, error) {
			if host != "models.example" {
				t.Errorf("asked for %q", host)
			}
			if hang.Load() {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			a := next.Load()
			return a.ips, a.err
		}
		set(errors.New("SERVFAIL"))
		c := start(t, &policy.Endpoints{Priorities: []policy.EndpointSet{{DNS: "models.example:8000", Every: 5 * time.Second}}}, Options{Resolve: resolve})
		if v := c.View(); v.Version != 0 || !slices.Equal(v.Unread, []int{0}) || len(v.Endpoints) != 0 {
			t.Fatalf("before any answer: %+v, want nothing known", v)
		}
		next5 := func() View { time.Sleep(5 * time.Second); synctest.Wait(); return c.View() }

		set(nil, "10.0.0.2", "10.0.0.1", "::ffff:10.0.0.2")
		if v := next5(); v.Version != 1 || !slices.Equal(hosts(v), []string{"10.0.0.1:8000", "10.0.0.2:8000"}) {
			t.Errorf("%+v", v)
		}
		set(nil, "10.0.0.1", "10.0.0.2")
		if v := next5(); v.Version != 1 {
			t.Error("the order of an answer is no change")
		}
		set(nil)
		if v := next5(); v.Version != 1 || c.Failures() != 2 {
			t.Errorf("an answer without addresses: version %d, %d failures, want 1 and 2", v.Version, c.Failures())
		}
		hang.Store(true)
		next5()
		if v := next5(); v.Version != 1 || c.Failures() < 3 || !errors.Is(c.Problems()[0].Err, context.DeadlineExceeded) {
			t.Errorf("a resolver that hangs: version %d, %d failures, %v", v.Version, c.Failures(), c.Problems())
		}
		hang.Store(false)
		set(nil, "10.0.0.3")
		if v := next5(); !slices.Equal(hosts(v), []string{"10.0.0.3:8000"}) {
			t.Errorf("%v", hosts(v))
		}
	})
}

func TestSliceFileBecomesAView(t *testing.T) {
	file := filepath.Join(t.TempDir(), "slices.yaml")
	write(t, file, oneSlice)
	c, err := New(&policy.Endpoints{Priorities: []policy.EndpointSet{{Region: "eu-1", Slices: file, Port: "http"}}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	c.Read(t.Context())
	v := c.View()
	if len(v.Endpoints) != 5 || v.Version != 1 {
		t.Fatalf("%+v", v)
	}
	zones := map[string]string{}
	for _, e := range v.Endpoints {
		zones[e.Address.Addr().String()] = e.Region + "/" + e.Zone + "/" + e.Health.String()
	}
	if zones["10.1.0.1"] != "eu-1/eu-1a/healthy" || zones["10.1.0.2"] != "eu-1/eu-1b/draining" || zones["10.1.0.3"] != "eu-1//unhealthy" {
		t.Errorf("%v", zones)
	}
}

func TestFilesAreBounded(t *testing.T) {
	file := filepath.Join(t.TempDir(), "big.yaml")
	write(t, file, "[]\n#"+strings.Repeat("x", maxFile))
	_, err := fromFile(t.Context(), file, func([]byte) ([]Endpoint, error) { t.Error("parsed"); return nil, nil })
	if err == nil || !strings.Contains(err.Error(), "at most") {
		t.Error(err)
	}
	if _, err := parseList("f", []byte(strings.Repeat("- 1.1.1.1:1\n", maxEndpoints+1))); err == nil || !strings.Contains(err.Error(), "at most 10000 endpoints (got 10001)") {
		t.Error(err)
	}
}

// A file in the middle of being written is not taken for a shorter list.
func TestHalfAFileIsNotTaken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "hosts.yaml")
	write(t, file, "")
	started, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for i, part := range []string{"- 10.0.0.1:80\n", "- 10.0.0.2:80", "80\n"} {
			f, err := os.OpenFile(file, os.O_WRONLY|os.O_APPEND, 0)
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = f.WriteString(part)
			_ = f.Close()
			if i == 0 {
				close(started)
			}
			<-time.After(10 * time.Millisecond) // a writer that takes its time
		}
	}()
	<-started
	c, err := New(&policy.Endpoints{Priorities: []policy.EndpointSet{{File: file}}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	c.Read(t.Context())
	<-done
	if got := hosts(c.View()); !slices.Equal(got, []string{"10.0.0.1:80", "10.0.0.2:8080"}) {
		t.Errorf("%v, %v", got, c.Problems())
	}
}

func TestNewRefusesWhatPolicyLetsThrough(t *testing.T) {
	for set, want := range map[*policy.EndpointSet]string{
		{Static: []string{"model:80"}}: "priorities[0]: static must be ip:port",
		{DNS: "model"}:                 "priorities[0]: dns must be host:port",
	} {
		if _, err := New(&policy.Endpoints{Priorities: []policy.EndpointSet{*set}}, Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
