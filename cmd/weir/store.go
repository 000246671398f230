package main

import (
	"log/slog"
	"time"

	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
	"github.com/weirproxy/weir/quota/memstore"
	"github.com/weirproxy/weir/quota/redisstore"
)

// settleSlack is how long after a seat must be free its reservation may still
// be settled.
const settleSlack = time.Minute

// openStore opens the store that the policy names. A reservation that nobody
// settles ends by itself after the longest time that a seat may be held. What
// the Redis client itself has to say goes to log at debug level; it is the
// process's one store.
func openStore(p *policy.Policy, log *slog.Logger) (quota.Store, error) {
	var hold time.Duration
	for i := range p.Pools {
		hold = max(hold, p.Pools[i].MaxHold)
	}
	hold += settleSlack
	if p.Store.Redis == nil {
		return memstore.New(memstore.Options{MaxTenants: p.Store.MaxTenants, Hold: hold}), nil
	}
	redisstore.LogTo(log)
	return redisstore.New(*p.Store.Redis, redisstore.Options{
		Replicas: p.Server.Replicas, MaxTenants: p.Store.MaxTenants, Hold: hold, Log: log,
	})
}
