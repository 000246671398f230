package xds

import (
	"context"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/weirproxy/weir/policy"
)

// caller is who opened a stream, by what the transport knows.
type caller struct {
	address string
	sans    []string // of a verified client certificate: URIs and DNS names
}

func callerOf(ctx context.Context) caller {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return caller{}
	}
	var c caller
	if p.Addr != nil {
		c.address = p.Addr.String()
		if p.Addr.Network() == "unix" && (c.address == "" || c.address == "@") {
			c.address = "unix" // a client's end of a Unix socket has no name
		}
	}
	if info, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(info.State.VerifiedChains) > 0 {
		c.sans = policy.CertificateNames(info.State.PeerCertificates[0])
	}
	return c
}

// admits reports whether a group takes a node: all that the group says must
// match.
func admits(g *policy.XDSGroup, id, cluster string, c caller) bool {
	if g.ID != "" && !policy.MatchesName(g.ID, id) || g.Cluster != "" && !policy.MatchesName(g.Cluster, cluster) {
		return false
	}
	if len(g.SANs) == 0 {
		return true
	}
	for _, pattern := range g.SANs {
		for _, san := range c.sans {
			if policy.MatchesName(pattern, san) {
				return true
			}
		}
	}
	return false
}
