// Package etcdbus carries the words of breakers between replicas over etcd
// (B3; https://etcd.io/docs/v3.6/learning/api/). The latest word of each key
// lies under
//
//	/weir/breakers/<replica>/<p|t>/<breaker>    p = pool, t = tenant
//
// with names as in a URL's path, in the form of buswire, on a lease.
//
// Each word is put by compare-and-swap on the revision of what it replaces,
// and only if its Seq is newer. A listener reads all that stands at one
// revision and watches from the next one; where the watch fell behind a
// compaction it reads anew. The watch is a stream of its own and not that of
// etcd's client, which resumes by itself where it was: behind a server that
// came back empty or from a backup it would wait for a revision that is far
// ahead and hear nothing.
//
// Leases end words, since etcd tells no time. A word's lease is never kept
// alive: words of one TTL that are put within a quarter of it share one that
// lasts TTL and a quarter, in whole seconds, so that a word stands for its TTL
// and at most a quarter of it and about two seconds longer. Renewals move it
// to the next lease. Where a lease was lost (revoked, or a server's backup)
// the next word finds out, gets another one and puts back what stood on it.
//
// Invariants: a word stands for its TTL at least, and goes by itself; what
// lies there and is no word, or has no lease, is skipped and gives way to the
// next word; no call outlives its context, nor two seconds.
//
// While etcd is away Publish fails and Listen tries again, 50 ms to 2 s apart
// with jitter; nothing is kept to be sent later, since renewals repeat it.
package etcdbus

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/policy"
)

const (
	callTimeout = 2 * time.Second // of any one call
	dialTimeout = time.Second
	maxAnswer   = 4 << 20  // bytes; etcd's own bound of a request is 1.5 MiB
	maxHeader   = 64 << 10 // bytes
)

// Options are what a bus needs beside policy.Etcd.
type Options struct {
	Seed uint64 // of the jitter with which it comes back; one of its own for each replica
}

// Bus is one replica's way to the others. Use New. Safe for concurrent use.
type Bus struct {
	config    clientv3.Config
	prefix    string
	options   Options
	life      context.Context
	end       context.CancelFunc
	listeners atomic.Uint64
	count     counts

	turn   chan struct{} // holds a token: whoever took it may make the client, or a lease
	client *clientv3.Client
	leases map[time.Duration]lease // by TTL

	mu  sync.Mutex
	own map[string]standing // by key in etcd
}

var _ breaker.Bus = (*Bus)(nil)

// New makes a bus; it does not wait for etcd. Errors are of the configuration:
// no endpoint, TLS files that cannot be read.
func New(config policy.Etcd, o Options) (*Bus, error) {
	if len(config.Endpoints) == 0 {
		return nil, errors.New("etcd: endpoints: none given")
	}
	secure, err := tlsConfig(config)
	if err != nil {
		return nil, err
	}
	scheme := "http://"
	if secure != nil {
		scheme = "https://"
	}
	var urls []string
	for _, e := range config.Endpoints {
		urls = append(urls, scheme+e)
	}
	life, end := context.WithCancel(context.Background())
	b := &Bus{
		config: clientv3.Config{
			Endpoints: urls, DialTimeout: dialTimeout, TLS: secure,
			Username: config.Username, Password: config.Password.Reveal(),
			DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 3 * time.Second,
			MaxCallRecvMsgSize: maxAnswer, // else 2 GiB
			MaxUnaryRetries:    2,         // the second after a token ran out
			Context:            life, Logger: zap.NewNop(),
			DialOptions: []grpc.DialOption{
				grpc.WithConnectParams(grpc.ConnectParams{ // gRPC's own back-off grows to two minutes
					Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
					MinConnectTimeout: dialTimeout,
				}),
				grpc.WithChainUnaryInterceptor(failFast),
				grpc.WithMaxHeaderListSize(maxHeader),
			},
		},
		prefix:  strings.TrimSuffix(config.Prefix, "/") + "/breakers/",
		options: o, life: life, end: end,
		turn: make(chan struct{}, 1), leases: make(map[time.Duration]lease), own: make(map[string]standing),
	}
	b.turn <- struct{}{}
	return b, nil
}

func tlsConfig(c policy.Etcd) (*tls.Config, error) {
	if !c.TLS {
		return nil, nil
	}
	t := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CA != "" {
		pool, err := policy.ReadCAs(c.CA)
		if err != nil {
			return nil, fmt.Errorf("etcd: ca: %w", err)
		}
		t.RootCAs = pool
	}
	if c.Cert != "" || c.Key != "" {
		pair, err := policy.ReadPair(c.Cert, c.Key)
		if err != nil {
			return nil, fmt.Errorf("etcd: cert and key: %w", err)
		}
		t.Certificates = []tls.Certificate{pair}
	}
	return t, nil
}

// failFast makes a call fail at once, with the reason, where there is no
// connection. etcd's client would wait for one and say that time is up.
func failFast(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	return invoke(ctx, method, req, reply, cc, append(opts, grpc.WaitForReady(false))...)
}

// take waits for the turn; give hands it on.
func (b *Bus) take(ctx context.Context) error {
	select {
	case <-b.turn:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (b *Bus) give() { b.turn <- struct{}{} }

// connect makes the client at its first use: with a user, etcd's asks the
// server for a token then.
func (b *Bus) connect(ctx context.Context) (*clientv3.Client, error) {
	if err := b.take(ctx); err != nil {
		return nil, err
	}
	defer b.give()
	if b.life.Err() != nil {
		return nil, breaker.ErrClosed
	}
	if b.client == nil {
		c, err := clientv3.New(b.config)
		if err != nil {
			return nil, err
		}
		b.client = c
	}
	return b.client, nil
}

// Close implements breaker.Bus. It waits for up to a second while a first
// connection is made.
func (b *Bus) Close() error {
	b.end()
	<-b.turn
	defer b.give()
	if b.client != nil {
		_ = b.client.Close() // its server may be gone
		b.client = nil
	}
	return nil
}

// key is where the words of k lie.
func (b *Bus) key(k breaker.Key) string {
	kind := "p"
	if k.Tenant {
		kind = "t"
	}
	return b.prefix + url.PathEscape(k.Replica) + "/" + kind + "/" + url.PathEscape(k.Breaker)
}
