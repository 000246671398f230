package examples_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirproxy/weir/authz"
	"github.com/weirproxy/weir/internal/envoytest"
)

const reloadQuotas = `
quotas: [{name: per-tenant, match: {tenant: small}, by: [tenant], limits: [{requests: 1000, per: 10m}]}]
`

// liveFile is the policy file of a running weir with traffic on it.
type liveFile struct {
	*world
	good string
}

func newLiveFile(t *testing.T) (*liveFile, *load) {
	t.Helper()
	w := newWorld(t, newest(t), setup{policy: reloadQuotas})
	good, err := os.ReadFile(w.weir.Config)
	if err != nil {
		t.Fatal(err)
	}
	token := w.token(nil)
	l := w.load(t, 2, func(int) answer { return w.chat(token, 3, false) })
	envoytest.Eventually(t, longest, "traffic", func() bool { return l.count(200) >= 10 })
	return &liveFile{w, string(good)}, l
}

// put replaces the file as an editor does: by a rename.
func (f *liveFile) put(text string) {
	f.t.Helper()
	f.must(os.WriteFile(f.weir.Config+".new", []byte(text), 0o600))
	f.must(os.Rename(f.weir.Config+".new", f.weir.Config))
}

func (f *liveFile) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// refused waits until the file is reported as refused.
func (f *liveFile) refused(what string) {
	f.t.Helper()
	envoytest.Eventually(f.t, longest, what+" is reported", func() bool { return f.metric("weir_policy_last_reload_success") == 0 })
}

// heals puts the good file back.
func (f *liveFile) heals(what string) {
	f.t.Helper()
	f.put(f.good)
	envoytest.Eventually(f.t, longest, "the good file counts after "+what, func() bool { return f.metric("weir_policy_last_reload_success") == 1 })
}

// TestBrokenFilesUnderTraffic (O5): 200 broken files, and things that are no
// file, on a running weir: no request notices, the last good policy stays in
// force, limits included, and the next good file heals.
func TestBrokenFilesUnderTraffic(t *testing.T) {
	f, l := newLiveFile(t)
	inForce := f.admin("/debug/config")
	rng := rand.New(rand.NewPCG(2, 7))
	for range 200 {
		f.put(broken(rng, f.good))
	}
	f.refused("the last broken file")
	if f.admin("/debug/config") != inForce {
		t.Error("a broken file changed the policy in force")
	}
	if n := f.metric("weir_policy_reloads_total", `result="applied"`); n != 0 {
		t.Errorf("%v broken files were applied", n)
	}
	f.heals("200 broken files")
	config := f.weir.Config
	for _, bad := range []struct {
		what string
		make func() error
	}{
		{"a directory", func() error { return os.Mkdir(config, 0o700) }},
		{"a pipe", func() error { return syscall.Mkfifo(config, 0o600) }},
		{"a link to itself", func() error { return os.Symlink(config, config) }},
		{"a device", func() error { return os.Symlink("/dev/zero", config) }},
		{"an empty file", func() error { return os.WriteFile(config, nil, 0o600) }},
		{"64 MiB", func() error { return os.Truncate(config+".big", 64<<20) }},
	} {
		f.must(os.WriteFile(config+".big", []byte("version: 1\n"), 0o600))
		f.must(os.RemoveAll(config))
		f.must(bad.make())
		if bad.what == "64 MiB" {
			f.must(os.Rename(config+".big", config))
		}
		f.refused(bad.what)
		f.must(os.RemoveAll(config))
		f.heals(bad.what)
	}
	l.end()
	l.only(t, 200)
	if l.count(0) > 0 {
		t.Errorf("%d calls broke off", l.count(0))
	}
	if n := f.metric("weir_panics_total"); n != 0 {
		t.Errorf("%v panics", n)
	}
	f.idle(5 * time.Second)
}

// broken makes a policy that must be refused.
func broken(rng *rand.Rand, good string) string {
	lines := strings.Split(strings.TrimRight(good, "\n"), "\n")
	at := rng.IntN(len(lines))
	switch rng.IntN(7) {
	case 0: // wrong type
		return strings.Replace(good, "requests: 1000,", "requests: many,", 1)
	case 1: // a fraction for a whole number
		return strings.Replace(good, "requests: 1000,", "requests: 0.9,", 1)
	case 2: // a duration without unit
		return strings.Replace(good, "per: 10m", "per: 10", 1)
	case 3: // a key twice
		return good + "\nversion: 1\n"
	case 4: // a key misspelt
		return strings.Replace(good, "quotas:", "quotes:", 1)
	case 5: // a key missing
		return strings.Replace(good, "limits: [{requests: 1000, per: 10m}]", "", 1)
	}
	return strings.Join(slices.Insert(lines, at, "\t}{"), "\n") // not YAML
}

