package xds

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/weirproxy/weir/envoy/discovery"
	"github.com/weirproxy/weir/envoy/protect"
)

func override(cluster string, requests int64) protect.Settings {
	return protect.Settings{Cluster: cluster, MaxRequests: n(requests)}
}

// saved is a book with everything, and the state that it leaves.
func saved(t *testing.T) (*book, *state) {
	t.Helper()
	b := newBook("old", nil)
	v := view(3, "10.0.0.1:80", "10.9.0.1:80@1")
	v.Endpoints[1].Health, v.Endpoints[1].Zone, v.Endpoints[1].Region, v.Endpoints[1].Weight = discovery.Degraded, "z", "r", 5
	s := override("m", 6)
	s.Drop, s.Maintenance = 30, 10
	snap := &Snapshot{Settings: []protect.Settings{s, override("plain", 7), {Cluster: "calm"}}, Endpoints: map[string]discovery.View{"m": v, "calm": view(1, "10.1.0.1:80")}}
	set(t, b, t0, snap)
	return b, b.save(t0)
}

func reborn(t *testing.T, s *state) *book {
	t.Helper()
	b := newBook("new", nil)
	if err := b.inherit(s, t0.Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestStateComesBackEqual(t *testing.T) {
	dir := t.TempDir()
	old, s := saved(t)
	if err := s.write(dir); err != nil {
		t.Fatal(err)
	}
	got, err := readState(dir)
	if err != nil {
		t.Fatal(err)
	}
	b := reborn(t, got)
	for name, r := range old.records {
		is := b.records[name]
		if r.served && (is == nil || !proto.Equal(r.resource, is.resource)) {
			t.Errorf("%s: %v, want %v: what is equal sends nothing and drains nothing", name, is, r.resource)
		}
	}
	if got, want := b.layer(everybody), old.layer(everybody); len(got) != len(want) || got["circuit_breakers.m.default.max_requests"] != 6 || got["upstream.maintenance_mode.m"] != 10 {
		t.Errorf("%v, want %v", got, want)
	}
	if got := b.inherited(); !slices.Equal(got, []string{"m", "plain"}) {
		t.Errorf("inherited %v", got)
	}
	if _, err := os.Stat(filepath.Join(dir, stateFile+".tmp")); !os.IsNotExist(err) {
		t.Errorf("a temporary file stays: %v", err)
	}
}

// Half a file, at any length, and any flipped byte: refused, with a reason.
func TestBrokenStateIsRefused(t *testing.T) {
	dir := t.TempDir()
	_, s := saved(t)
	if err := s.write(dir); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, stateFile))
	if err != nil {
		t.Fatal(err)
	}
	for i := range text {
		if _, err := parseState(text[:i]); err == nil {
			t.Fatalf("half a file (%d of %d bytes) was taken", i, len(text))
		}
		flipped := bytes.Clone(text)
		flipped[i] ^= 4
		if _, err := parseState(flipped); err == nil {
			t.Fatalf("a file with byte %d changed was taken", i)
		}
	}
	for _, bad := range []stateCluster{
		{Name: ""}, {Name: "m", Drop: 101}, {Name: "m", Runtime: map[string]int64{"circuit_breakers.other.default.max_requests": 1}},
		{Name: "m", Runtime: map[string]int64{"circuit_breakers.m.default.max_requests": -1}}, {Name: "m", Endpoints: []stateEndpoint{{}}},
		{Name: "m", Endpoints: []stateEndpoint{{Address: view(1, "1.1.1.1:1").Endpoints[0].Address, Priority: 1 << 30}}},
		{Name: "m", Endpoints: []stateEndpoint{{Address: view(1, "1.1.1.1:1").Endpoints[0].Address, Health: "ill"}}},
	} {
		b := newBook("i", nil)
		if err := b.inherit(&state{Clusters: []stateCluster{{Name: "good"}, bad}}, t0); err == nil || len(b.records) != 0 {
			t.Errorf("%+v: %v, %d records", bad, err, len(b.records))
		}
	}
}

func TestServerStartsWithoutABrokenState(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, stateFile), []byte(stateMagic+"00"), 0o600); err != nil {
		t.Fatal(err)
	}
	var words bytes.Buffer
	s := New(t0, Options{Dir: dir, Log: slog.New(slog.NewTextHandler(&words, nil))})
	defer s.Close()
	if d := s.Stats().Disk; !strings.Contains(d.Refused, filepath.Join(dir, stateFile)) || !d.Restored.IsZero() {
		t.Errorf("%+v", d)
	}
	if !strings.Contains(words.String(), "the last state is refused") {
		t.Errorf("not said: %s", words.String())
	}
	if err := s.Set(t0, &Snapshot{Settings: []protect.Settings{override("m", 6)}}); err != nil {
		t.Fatal(err)
	}
	s.save(t0)
	if st, err := readState(dir); err != nil || len(st.Clusters) != 1 {
		t.Errorf("the next state: %+v, %v", st, err)
	}
}

