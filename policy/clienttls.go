package policy

import (
	"crypto/tls"
	"fmt"
)

// Config reads the files. The zero value checks the server against the
// system's authorities and shows no certificate.
func (t ClientTLS) Config() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if t.CA != "" {
		pool, err := ReadCAs(t.CA)
		if err != nil {
			return nil, fmt.Errorf("tls.ca: %w", err)
		}
		c.RootCAs = pool
	}
	if t.Cert != "" || t.Key != "" {
		pair, err := ReadPair(t.Cert, t.Key)
		if err != nil {
			return nil, fmt.Errorf("tls.cert: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}
