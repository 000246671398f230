package redisstore

import (
	"context"
	"strconv"

	"github.com/weirproxy/weir/internal/redisclient"
)

// rights are the commands that the scripts run, beside SET and DEL.
const rights redisclient.Rights = `
	time
	get @
	pttl @
	pexpire @ 60000
	hgetall @
	hget @ 0
	hset @ 0 0
	hdel @ 0
	zadd @ XX 0 0
	zrem @ 0
	zscore @ 0
	zcount @ -inf +inf
	zremrangebyscore @ -inf 0
`

// probeSlots is how many slots are probed in a cluster at the start: each
// node has users of its own.
const probeSlots = 16

// try runs every command that a decision runs in one slot. An error is of a
// server that would not decide there; rights that are missing are named.
func (s *Store) try(ctx context.Context, c *conn, tag string) error {
	if err := rights.Try(ctx, c, s.prefix, s.key(tag, "p", "")); err != nil {
		return err
	}
	err := c.ZRange(ctx, s.indexKey(tag), 0, 0).Err() // the one command outside of scripts
	if err != nil && classify(err) == ReasonAuth {
		return &redisclient.RightsError{Missing: []string{"+zrange"}}
	}
	return err
}

// arrive looks at the start whether Redis is there and lets this user do all
// it has to, so that what is wrong is known before the first request. All
// that is wrong is an outage here: also what later would concern one key.
func (s *Store) arrive(ctx context.Context) {
	c := s.client.Load()
	warm(ctx, c, s.config.Pool)
	tags := []string{sharedTag}
	if len(s.config.Addresses) > 1 && s.config.Master == "" {
		for i := range probeSlots {
			tags = append(tags, sharedTag+strconv.Itoa(i))
		}
	}
	for _, tag := range tags {
		once, cancel := context.WithTimeout(ctx, dialTimeout)
		err := s.try(once, c, tag)
		cancel()
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			s.away(classify(err), err, tag)
			return
		}
	}
}
