//go:build !cgo || !linux

package nvml

import (
	"errors"
	"testing"

	"github.com/weirproxy/weir/gpu/library"
)

func TestStub(t *testing.T) {
	if _, err := Open(library.Config{}); !errors.Is(err, library.ErrNoCgo) {
		t.Errorf("Open without cgo: %v, want ErrNoCgo", err)
	}
}
