package agent

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/policy"
	gpuv1 "github.com/weirproxy/weir/proto/gpu/v1"
)

// How long an agent may be silent before the connection is given up.
const (
	handshake      = 3 * time.Second
	keepAlive      = 10 * time.Second // the least that grpc allows
	keepAliveGrace = 3 * time.Second
)

// watch connects once and listens until the stream breaks. heard says whether
// a snapshot came.
func (s *Source) watch(ctx context.Context) (heard bool, err error) {
	conn, err := s.connect()
	if err != nil {
		return false, err
	}
	defer func() { _ = conn.Close() }() // nothing was sent
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if token := s.token(); token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	// A fifth of the period is how old a reading can be before it is looked at.
	stream, err := gpuv1.NewAgentClient(conn).Watch(ctx, &gpuv1.WatchRequest{Period: durationpb.New(s.cfg.Every / 5)})
	if err != nil {
		return false, err
	}
	var way transit
	for {
		w, err := stream.Recv()
		if err != nil {
			return heard, err
		}
		heard = true
		now := time.Now()
		late := way.took(now, w.GetSent().AsDuration())
		s.hear(w, now.Add(-late-max(w.GetAge().AsDuration(), 0)))
	}
}

// faultOf is what kind of failure a broken stream is.
func faultOf(err error) gpu.Fault {
	switch status.Code(err) {
	case codes.Unauthenticated, codes.PermissionDenied, codes.Unimplemented, codes.ResourceExhausted:
		return gpu.FaultStatus
	}
	return gpu.FaultConnect
}

// connect makes a connection that is tried once.
func (s *Source) connect() (*grpc.ClientConn, error) {
	secure := insecure.NewCredentials()
	if s.cfg.TLS != nil {
		config, err := s.cfg.TLS.Config() // read anew: certificates are renewed
		if err != nil {
			return nil, err
		}
		secure = credentials.NewTLS(config)
	}
	target := s.cfg.Address
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(secure),
		grpc.WithNoProxy(),
		grpc.WithUserAgent("weir"),
		grpc.WithDisableServiceConfig(),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: handshake}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepAlive, Timeout: keepAliveGrace}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
	}
	switch name, abstract := strings.CutPrefix(target, "unix:@"); {
	case s.cfg.Dial != nil:
		target = "passthrough:///agent"
		options = append(options, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return s.cfg.Dial(ctx) }))
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
func (s *Source) token() string {
	if file := s.cfg.Token.File; file != "" {
		if text, err := policy.ReadFile(file, 64<<10); err == nil {
			return strings.TrimSpace(string(text))
		}
	}
	return s.cfg.Token.Reveal()
}
