//go:build !cgo || !linux

package dcgm

import (
	"fmt"

	"github.com/weirproxy/weir/gpu/library"
)

// Open says that this binary cannot read DCGM.
func Open(cfg Config) (*library.Reader, error) {
	if _, err := cfg.filled(); err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("dcgm: %w", library.ErrNoCgo)
}
