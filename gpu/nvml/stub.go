//go:build !cgo || !linux

package nvml

// Open says that this binary cannot read NVML.
func Open(Config) (*Reader, error) { return nil, ErrNoCgo }
