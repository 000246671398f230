// Package link keeps a gRPC connection to a source of telemetry: it connects,
// with the files of certificates and token as they are then, lets the source
// listen, and connects again when that has ended, after a pause that grows
// with the failures in a row.
//
// Invariants: at most one connection at a time; a token never travels in the
// clear beyond this machine; proxies of the environment are not used.
package link

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/internal/nopanic"
	"github.com/weirproxy/weir/policy"
)

// How long a peer may take to shake hands, and to answer a ping.
const (
	handshake = 3 * time.Second
	pingGrace = 3 * time.Second
)

// Bounds, in bytes: of a token's file, and of what a peer sends before and
// after its messages.
const (
	maxToken  = 64 << 10
	maxHeader = 64 << 10
)

// Config describes a connection.
type Config struct {
	Address string                                  // host:port, unix:/path or unix:@name
	TLS     *policy.ClientTLS                       // nil = none
	Token   policy.Secret                           // sent with the call; needs TLS, loopback or a Unix socket
	Message int                                     // most bytes of one message
	Ping    time.Duration                           // silence after which the peer must answer a ping, >= 10s; 0 = never: servers end, by default, a connection that pings more than once in 5 min
	Dial    func(context.Context) (net.Conn, error) // instead of connecting to Address; nil = connect
	Seed    uint64                                  // of the jitter between connections
}

// Link is one connection, again and again. Keep is for one goroutine.
type Link struct {
	cfg Config
	rng *rand.Rand
}

// New checks the address and reads the files once; nothing is connected yet.
func New(cfg Config) (*Link, error) {
	if cfg.Dial == nil && !strings.HasPrefix(cfg.Address, "unix:") {
		host, port, err := net.SplitHostPort(cfg.Address)
		if _, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil || host == "" {
			return nil, fmt.Errorf("url must be host:port or unix:/path, got %q", cfg.Address)
		}
		if cfg.Token.Set() && cfg.TLS == nil && host != "localhost" && !net.ParseIP(host).IsLoopback() {
			return nil, fmt.Errorf("token would travel in the clear to %s: needs tls", cfg.Address)
		}
	}
	if cfg.TLS != nil {
		if _, err := cfg.TLS.Config(); err != nil {
			return nil, err
		}
	}
	return &Link{cfg, rand.New(rand.NewPCG(cfg.Seed, 0))}, nil
}

// Keep connects and listens until ctx ends. listen gets a context that bears
// the token, and says whether it heard anything; down is told why there is no
// connection, as a gpu.Missed.
func (l *Link) Keep(ctx context.Context, listen func(context.Context, *grpc.ClientConn) (heard bool, err error), down func(error)) {
	for failures := 0; ctx.Err() == nil; failures++ {
		heard, err := l.once(ctx, listen)
		if heard {
			failures = 0
		}
		down(gpu.Missed(faultOf(err), fmt.Errorf("%s: %w", l.cfg.Address, err)))
		timer := time.NewTimer(pause(failures, l.rng))
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// once connects once.
func (l *Link) once(ctx context.Context, listen func(context.Context, *grpc.ClientConn) (bool, error)) (heard bool, err error) {
	defer nopanic.Catch(&err)
	conn, err := l.connect()
	if err != nil {
		return false, err
	}
	defer func() { _ = conn.Close() }() // nothing was sent
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if token := l.token(); token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	heard, err = listen(ctx, conn)
	if err == nil {
		err = errors.New("the stream ended")
	}
	return heard, err
}

// The pause between two connections.
const (
	minPause = 100 * time.Millisecond
	maxPause = 5 * time.Second
)

// pause is the pause after failures in a row: minPause doubled each time up to
// maxPause, of which the upper half is left to chance, so that many weirs do
// not come back to a peer in step.
func pause(failures int, rng *rand.Rand) time.Duration {
	d := minPause
	for range failures {
		if d *= 2; d >= maxPause {
			d = maxPause
			break
		}
	}
	return d/2 + time.Duration(rng.Int64N(int64(d/2)))
}

// faultOf is what kind of failure a broken stream is.
func faultOf(err error) gpu.Fault {
	switch status.Code(err) {
	case codes.Unauthenticated, codes.PermissionDenied, codes.Unimplemented:
		return gpu.FaultStatus
	case codes.ResourceExhausted:
		return gpu.FaultSize
	}
	return gpu.FaultConnect
}

// connect makes a connection that is tried once.
func (l *Link) connect() (*grpc.ClientConn, error) {
	secure := insecure.NewCredentials()
	if l.cfg.TLS != nil {
		config, err := l.cfg.TLS.Config() // read anew: certificates are renewed
		if err != nil {
			return nil, err
		}
		secure = credentials.NewTLS(config)
	}
	target := l.cfg.Address
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(secure),
		grpc.WithNoProxy(),
		grpc.WithUserAgent("weir"),
		grpc.WithDisableServiceConfig(),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: handshake}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(l.cfg.Message)),
		grpc.WithMaxHeaderListSize(maxHeader),
	}
	if l.cfg.Ping > 0 {
		options = append(options, grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: l.cfg.Ping, Timeout: pingGrace}))
	}
	switch name, abstract := strings.CutPrefix(target, "unix:@"); {
	case l.cfg.Dial != nil:
		target = "passthrough:///dialed"
		options = append(options, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.cfg.Dial(ctx) }))
	case abstract:
		target = "unix-abstract:" + name
	}
	conn, err := grpc.NewClient(target, options...)
	if err != nil {
		return nil, fmt.Errorf("url: %w", err)
	}
	return conn, nil
}

// token is what the file says now, else what it said when the policy was read.
func (l *Link) token() string {
	if file := l.cfg.Token.File; file != "" {
		if text, err := policy.ReadFile(file, maxToken); err == nil {
			return strings.TrimSpace(string(text))
		}
	}
	return l.cfg.Token.Reveal()
}
