package redisclient

import (
	"context"
	"net"

	"github.com/redis/go-redis/v9"

	"github.com/weirproxy/weir/internal/nopanic"
)

// newClient is redis.NewUniversalClient, with two differences: the panic of a
// call is its error, and a Cluster is not asked how its commands are routed:
// every script names its keys, and that answer would be waited for within a
// decision's time.
func newClient(o *redis.UniversalOptions) redis.UniversalClient {
	if o.MasterName != "" || len(o.Addrs) == 1 && !o.IsClusterMode {
		c := redis.NewUniversalClient(o)
		c.AddHook(noPanic{})
		return c
	}
	cluster := o.Cluster()
	cluster.DisableRoutingPolicies = true
	cluster.NewClient = func(node *redis.Options) *redis.Client {
		c := redis.NewClient(node)
		c.AddHook(noPanic{}) // also for what the library asks in goroutines of its own
		return c
	}
	c := redis.NewClusterClient(cluster)
	c.AddHook(noPanic{})
	return c
}

// noPanic makes a panic within the library the error of the call.
type noPanic struct{}

func (noPanic) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (c net.Conn, err error) {
		defer nopanic.Catch(&err)
		return next(ctx, network, addr)
	}
}

func (noPanic) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) (err error) {
		defer nopanic.Catch(&err)
		return next(ctx, cmd)
	}
}

func (noPanic) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) (err error) {
		defer nopanic.Catch(&err)
		return next(ctx, cmds)
	}
}
