package policy

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// badFile is one file of testdata/bad. Comments at its end say what is
// expected: "# want: part of one violation" (all of them are listed, and no
// others come), and "# semantic" where a JSON Schema cannot see the fault.
type badFile struct {
	name     string
	data     []byte
	want     []string
	semantic bool
}

func badFiles(t *testing.T) []badFile {
	t.Helper()
	names, err := filepath.Glob("testdata/bad/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var out []badFile
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		f := badFile{name: filepath.Base(name), data: data}
		for line := range bytes.Lines(data) {
			text := strings.TrimSpace(string(line))
			if want, ok := strings.CutPrefix(text, "# want: "); ok {
				f.want = append(f.want, want)
			}
			f.semantic = f.semantic || text == "# semantic"
		}
		out = append(out, f)
	}
	return out
}

func TestBadFiles(t *testing.T) {
	files := badFiles(t)
	if len(files) < 45 {
		t.Errorf("only %d bad files", len(files))
	}
	for _, f := range files {
		t.Run(f.name, func(t *testing.T) {
			if len(f.want) == 0 {
				t.Fatal("says nothing of what is expected")
			}
			p, err := Load(f.name, f.data)
			var errs Errors
			if !errors.As(err, &errs) || p != nil {
				t.Fatalf("accepted, or not Errors: %v", err)
			}
			if len(errs) != len(f.want) {
				t.Errorf("%d violations, want %d:\n%v", len(errs), len(f.want), err)
			}
			for _, want := range f.want {
				if !slices.ContainsFunc(errs, func(v Violation) bool { return strings.Contains(v.String(), want) }) {
					t.Errorf("got\n%v\nwant %s", err, want)
				}
			}
			for _, v := range errs {
				if v.File != f.name || v.Message == "" || v.Line == 0 && v.Message != "is empty" {
					t.Errorf("no place: %+v", v)
				}
			}
		})
	}
}

func TestTooLong(t *testing.T) {
	text := minimal + strings.Repeat("# x\n", maxFile/4)
	_, err := Load("w.yaml", []byte(text))
	if err == nil || !strings.Contains(err.Error(), "at most 1048576 (1 MiB) are read") {
		t.Errorf("%v", err)
	}
}

// Whatever the bytes are, Load gives Errors or a policy whose dump loads to
// the same policy again; it never panics.
func FuzzLoad(f *testing.F) {
	names, err := filepath.Glob("testdata/bad/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	more, err := filepath.Glob("../examples/policies/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range append(names, more...) {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(minimal))
	f.Add([]byte(full))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := Load("w.yaml", data, WithoutSecrets())
		if err != nil {
			var errs Errors
			if !errors.As(err, &errs) || len(errs) == 0 {
				t.Fatalf("not Errors: %v", err)
			}
			return
		}
		again, err := Load("w.yaml", p.Dump(), WithoutSecrets())
		if err != nil {
			t.Fatalf("the dump does not load: %v\n%s", err, p.Dump())
		}
		if !same(p, again) || p.Hash != again.Hash {
			t.Fatalf("the dump is another policy:\n%s\n%s", p.Dump(), again.Dump())
		}
		if _, err := p.For(Overrides{}); err != nil {
			t.Fatal(err)
		}
	})
}
