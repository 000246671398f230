package listen

import (
	"crypto/tls"
	"os"
	"sync"
	"time"

	"github.com/weirproxy/weir/policy"
)

// renewed is a certificate pair that is read again when its file changes.
type renewed struct {
	files *policy.TLS

	mu      sync.Mutex
	pair    *tls.Certificate
	changed time.Time
}

func (r *renewed) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	info, err := os.Stat(r.files.Cert)
	if err == nil && r.pair != nil && info.ModTime().Equal(r.changed) {
		return r.pair, nil
	}
	pair, err2 := policy.ReadPair(r.files.Cert, r.files.Key)
	if err2 != nil {
		if r.pair != nil {
			return r.pair, nil
		}
		return nil, err2
	}
	r.pair = &pair
	if err == nil {
		r.changed = info.ModTime()
	}
	return r.pair, nil
}
