package discovery

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/policy"
)

// Files that are large, deep, or refer to themselves: refused soon, with the
// file's name and bounded words, and without taking the memory that they would.
func TestHostileFiles(t *testing.T) {
	half := maxFile / 2
	for _, c := range []struct{ name, text, want string }{
		{"lines", strings.Repeat("- a\n", half/4), "must have at most 600000 lines and commas"},
		{"one line", "[" + strings.Repeat("a,", half) + "a]", "must have at most 600000 lines and commas"},
		{"documents", strings.Repeat("---\na\n", half/6), "must have at most 600000 lines and commas"},
		{"deep", strings.Repeat("[", half), "exceeded max depth"},
		{"deep maps", strings.Repeat("{a: ", half/4), "exceeded max depth"},
		{"deep lists", strings.Repeat("- ", half/2), "exceeded max depth"},
		{"one long word", strings.Repeat("a", 1<<20), "must be"},
		{"a long address", "- " + strings.Repeat("a", 1<<20), "must be"},
		{"a long health", "- {address: 1.1.1.1:1, health: " + strings.Repeat("a", 1<<20) + "}", "must be"},
		{"a long key", "- {? " + strings.Repeat("a", 1<<20) + " : b}", ""},
		{"a long kind", "kind: " + strings.Repeat("a", 1<<20), "must be"},
		{"a long type", "{kind: EndpointSlice, addressType: " + strings.Repeat("a", 1<<20) + "}", "must be"},
		{"a long IP", "{kind: EndpointSlice, addressType: IPv4, ports: [{port: 1}], endpoints: [{addresses: [" + strings.Repeat("a", 1<<20) + "]}]}", "must be"},
		{"a long port", "{kind: EndpointSlice, addressType: IPv4, ports: [{port: " + strings.Repeat("a", 1<<20) + "}]}", ""},
		{"itself", "&a [*a, *a]", ""},
		{"a bomb", "- &a [x,x,x,x,x,x,x,x]\n- &b [*a,*a,*a,*a,*a,*a,*a,*a]\n- &c [*b,*b,*b,*b,*b,*b,*b,*b]\n- &d [*c,*c,*c,*c,*c,*c,*c,*c]\n- [*d,*d,*d,*d,*d,*d,*d,*d,*d]\n", "must be"},
		{"control characters", "- \"10.0.0.1:80\\n- 10.0.0.2:80\"\n", "must be"},
		{"a name with some", "- {address: \"\\x1b[2J10.0.0.1:80\"}\n", "must be"},
		{"zeros", strings.Repeat("\x00", half), "control characters are not allowed"},
		{"no text", "\xff\xfe\xfd", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, parse := range []func() ([]Endpoint, error){
				func() ([]Endpoint, error) { return parseList("hosts", []byte(c.text)) },
				func() ([]Endpoint, error) { return parseSlices("hosts", []byte(c.text), "") },
			} {
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				began := time.Now()
				list, err := parse()
				took := time.Since(began)
				runtime.ReadMemStats(&after)
				if err == nil || list != nil || !strings.HasPrefix(err.Error(), "hosts:") || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%.300s", fmt.Sprint(err))
					continue
				}
				if size := len(err.Error()); size > 1000 {
					t.Errorf("words of %d bytes", size)
				}
				if strings.ContainsAny(err.Error(), "\x1b\x00") {
					t.Errorf("control characters in %q", err)
				}
				if mb := (after.TotalAlloc - before.TotalAlloc) >> 20; mb > 256 || took > 5*time.Second {
					t.Errorf("it took %d MB and %v", mb, took)
				}
			}
		})
	}
}

// 10,000 endpoints in one slice are read, one more is not.
func TestLargeSlices(t *testing.T) {
	for _, n := range []int{maxEndpoints, maxEndpoints + 1} {
		var b strings.Builder
		b.WriteString("kind: EndpointSlice\naddressType: IPv4\nports: [{name: http, port: 8000}]\nendpoints:\n")
		for i := range n {
			fmt.Fprintf(&b, "- addresses:\n  - 10.%d.%d.%d\n  conditions:\n    ready: true\n    serving: true\n    terminating: false\n  nodeName: node-%d\n"+
				"  targetRef:\n    kind: Pod\n    name: pod-%d\n    namespace: default\n    uid: 7b0c2d7e-0000-0000-0000-000000000000\n  zone: z%d\n", i>>16, i>>8&255, i&255, i, i, i%3)
		}
		list, err := parseSlices("s", []byte(b.String()), "http")
		if n > maxEndpoints {
			if err == nil || !strings.Contains(err.Error(), "must have at most 10000 endpoints") {
				t.Errorf("%d: %v", n, err)
			}
			continue
		}
		if err != nil || len(list) != n {
			t.Errorf("%d of %d, %v", len(list), n, err)
		}
	}
	for _, zone := range []string{"a\x1b[2J", "a\x00", strings.Repeat("z", 300)} {
		_, err := parseSlices("s", []byte(fmt.Sprintf("{kind: EndpointSlice, addressType: IPv4, ports: [{port: 1}], endpoints: [{addresses: [10.0.0.1], zone: %q}]}", zone)), "")
		if err == nil || !strings.Contains(err.Error(), "s:1: zone must have at most 256 bytes without control characters") {
			t.Errorf("%q: %v", zone, err)
		}
	}
}

