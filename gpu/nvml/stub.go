//go:build !cgo || !linux

package nvml

import (
	"fmt"

	"github.com/weirproxy/weir/gpu/library"
)

// Open says that this binary cannot read NVML.
func Open(library.Config) (*library.Reader, error) {
	return nil, fmt.Errorf("nvml: %w", library.ErrNoCgo)
}
