package redisstore

import (
	"context"
	_ "embed" // the scripts
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
)

//go:embed lua/log.lua
var logLua string

//go:embed lua/window.lua
var windowLua string

//go:embed lua/reserve.lua
var reserveLua string

//go:embed lua/settle.lua
var settleLua string

//go:embed lua/renew.lua
var renewLua string

//go:embed lua/carry.lua
var carryLua string

//go:embed lua/usage.lua
var usageLua string

// scripts are sent by their digest, and in full to a server that does not
// know it.
type scripts struct{ reserve, settle, renew, usage, carry *redis.Script }

// newScripts makes the scripts; change is what tests do to their text.
func newScripts(change func(string) string) *scripts {
	script := func(parts ...string) *redis.Script {
		return redis.NewScript(change(strings.Join(parts, "")))
	}
	return &scripts{
		reserve: script(logLua, windowLua, reserveLua),
		settle:  script(logLua, windowLua, settleLua),
		renew:   script(logLua, windowLua, renewLua),
		usage:   script(logLua, windowLua, usageLua),
		carry:   script(logLua, windowLua, carryLua),
	}
}

// Modes of the scripts.
const (
	take   = "take"
	check  = "check"
	force  = "force"
	settle = "settle"
	undo   = "undo"
)

// slack is the extra life of keys, in ms: clocks of a fail-over's two servers
// may differ, and a key must not end before what it counts.
const slack = 60_000

// Reply states of the reserve script.
const (
	refused = iota
	taken
	repeated
)

// reply is what the reserve script answers, by the group's counters.
type reply struct {
	state   int64
	now     int64 // ms
	used    []int64
	windows []*quota.Window // of those that refuse; else nil
}

var errReply = errors.New("redisstore: a script's answer has an unknown form")

func durationOf(n int64) time.Duration { return time.Duration(n) }

// stamp is now for a script: 0 is the server's clock.
func stamp(now time.Time) int64 {
	if now.IsZero() {
		return 0
	}
	return quota.Ticks(now)
}

func (s *Store) keys(id string, g *group) []string {
	keys := make([]string, 0, len(g.counters)+3)
	keys = append(keys, s.recordKey(g.tag, id), s.logKey(g.tag), s.indexKey(g.tag))
	for i := range g.counters {
		keys = append(keys, g.counters[i].key)
	}
	return keys
}

// reserve runs the reserve script on one slot.
func (s *Store) reserve(ctx context.Context, mode string, now time.Time, age time.Duration, id string, g *group) (reply, error) {
	return s.reserveOn(ctx, s.client.Load(), mode, now, age, id, g)
}

func (s *Store) reserveOn(ctx context.Context, c *conn, mode string, now time.Time, age time.Duration, id string, g *group) (reply, error) {
	life := unitLife.Milliseconds()
	if !now.IsZero() {
		life = 0 // no replica can renew by a clock that is its caller's
	}
	args := make([]any, 0, 8+4*len(g.counters))
	args = append(args, mode, stamp(now), max(age.Milliseconds(), 0), id, s.holdFor, life, quota.KeepSettled.Milliseconds(), slack)
	for i := range g.counters {
		n := &g.counters[i]
		args = append(args, n.period, n.max, n.amount, n.member)
	}
	answer, err := s.scripts.reserve.Run(ctx, c, s.keys(id, g), args...).Slice()
	if err != nil {
		return reply{}, err
	}
	return parseReply(answer, len(g.counters))
}

func parseReply(answer []any, counters int) (reply, error) {
	if len(answer) < 3 {
		return reply{}, errReply
	}
	r := reply{windows: make([]*quota.Window, counters)}
	state, ok := answer[0].(int64)
	now, ok2 := number(answer[1])
	used, ok3 := answer[2].(string)
	if !ok || !ok2 || !ok3 {
		return reply{}, errReply
	}
	r.state, r.now, r.used = state, now, make([]int64, 0, counters)
	for text := range strings.FieldsSeq(used) {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return reply{}, errReply
		}
		r.used = append(r.used, n)
	}
	if len(r.used) != counters {
		return reply{}, errReply
	}
	for _, one := range answer[3:] {
		if err := r.window(one); err != nil {
			return reply{}, err
		}
	}
	return r, nil
}

// window reads one refusing window: its number and its cells.
func (r *reply) window(answer any) error {
	pair, ok := answer.([]any)
	if !ok || len(pair) != 2 {
		return errReply
	}
	at, ok := pair[0].(int64)
	cells, ok2 := pair[1].([]any)
	if !ok || !ok2 || at < 1 || at > int64(len(r.windows)) || len(cells)%2 != 0 {
		return errReply
	}
	w := &quota.Window{}
	for i := 0; i < len(cells); i += 2 {
		cell, ok := number(cells[i])
		n, ok2 := number(cells[i+1])
		if !ok || !ok2 || cell < 0 {
			return errReply
		}
		w.Set(cell, n)
	}
	r.windows[at-1] = w
	return nil
}

func number(v any) (int64, bool) {
	text, ok := v.(string)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil
}

// settle runs the settle script on one slot and reports how many cells had
// vanished.
func (s *Store) settle(ctx context.Context, mode string, now time.Time, id string, g *group, final quota.Amount) (lost int64, err error) {
	return s.settleOn(ctx, s.client.Load(), mode, now, id, g, final)
}

func (s *Store) settleOn(ctx context.Context, c *conn, mode string, now time.Time, id string, g *group, final quota.Amount) (lost int64, err error) {
	args := make([]any, 0, 5+3*len(g.counters))
	args = append(args, mode, stamp(now), id, quota.KeepSettled.Milliseconds(), slack)
	for i := range g.counters {
		n := &g.counters[i]
		args = append(args, n.period, final.Of(n.unit), n.member)
	}
	keys := s.keys(id, g)
	for _, h := range s.heirs(g) {
		keys, args = append(keys, h.key), append(args, h.period, "of "+strconv.Itoa(h.of+1), h.member)
	}
	answer, err := s.scripts.settle.Run(ctx, c, keys, args...).Int64Slice()
	if err != nil {
		return 0, err
	}
	if len(answer) != 2 {
		return 0, errReply
	}
	return answer[1], nil
}

// list reads a slot's index, then its counters.
func (s *Store) list(ctx context.Context, now time.Time, tenant string) ([]quota.Counter, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	tag, client := tagOf(tenant), s.client.Load()
	members, err := client.ZRange(ctx, s.indexKey(tag), 0, -1).Result()
	if err != nil {
		return nil, err
	}
	var counters []quota.Counter
	at := make(map[string]int) // key → index; a limit that changed is listed twice, the newest last
	var keys []string
	args := []any{stamp(now)}
	for _, m := range members {
		c, ok := parseMember(m)
		if !ok {
			continue
		}
		var period int64
		if c.Limit.Unit != policy.Concurrency {
			period = quota.Period(c.Limit.Per)
		}
		key := s.counterKey(tag, c.Limit.Unit, period, c.Key)
		if i, ok := at[key]; ok {
			counters[i] = c
			continue
		}
		at[key] = len(counters)
		counters, keys, args = append(counters, c), append(keys, key), append(args, period)
	}
	if len(keys) == 0 {
		return nil, nil
	}
	used, err := s.scripts.usage.Run(ctx, client, keys, args...).StringSlice()
	if err != nil {
		return nil, err
	}
	if len(used) != len(counters) {
		return nil, errReply
	}
	for i := range counters {
		if counters[i].Used, err = strconv.ParseInt(used[i], 10, 64); err != nil {
			return nil, fmt.Errorf("%w: %w", errReply, err)
		}
	}
	return counters, nil
}
