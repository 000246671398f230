package lint

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

func checkFile(t *testing.T, name string, release Release) *Report {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return Check(name, data, Options{Release: release})
}

// TestOlderFiles: files that start on real Envoys and were written before the
// reasons for some findings were known: each has these and no other.
func TestOlderFiles(t *testing.T) {
	for _, c := range []struct {
		file    string
		release Release
		want    []string
	}{
		{"push-1.36.yaml", 36, []string{"6 graceful-crash", "6 hot-restart", "6 local-reply", "33 retry-back-off", "39 buffer", "89 override-key", "91 mode", "147 mode"}},
		{"push-1.40.yaml", 40, []string{"7 graceful-crash", "7 hot-restart", "35 retry-back-off", "93 override-key", "95 mode", "151 mode"}},
		{"metering-1.40.yaml", 40, []string{"13 forgery", "13 paths", "13 paths", "13 paths", "20 mode", "27 mode", "34 mode", "76 header-list", "76 status-on-error", "83 mode", "86 mode", "133 control-frames"}},
		{"metering-common.yaml", 0, []string{"13 forgery", "13 paths", "13 paths", "13 paths", "20 mode", "44 header-list", "44 status-on-error", "51 mode", "54 mode", "128 control-frames"}},
		{"one-filter-before.yaml", 0, []string{"8 graceful-crash", "8 hot-restart", "56 mode", "69 retry-unread", "74 mode"}},
	} {
		var got []string
		r := checkFile(t, c.file, c.release)
		for _, f := range r.Findings {
			got = append(got, fmt.Sprintf("%d %s", f.Line, f.Rule))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s for %v: %q, want %q\n%s", c.file, c.release, got, c.want, r)
		}
	}
}

// TestFieldsThatAReleaseRefuses is what the binaries refused of one file.
func TestFieldsThatAReleaseRefuses(t *testing.T) {
	for release, want := range map[Release][]string{
		36: {"allow_paths", "batch_size", "drain_timeout_jitter", "max_connection_duration_jitter"},
		37: {"drain_timeout_jitter", "max_connection_duration_jitter"},
		38: {"drain_timeout_jitter", "max_connection_duration_jitter"},
		39: nil,
		40: nil,
	} {
		var got []string
		for _, f := range checkFile(t, "push-1.40.yaml", release).Findings {
			if f.Rule == "release" && f.Severity == Error {
				got = append(got, f.Path[strings.LastIndex(f.Path, ".")+1:])
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%v: %q, want %q", release, got, want)
		}
	}
}

// TestReleaseTableIsOfThisAPI: each name of the table is one of the compiled
// API, so that it can be met at all.
func TestReleaseTableIsOfThisAPI(t *testing.T) {
	if n := len(since()); n < 400 {
		t.Fatalf("the table has %d entries", n)
	}
	for name, r := range since() {
		message, field, hasField := strings.Cut(name, " ")
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(message))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		m, ok := d.(protoreflect.MessageDescriptor)
		if !ok || hasField && m.Fields().ByName(protoreflect.Name(field)) == nil {
			t.Errorf("%s: no such field", name)
		}
		if r <= Oldest || r > Newest {
			t.Errorf("%s: release %v", name, r)
		}
	}
}

func TestParseRelease(t *testing.T) {
	for s, want := range map[string]Release{"": 0, "1.36": 36, "1.40.0": 40, "v1.38.3": 38} {
		if r, err := ParseRelease(s); err != nil || r != want {
			t.Errorf("%q: %v, %v", s, r, err)
		}
	}
	for _, s := range []string{"36", "1.35", "1.41", "2.36", "1.36.4.1", "1.x", "1.", "latest"} {
		if _, err := ParseRelease(s); err == nil || !strings.Contains(err.Error(), "1.36 to 1.40") {
			t.Errorf("%q: %v", s, err)
		}
	}
}

// TestManualNamesEveryRule: docs/envoy.md says what each rule finds.
func TestManualNamesEveryRule(t *testing.T) {
	b, err := os.ReadFile("../../docs/envoy.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, r := range Rules() {
		if seen[r.ID] {
			t.Errorf("two rules are called %s", r.ID)
		}
		seen[r.ID] = true
		if !strings.Contains(string(b), "| `"+r.ID+"` | "+r.Text+" |") {
			t.Errorf("docs/envoy.md lacks the row: | `%s` | %s |", r.ID, r.Text)
		}
	}
}

// TestReportSaysWhatWasSkipped: without a policy the report says so.
func TestReportSaysWhatWasSkipped(t *testing.T) {
	data := []byte(read(t, "envoy", "two-filters.yaml"))
	if s := Check("e.yaml", data, Options{}).String(); !strings.Contains(s, "not held against a policy") {
		t.Error(s)
	}
	if s := Check("e.yaml", data, Options{Policy: load(t, nil)}).String(); strings.Contains(s, "not held") {
		t.Error(s)
	}
}
