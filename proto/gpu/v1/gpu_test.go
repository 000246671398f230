package gpuv1_test

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"strings"
	"testing"
)

// The Go code here is what build/proto made of gpu.proto: it wrote the sums of
// all three, so that a change of any of them without it is seen.
func TestGeneratedCodeIsFresh(t *testing.T) {
	sums, err := os.ReadFile("made.sum")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for line := range strings.Lines(string(sums)) {
		want, name, ok := strings.Cut(strings.TrimSpace(line), "  ")
		if !ok {
			t.Fatalf("made.sum: %q is no sum", line)
		}
		file, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		seen++
		if sum := sha256.Sum256(file); hex.EncodeToString(sum[:]) != want {
			t.Errorf("%s is not as build/proto left it: run make proto", name)
		}
	}
	if seen != 3 {
		t.Errorf("made.sum names %d files, want gpu.proto and the two made of it", seen)
	}
}
