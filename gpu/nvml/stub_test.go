//go:build !cgo || !linux

package nvml

import (
	"errors"
	"testing"
)

func TestStub(t *testing.T) {
	if _, err := Open(Config{}); !errors.Is(err, ErrNoCgo) {
		t.Errorf("Open without cgo: %v, want ErrNoCgo", err)
	}
}
