package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/weirproxy/weir/internal/listen"
	"github.com/weirproxy/weir/policy"
)

// guard asks whoever wants to see GPUs for the proofs that the flags name. The
// zero value asks for none.
type guard struct {
	certificate bool   // a verified one
	tokenFile   string // "" = no token
}

var (
	errNoCertificate = errors.New("a client certificate is needed")
	errNoToken       = errors.New("a bearer token is needed, and it must be the right one")
)

// secure makes the TLS of both listeners; nil = none. A client's certificate
// is verified where there is one; that there must be one is the guard's to
// say, because a kubelet that checks health has none.
func secure(o *options) (*tls.Config, error) {
	files := o.tls()
	if files == nil {
		return nil, nil
	}
	config, err := listen.TLS(files)
	if err != nil {
		return nil, fmt.Errorf("--tls-cert, --tls-key, --client-ca: %w", err)
	}
	if config.ClientAuth == tls.RequireAndVerifyClientCert {
		config.ClientAuth = tls.VerifyClientCertIfGiven
	}
	return config, nil
}

func (g guard) judge(connection *tls.ConnectionState, authorization string) error {
	if g.certificate && (connection == nil || len(connection.VerifiedChains) == 0) {
		return errNoCertificate
	}
	if g.tokenFile == "" {
		return nil
	}
	text, err := policy.ReadFile(g.tokenFile, 64<<10)
	want := strings.TrimSpace(string(text))
	if err != nil || want == "" {
		return errNoToken // not even an empty one is right while the file is broken
	}
	token, ok := strings.CutPrefix(authorization, "Bearer ")
	if !ok || !policy.NewSecret("", want).Equal(token) {
		return errNoToken
	}
	return nil
}

func (g guard) stream(ctx context.Context) error {
	var connection *tls.ConnectionState
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok {
			connection = &info.State
		}
	}
	md, _ := metadata.FromIncomingContext(ctx)
	authorization := ""
	if v := md.Get("authorization"); len(v) > 0 {
		authorization = v[0]
	}
	return g.judge(connection, authorization)
}

func (g guard) request(r *http.Request) error {
	return g.judge(r.TLS, r.Header.Get("Authorization"))
}
