package xds

import (
	"context"
	"fmt"

	"google.golang.org/grpc/peer"

	"github.com/weirproxy/weir/policy"
)

// Admit holds a node that comes from a peer against the groups, as the control
// plane does, for other services that Envoys speak to: nil where one of them
// takes it, or there are none.
func Admit(groups []policy.XDSGroup, id, cluster string, p *peer.Peer) error {
	if len(groups) == 0 {
		return nil
	}
	ctx := context.Background()
	if p != nil {
		ctx = peer.NewContext(ctx, p)
	}
	from := callerOf(ctx)
	for i := range groups {
		if admits(&groups[i], id, cluster, from) {
			return nil
		}
	}
	return fmt.Errorf("no group of envoy.xds.nodes admits node %q of cluster %q", id, cluster)
}
