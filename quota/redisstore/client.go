package redisstore

import (
	"context"
	"sync"

	"github.com/weirproxy/weir/internal/redisclient"
)

// conn is a client; a pointer to it can be swapped.
type conn = redisclient.Client

const dialTimeout = redisclient.DialTimeout

// warm opens a part of the pool ahead of the first decisions, which have no
// time for handshakes.
func warm(ctx context.Context, c *conn, pool int) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	var wg sync.WaitGroup
	for range (pool + 3) / 4 {
		wg.Go(func() { _ = c.Ping(ctx).Err() }) // a miss shows at the first decision
	}
	wg.Wait()
}
