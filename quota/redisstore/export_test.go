package redisstore

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
)

// NewCut makes a store whose scripts end with an error after so many of their
// commands.
func NewCut(config policy.Redis, after int) (*Store, error) {
	head := fmt.Sprintf(`local commands = 0
local function command(f, ...)
  if commands == %d then return error('cut') end
  commands = commands + 1
  return f(...)
end
`, after)
	change := strings.NewReplacer("redis.call(", "command(redis.call, ", "redis.pcall(", "command(redis.pcall, ").Replace
	return newStore(config, Options{}, newScripts(func(text string) string {
		return head + change(text)
	}))
}

// The modes of the scripts.
const (
	Take, Check, Force = take, check, force
	End, Undo          = settle, undo
)

// ReserveOnly runs the reserve script alone; an error is Redis' own.
func (s *Store) ReserveOnly(ctx context.Context, mode string, now time.Time, id string, claims []quota.Claim) error {
	for _, g := range s.groups(claims) {
		if _, err := s.reserve(ctx, mode, now, 0, id, &g); err != nil {
			return err
		}
	}
	return nil
}

// SettleOnly runs the settle script alone.
func (s *Store) SettleOnly(ctx context.Context, mode string, now time.Time, id string, claims []quota.Claim, final quota.Amount) error {
	for _, g := range s.groups(claims) {
		if _, err := s.settle(ctx, mode, now, id, &g, final); err != nil {
			return err
		}
	}
	return nil
}

// CarryOnly runs the script that takes usage over, for each limit of claims that
// has a period, from the same periods.
func (s *Store) CarryOnly(ctx context.Context, now time.Time, claims []quota.Claim, from []int64) error {
	for _, g := range s.groups(claims) {
		for i := range g.limits {
			l := &g.limits[i]
			if l.limit.Unit == policy.Concurrency {
				continue
			}
			if err := s.carryOne(ctx, s.client.Load(), now, &g, &g.counters[l.counter], l, from); err != nil {
				return err
			}
		}
	}
	return nil
}

// Held is how many units are to be renewed.
func (s *Store) Held() int { return s.held.count() }

// UnitLife is how long a unit counts that nobody renews.
const UnitLife = unitLife
