package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// probeLife is how long the key of a probe stays.
const probeLife = time.Minute

// probeSlots is how many slots are probed in a cluster at the start: each
// node has users of its own.
const probeSlots = 16

// rightsError names what the user may not do.
type rightsError struct{ missing []string }

func (e *rightsError) Error() string {
	return "the user of Redis lacks rights: " + strings.Join(e.missing, " ")
}

// try runs every command that the scripts use in one slot. An error is of a
// server that would not decide there; rights that are missing are named.
func (s *Store) try(ctx context.Context, c *conn, tag string) error {
	key := s.key(tag, "p", "")
	missing, err := s.scripts.rights.Run(ctx, c, []string{key}, probeLife.Milliseconds()).StringSlice()
	switch {
	case err != nil && classifyAnswer(err.Error()) == ReasonAuth && strings.Contains(err.Error(), "keys"):
		return fmt.Errorf("%w (%w)", &rightsError{[]string{"~" + s.prefix + ":*"}}, err)
	case err != nil:
		return err
	case len(missing) > 0:
		for i := range missing {
			missing[i] = "+" + missing[i]
		}
		return &rightsError{missing}
	}
	return c.ZRange(ctx, s.indexKey(tag), 0, 0).Err() // the one command outside of scripts
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
