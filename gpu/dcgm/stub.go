//go:build !cgo || !linux

package dcgm

// Open says that this binary cannot read DCGM.
func Open(cfg Config) (*Reader, error) {
	if _, err := cfg.filled(); err != nil {
		return nil, err
	}
	return nil, ErrNoCgo
}