// What is no plain file, and one of 100 MB: refused at once, the last good list
// stays, and the next good file is taken.
func TestFilesThatAreNone(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "hosts")
	old := time.Now().Add(-time.Hour)
	good := func(host string) {
		t.Helper()
		write(t, name+".new", "- "+host+"\n")
		if err := os.Chtimes(name+".new", old, old); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(name+".new", name); err != nil {
			t.Fatal(err)
		}
	}
	good("10.0.0.1:80")
	c, err := New(&policy.Endpoints{Priorities: []policy.EndpointSet{{File: name}}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	c.Read(t.Context())
	for i, bad := range []struct {
		put  func() error
		want string
	}{
		{func() error { return syscall.Mkfifo(name, 0o600) }, "must be a file (is p"},
		{func() error { return os.Mkdir(name, 0o700) }, "must be a file (is d"},
		{func() error { return os.Symlink("/dev/zero", name) }, "must be a file (is D"},
		{func() error { return os.Symlink(name, name) }, "too many levels"},
		{func() error {
			f, err := os.Create(name)
			if err != nil {
				return err
			}
			defer f.Close()
			return f.Truncate(100 << 20)
		}, "must be at most"},
	} {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
		if err := bad.put(); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		c.Read(t.Context())
		if p := c.Problems(); len(p) != 1 || !strings.Contains(p[0].Err.Error(), bad.want) {
			t.Errorf("%d: %+v, want %s", i, p, bad.want)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("%d: it took %v", i, took)
		}
		if got := hosts(c.View()); !slices.Equal(got, []string{"10.0.0.1:80"}) {
			t.Errorf("%d: %v", i, got)
		}
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	good("10.0.0.2:80")
	c.Read(t.Context())
	if got := hosts(c.View()); !slices.Equal(got, []string{"10.0.0.2:80"}) || len(c.Problems()) != 0 {
		t.Errorf("%v, %+v", got, c.Problems())
	}
}

// A link is swapped all the time, as a ConfigMap's is: each view is one of the
// two lists, never a mixture and never empty.
func TestLinkIsSwapped(t *testing.T) {
	dir := t.TempDir()
	lists := [2][]string{}
	old := time.Now().Add(-time.Hour)
	for i := range lists {
		var b strings.Builder
		for j := range 200 + 50*i {
			host := fmt.Sprintf("10.%d.0.%d:80", i, j)
			lists[i] = append(lists[i], host)
			b.WriteString("- " + host + "\n")
		}
		name := filepath.Join(dir, fmt.Sprint(i))
		write(t, name, b.String())
		if err := os.Chtimes(name, old, old.Add(time.Duration(i)*time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(dir, "hosts")
	if err := os.Symlink("0", link); err != nil {
		t.Fatal(err)
	}
	c, err := New(&policy.Endpoints{Priorities: []policy.EndpointSet{{File: link}}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	c.Read(t.Context())
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for i := 1; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			if err := os.Symlink(fmt.Sprint(i%2), link+".new"); err != nil {
				t.Error(err)
				return
			}
			if err := os.Rename(link+".new", link); err != nil {
				t.Error(err)
				return
			}
			<-time.After(200 * time.Microsecond) // the reader sees some of the swaps
		}
	}()
	seen := map[int]bool{}
	for range 300 {
		c.Read(t.Context())
		got := hosts(c.View())
		slices.SortFunc(got, func(a, b string) int { return netip.MustParseAddrPort(a).Compare(netip.MustParseAddrPort(b)) })
		if !slices.Equal(got, lists[0]) && !slices.Equal(got, lists[1]) {
			t.Fatalf("a mixture of %d hosts", len(got))
		}
		seen[len(got)] = true
	}
	close(stop)
	<-ended
	if len(seen) != 2 {
		t.Errorf("%v: one of the lists was never seen", seen)
	}
}

// A resolver that does not answer: given up within its interval, the last good
// answer stays, other sources are read meanwhile, and the end is at once.
func TestDNSHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs := false
		c, err := New(&policy.Endpoints{Priorities: []policy.EndpointSet{{DNS: "m:80", Every: 30 * time.Second}, {DNS: "o:80", Every: time.Second}}}, Options{
			Resolve: func(ctx context.Context, host string) ([]netip.Addr, error) {
				if hangs && host == "m" {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				if host == "m" {
					return []netip.Addr{netip.MustParseAddr("10.0.0.1")}, nil
				}
				return []netip.Addr{netip.AddrFrom4([4]byte{10, 9, 0, byte(time.Now().Second())})}, nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		c.Read(t.Context())
		hangs = true
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); c.Run(ctx) }()
		time.Sleep(6 * time.Second)
		synctest.Wait()
		if p := c.Problems(); len(p) != 1 || p[0].Source != "dns m:80" {
			t.Errorf("%+v", p)
		}
		v := c.View()
		if len(v.Endpoints) != 2 || v.Endpoints[0].Address.String() != "10.0.0.1:80" || v.Version < 6 {
			t.Errorf("%+v", v)
		}
		time.Sleep(25 * time.Second) // it hangs again
		began := time.Now()
		stop()
		<-ended
		if took := time.Since(began); took > 0 {
			t.Errorf("the end took %v", took)
		}
	})
}