// TestConfigMapSwapUnderTraffic: a mounted ConfigMap is swapped by a link; the
// new limit counts within 5 s, and what was used counts on.
func TestConfigMapSwapUnderTraffic(t *testing.T) {
	f, l := newLiveFile(t)
	dir := filepath.Dir(f.weir.Config)
	version := func(n int, text string) {
		name := fmt.Sprintf("..v%d", n)
		f.must(os.Mkdir(filepath.Join(dir, name), 0o700))
		f.must(os.WriteFile(filepath.Join(dir, name, "weir.yaml"), []byte(text), 0o600))
		f.must(os.Symlink(name, filepath.Join(dir, "..tmp")))
		f.must(os.Rename(filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data")))
	}
	version(1, f.good)
	f.must(os.Symlink("..data/weir.yaml", f.weir.Config+".new"))
	f.must(os.Rename(f.weir.Config+".new", f.weir.Config))
	token := f.token(claims{"tenant": "small"})
	for range 3 {
		if a := f.chat(token, 3, false); a.code != http.StatusOK {
			t.Fatalf("%d %s", a.code, a.body)
		}
	}
	for n, limit := range []int{3, 5, 2} {
		version(2+n, strings.Replace(f.good, "requests: 1000,", fmt.Sprintf("requests: %d,", limit), 1))
		// 5 s by the requirement; wide, for a busy machine.
		envoytest.Eventually(t, 10*time.Second, "the new limit is in force", func() bool {
			return strings.Contains(f.admin("/debug/config"), fmt.Sprintf("requests: %d,", limit)) || strings.Contains(f.admin("/debug/config"), fmt.Sprintf("requests: %d\n", limit))
		})
		want := http.StatusTooManyRequests
		if limit > 3 {
			want = http.StatusOK
		}
		if a := f.chat(token, 3, false); a.code != want {
			t.Errorf("call after 3 under a limit of %d: %d, want %d", limit, a.code, want)
		}
	}
	l.end()
	l.only(t, 200)
	f.idle(5 * time.Second)
}

// TestKeyFileRotatesUnderTraffic (K2): a key that is added to the file counts
// within seconds, one that is taken out no longer does, a file of garbage
// changes nothing, and a policy that names another file makes that one count.
func TestKeyFileRotatesUnderTraffic(t *testing.T) {
	w := newWorld(t, newest(t), setup{})
	jwks := filepath.Join(w.dir, "jwks.json")
	oldToken := w.token(nil)
	private, public, err := authz.GenerateKey("ES256", "")
	if err != nil {
		t.Fatal(err)
	}
	if w.signer, err = authz.NewSigner(private, ""); err != nil {
		t.Fatal(err)
	}
	newToken := w.token(nil)
	code := func(token string) int { return w.chat(token, 2, false).code }
	if before, after := code(oldToken), code(newToken); before != 200 || after != 401 {
		t.Fatalf("at the start: %d and %d, want 200 and 401", before, after)
	}
	place := func(path string, data []byte) {
		t.Helper()
		if err := os.WriteFile(path+".new", data, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	place(jwks, []byte(`{"keys": [{"kty": "oct"`))
	envoytest.Eventually(t, longest, "the broken key file is told", func() bool { return strings.Contains(w.weir.Log(), "key file refused") })
	if c := code(oldToken); c != 200 {
		t.Errorf("with a broken key file: %d, want the old keys", c)
	}
	place(jwks, public)
	envoytest.Eventually(t, longest, "the new key counts and the old one does not", func() bool { return code(newToken) == 200 && code(oldToken) == 401 })
	config, err := os.ReadFile(w.weir.Config)
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(w.dir, "other.json")
	_, third, err := authz.GenerateKey("EdDSA", "")
	if err != nil {
		t.Fatal(err)
	}
	place(other, third)
	place(w.weir.Config, []byte(strings.Replace(string(config), jwks, other, 1)))
	envoytest.Eventually(t, longest, "the other file, with another key, counts", func() bool { return code(newToken) == 401 })
	place(other, public)
	envoytest.Eventually(t, longest, "the other file is watched", func() bool { return code(newToken) == 200 })
}