// An override of the last life stands until the cluster has its own, until
// the caller is settled, or for the grace.
func TestInheritedOverrides(t *testing.T) {
	key := "circuit_breakers.m.default.max_requests"
	calm := func(settled bool) *Snapshot {
		return &Snapshot{Settings: []protect.Settings{{Cluster: "m"}, {Cluster: "plain"}}, Endpoints: map[string]discovery.View{"m": view(1, "10.0.0.1:80", "10.9.0.1:80@1"), "calm": view(1, "10.1.0.1:80")}, Settled: settled}
	}
	_, s := saved(t)

	b := reborn(t, s)
	if c := set(t, b, t0.Add(59*time.Second), calm(false)); c.runtime || b.layer(everybody)[key] != 6 || b.records["m"].drop != 30 {
		t.Errorf("a start that knows nothing took the override away: %+v", c)
	}
	before := b.records["m"].resource
	c, gone := b.expire(t0.Add(60 * time.Second))
	if !c.runtime || !slices.Equal(gone, []string{"m", "plain"}) || len(b.layer(everybody)) != 0 {
		t.Errorf("after the grace: %+v, %v, %v", c, gone, b.layer(everybody))
	}
	after := b.records["m"].resource
	if after.GetPolicy() != nil || proto.Equal(before.GetEndpoints()[0], after.GetEndpoints()[0]) || !slices.Equal(c.endpoints, []string{"m"}) {
		t.Errorf("the share is not withdrawn so that Envoy sees it: %v", after)
	}
	if c, gone := b.expire(t0.Add(time.Hour)); c.any() || gone != nil {
		t.Errorf("twice: %+v, %v", c, gone)
	}

	b = reborn(t, s)
	own := calm(false)
	own.Settings[0] = override("m", 9)
	if c := set(t, b, t0, own); !c.runtime || b.layer(everybody)[key] != 9 {
		t.Errorf("its own word: %+v, %v", c, b.layer(everybody))
	}
	if set(t, b, t0, calm(false)); b.layer(everybody)[key] != 0 || b.layer(everybody)["circuit_breakers.plain.default.max_requests"] != 7 {
		t.Errorf("its own word is withdrawn at once, the other's stays: %v", b.layer(everybody))
	}
	if c, gone := b.expire(t0.Add(2 * time.Minute)); !c.runtime || !slices.Equal(gone, []string{"plain"}) {
		t.Errorf("%+v, %v", c, gone)
	}

	b = reborn(t, s)
	if set(t, b, t0, calm(true)); len(b.layer(everybody)) != 0 {
		t.Errorf("settled: %v", b.layer(everybody))
	}
}

// What a source does not know yet is what the last life knew.
func TestNoEndpointIsLostToASourceThatWasNotRead(t *testing.T) {
	_, s := saved(t)
	b := reborn(t, s)
	put := func(v discovery.View) []string {
		set(t, b, t0, &Snapshot{Endpoints: map[string]discovery.View{"m": v, "calm": view(1, "10.1.0.1:80")}})
		var out []string
		for _, e := range b.records["m"].merge(v) {
			out = append(out, e.Address.String())
		}
		return out
	}
	both := []string{"10.0.0.1:80", "10.9.0.1:80"}
	if got := put(discovery.View{}); !slices.Equal(got, both) {
		t.Errorf("nothing known: %v", got)
	}
	if got := put(discovery.View{Unread: []int{0, 1}}); !slices.Equal(got, both) {
		t.Errorf("nothing read: %v", got)
	}
	v := view(1, "10.0.0.5:80")
	v.Unread = []int{1}
	if got := put(v); !slices.Equal(got, []string{"10.0.0.5:80", "10.9.0.1:80"}) {
		t.Errorf("the first was read: %v", got)
	}
	if got := put(view(2, "10.0.0.5:80")); !slices.Equal(got, []string{"10.0.0.5:80"}) {
		t.Errorf("all were read, the second is empty: %v", got)
	}
}

func TestStateThatCannotBeWrittenIsSaidOnce(t *testing.T) {
	var words bytes.Buffer
	s := New(t0, Options{Dir: filepath.Join(t.TempDir(), "none"), Log: slog.New(slog.NewTextHandler(&words, nil))})
	defer s.Close()
	if err := s.Set(t0, &Snapshot{}); err != nil {
		t.Fatal(err)
	}
	s.save(t0)
	s.save(t0)
	if d := s.Stats().Disk; d.Errors != 2 || d.Error == "" || strings.Count(words.String(), "cannot keep the state") != 1 {
		t.Errorf("%+v\n%s", d, words.String())
	}
}

func FuzzState(f *testing.F) {
	f.Add([]byte(`{"saved":"2026-01-01T00:00:00Z","clusters":[{"name":"m","served":true,"endpoints":[{"address":"1.1.1.1:1","priority":1}],"failed":[0,9]}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		s, err := parseState(sealed(body))
		if err != nil {
			return
		}
		b := newBook("i", nil)
		if b.inherit(s, t0) == nil {
			if _, err := b.set(t0, &Snapshot{}); err != nil {
				t.Fatal(err)
			}
		}
	})
}
