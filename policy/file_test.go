package policy

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// Only plain files of a bounded length are read; a pipe without a writer and
// a device without an end do not hold anybody up.
func TestReadFile(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, err := range map[string]error{
		"file": os.WriteFile(at("file"), []byte("12345"), 0o600),
		"link": os.Symlink(at("file"), at("link")),
		"pipe": syscall.Mkfifo(at("pipe"), 0o600),
		"zero": os.Symlink("/dev/zero", at("zero")),
		"loop": os.Symlink(at("loop"), at("loop")),
	} {
		if err != nil {
			t.Fatal(name, err)
		}
	}
	for _, name := range []string{"file", "link"} {
		if data, err := ReadFile(at(name), 5); err != nil || string(data) != "12345" {
			t.Errorf("%s: %q, %v", name, data, err)
		}
		if data, err := ReadFile(at(name), 4); err == nil || data != nil {
			t.Errorf("%s of one byte too many: %q", name, data)
		}
	}
	for _, name := range []string{"pipe", "zero", "."} {
		if _, err := ReadFile(at(name), 5); !errors.Is(err, errNotPlain) {
			t.Errorf("%q: %v, want that it is not a plain file", name, err)
		}
	}
	for _, name := range []string{"loop", "none"} {
		if _, err := ReadFile(at(name), 5); err == nil {
			t.Errorf("%s was read", name)
		}
	}
}
