package scrape

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode"

	"github.com/weirproxy/weir/policy"
)

// The bounds, in bytes: of a token's file, and of an answer before its body.
const (
	maxToken  = 64 << 10
	maxHeader = 64 << 10
)

// client asks one address, over a connection that is kept. Certificates are
// read anew for each connection, and a token when its file changes, so that
// what was rotated is taken without a restart. Proxies of the environment are
// not used and redirects not followed: a metrics address that sends weir
// elsewhere is a mistake, or an attempt to make it ask somebody else. Looks
// are made one after the other.
type client struct {
	http    http.Client
	request *http.Request
	token   watched
}

// newClient checks address, token and certificates. A token goes over https,
// or over http within the machine: anything else would show it to the network.
func newClient(t policy.TelemetrySource) (*client, error) {
	u, err := url.Parse(t.URL)
	switch {
	case err != nil:
		return nil, fmt.Errorf("url: %w", err)
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return nil, fmt.Errorf("url must be http or https with a host, got %q", u.Redacted())
	case u.Scheme == "http" && t.TLS != nil:
		return nil, errors.New("tls: the url is http")
	case u.Scheme == "http" && t.Token.Set() && !loopback(u.Hostname()):
		return nil, fmt.Errorf("token: would be readable on the way to %s over http; use https", u.Host)
	}
	c := &client{token: watched{path: t.Token.File, most: maxToken}}
	if c.request, err = http.NewRequest(http.MethodGet, t.URL, http.NoBody); err != nil {
		return nil, fmt.Errorf("url: %w", err)
	}
	c.request.Header = http.Header{
		"Accept":          {"text/plain;version=0.0.4;q=1, text/plain;q=0.5"},
		"Accept-Encoding": {"identity, gzip;q=0.5"}, // unpacking costs both sides more than the bytes do
		"User-Agent":      {"weir"},
	}
	if u.User != nil {
		password, _ := u.User.Password()
		c.request.SetBasicAuth(u.User.Username(), password)
	}
	if t.Token.Set() {
		c.carry(t.Token.Reveal())
	}
	files := policy.ClientTLS{}
	if t.TLS != nil {
		files = *t.TLS
	}
	if _, err := files.Config(); err != nil {
		return nil, err
	}
	c.http = http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DialTLSContext:         dialTLS(files),
			DisableCompression:     true, // done here, to bound what it grows to
			MaxIdleConnsPerHost:    1,
			IdleConnTimeout:        2 * time.Minute,
			MaxResponseHeaderBytes: maxHeader,
		},
	}
	return c, nil
}

func loopback(host string) bool {
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}

// hostPort is the host of an address with its port.
func hostPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// dialTLS connects with the files as they are then.
func dialTLS(files policy.ClientTLS) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		config, err := files.Config()
		if err != nil {
			return nil, err
		}
		return (&tls.Dialer{Config: config}).DialContext(ctx, network, addr)
	}
}

// carry sends a token from now on. The header that an earlier look was sent
// with may still be read by its connection, so it is not changed.
func (c *client) carry(token string) {
	header := c.request.Header.Clone()
	header.Set("Authorization", "Bearer "+token)
	c.request.Header = header
}

// get asks once. A token file that cannot be read leaves the last token.
func (c *client) get(ctx context.Context) (*http.Response, error) {
	if text, changed, err := c.token.read(); err == nil && changed {
		c.carry(string(bytes.TrimSpace(text)))
	}
	if strings.ContainsFunc(c.request.Header.Get("Authorization"), unicode.IsControl) {
		return nil, errors.New("token: has a control character, such as the end of a line")
	}
	return c.http.Do(c.request.WithContext(ctx))
}
