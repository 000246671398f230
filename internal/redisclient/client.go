// Package redisclient makes the clients that speak to the Redis of policy.Redis:
// a single server, Sentinel or Cluster, over TLS or plain. The quota store and
// the breakers' bus share it, so that one setting means the same to both.
//
// Invariants: nothing is connected before the first call; no call is ever
// retried, since what was not answered in its time is decided elsewhere; the
// context's deadline bounds every step, the wait for a connection included.
package redisclient

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/weirproxy/weir/policy"
)

// DialTimeout bounds one connect, TLS handshake included.
const DialTimeout = time.Second

// Defaults fills in what is not said. Errors name the setting: no address, a
// prefix with braces.
func Defaults(c policy.Redis) (policy.Redis, error) {
	if len(c.Addresses) == 0 {
		return c, fmt.Errorf("redis: addresses: none given")
	}
	if c.Prefix == "" {
		c.Prefix = "weir"
	}
	if strings.ContainsAny(c.Prefix, "{}") {
		return c, fmt.Errorf("redis: prefix: %q has braces, which choose Redis' hash slot", c.Prefix)
	}
	if c.Timeout <= 0 {
		c.Timeout = 10 * time.Millisecond
	}
	if c.Pool <= 0 {
		c.Pool = 32
	}
	if c.RetryAfterOutage <= 0 {
		c.RetryAfterOutage = 250 * time.Millisecond
	}
	return c, nil
}

// Dial makes a client of settings that Defaults has filled in. Nothing is
// connected yet. Errors are of TLS files that cannot be read.
func Dial(c policy.Redis) (*Client, error) {
	secure, err := tlsConfig(c)
	if err != nil {
		return nil, err
	}
	longest := max(DialTimeout, c.Timeout)
	life, end := context.WithCancel(context.Background())
	return &Client{end: end, UniversalClient: newClient(&redis.UniversalOptions{
		Addrs:                 c.Addresses,
		MasterName:            c.Master,
		DB:                    c.DB,
		Username:              c.Username,
		Password:              c.Password.Reveal(),
		SentinelUsername:      c.SentinelUsername,
		SentinelPassword:      c.SentinelPassword.Reveal(),
		Protocol:              2,
		Dialer:                dialer(life, secure),
		TLSConfig:             secure,
		ContextTimeoutEnabled: true,
		MaxRetries:            -1,
		MinRetryBackoff:       -1,
		MaxRetryBackoff:       -1,
		DialTimeout:           DialTimeout,
		DialerRetries:         1,
		ReadTimeout:           longest,
		WriteTimeout:          longest,
		PoolTimeout:           longest,
		PoolSize:              c.Pool,
		PipelinePoolSize:      -1,
		DisableIdentity:       true,
		MaintNotificationsConfig: &maintnotifications.Config{
			Mode: maintnotifications.ModeDisabled,
		},
	})}, nil
}

// Client is one client with its pool of connections. Use Dial. Safe for
// concurrent use.
type Client struct {
	redis.UniversalClient
	end context.CancelFunc // ends dials in progress
}

// Close ends the client's connections, and dials in progress too.
func (c *Client) Close() error {
	c.end()
	return c.UniversalClient.Close()
}

// dialer connects within the context's time, TLS handshake included, and no
// longer than the client lives.
func dialer(life context.Context, secure *tls.Config) func(context.Context, string, string) (net.Conn, error) {
	plain := &net.Dialer{KeepAlive: 30 * time.Second}
	guards := newKeeper()
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(life, cancel)()
		dial := plain.DialContext
		if secure != nil {
			dial = (&tls.Dialer{NetDialer: plain, Config: secure}).DialContext
		}
		if err := guards.pause(ctx, addr); err != nil {
			return nil, err
		}
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return guards.guard(c, addr), nil
	}
}

func tlsConfig(c policy.Redis) (*tls.Config, error) {
	if !c.TLS {
		return nil, nil
	}
	t := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.ServerName}
	if c.CA != "" {
		pool, err := policy.ReadCAs(c.CA)
		if err != nil {
			return nil, fmt.Errorf("redis: ca: %w", err)
		}
		t.RootCAs = pool
	}
	if c.Cert != "" || c.Key != "" {
		pair, err := policy.ReadPair(c.Cert, c.Key)
		if err != nil {
			return nil, fmt.Errorf("redis: cert and key: %w", err)
		}
		t.Certificates = []tls.Certificate{pair}
	}
	return t, nil
}
