package policy

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

// maxPEM bounds files of certificates and their keys, in bytes.
const maxPEM = 1 << 20

var errNotPlain = errors.New("is not a plain file")

// ReadFile reads a file that a policy names: keys, certificates, scripts. It
// has to be a plain file of at most most bytes, so that no start and no reload
// waits for a pipe's writer or reads a device without end.
func ReadFile(path string, most int64) ([]byte, error) {
	f, err := openPlain(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > most {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, most)
	}
	return data, nil
}

// openPlain opens a plain file and nothing else. What is looked at is what was
// opened, and opening a pipe does not wait.
func openPlain(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s %w", path, errNotPlain)
	}
	if err != nil {
		_ = f.Close() // nothing was read
		return nil, err
	}
	return f, nil
}

// ReadCAs reads the certificates of authorities that a policy names.
func ReadCAs(path string) (*x509.CertPool, error) {
	pem, err := ReadFile(path, maxPEM)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no PEM certificate", path)
	}
	return pool, nil
}

// ReadPair reads a certificate and its key.
func ReadPair(cert, key string) (tls.Certificate, error) {
	certPEM, err := ReadFile(cert, maxPEM)
	if err != nil {
		return tls.Certificate{}, err
	}
	keyPEM, err := ReadFile(key, maxPEM)
	if err != nil {
		return tls.Certificate{}, err
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("%s and %s: %w", cert, key, err)
	}
	return pair, nil
}
