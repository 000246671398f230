package redisstore

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/weirproxy/weir/policy"
)

const dialTimeout = time.Second

func withDefaults(c policy.Redis) (policy.Redis, error) {
	if len(c.Addresses) == 0 {
		return c, fmt.Errorf("redisstore: addresses: none given")
	}
	if c.Prefix == "" {
		c.Prefix = "weir"
	}
	if strings.ContainsAny(c.Prefix, "{}") {
		return c, fmt.Errorf("redisstore: prefix: %q has braces, which choose Redis' hash slot", c.Prefix)
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

// dial makes a client. Nothing is connected yet.
//
// No call is ever retried: a decision that was not answered in its time is
// taken elsewhere. The context's deadline bounds every step, the wait for a
// connection included.
func dial(c policy.Redis) (*conn, error) {
	secure, err := tlsConfig(c)
	if err != nil {
		return nil, err
	}
	longest := max(dialTimeout, c.Timeout)
	life, end := context.WithCancel(context.Background())
	return &conn{end: end, UniversalClient: redis.NewUniversalClient(&redis.UniversalOptions{
		Addrs:                 c.Addresses,
		MasterName:            c.Master,
		DB:                    c.DB,
		Username:              c.Username,
		Password:              c.Password.Reveal(),
		Protocol:              2,
		Dialer:                dialer(life, secure),
		TLSConfig:             secure,
		ContextTimeoutEnabled: true,
		MaxRetries:            -1,
		MinRetryBackoff:       -1,
		MaxRetryBackoff:       -1,
		DialTimeout:           dialTimeout,
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

// conn is a client; a pointer to it can be swapped.
type conn struct {
	redis.UniversalClient
	end context.CancelFunc // ends dials in progress
}

// Close ends the client's connections, and dials in progress too.
func (c *conn) Close() error {
	c.end()
	return c.UniversalClient.Close()
}

// dialer connects within the context's time, TLS handshake included, and no
// longer than the client lives.
func dialer(life context.Context, secure *tls.Config) func(context.Context, string, string) (net.Conn, error) {
	plain := &net.Dialer{KeepAlive: 30 * time.Second}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(life, cancel)()
		if secure == nil {
			return plain.DialContext(ctx, network, addr)
		}
		return (&tls.Dialer{NetDialer: plain, Config: secure}).DialContext(ctx, network, addr)
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
			return nil, fmt.Errorf("redisstore: ca: %w", err)
		}
		t.RootCAs = pool
	}
	if c.Cert != "" || c.Key != "" {
		pair, err := policy.ReadPair(c.Cert, c.Key)
		if err != nil {
			return nil, fmt.Errorf("redisstore: cert and key: %w", err)
		}
		t.Certificates = []tls.Certificate{pair}
	}
	return t, nil
}

// warm opens a part of the pool ahead of the first decisions, which have no
// time for handshakes.
func (c *conn) warm(ctx context.Context, pool int) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	var wg sync.WaitGroup
	for range (pool + 3) / 4 {
		wg.Go(func() { _ = c.Ping(ctx).Err() }) // a miss shows at the first decision
	}
	wg.Wait()
}
