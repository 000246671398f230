package redisclient

import (
	"context"
	_ "embed" // the script
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed rights.lua
var rightsLua string

// rightsScript is immutable.
var rightsScript = redis.NewScript(rightsLua)

// ProbeLife is how long the key of a probe stays at most.
const ProbeLife = time.Minute

// RightsError names what the user of Redis may not do, as an ACL grants it.
type RightsError struct {
	Missing []string
	err     error // Redis' own words; may be nil
}

// Error implements error.
func (e *RightsError) Error() string {
	text := "the user of Redis lacks rights: " + strings.Join(e.Missing, " ")
	if e.err != nil {
		text += " (" + e.err.Error() + ")"
	}
	return text
}

// Unwrap is what Redis said.
func (e *RightsError) Unwrap() error { return e.err }

// Rights are commands that scripts run, to be tried before they are needed:
// lines such as "hset @ 0 0", where @ is the key. SET and DEL are always tried.
type Rights string

// Try runs the commands inside a script on a key, which holds a string
// meanwhile. An error is a *RightsError, which names all that is
// missing, or of a server that does not answer as it should.
func (r Rights) Try(ctx context.Context, c redis.Scripter, prefix, key string) error {
	var commands [][]string
	for line := range strings.Lines(string(r)) {
		if words := strings.Fields(line); len(words) > 0 {
			commands = append(commands, words)
		}
	}
	list, err := json.Marshal(commands)
	if err != nil {
		return err
	}
	missing, err := rightsScript.Run(ctx, c, []string{key}, ProbeLife.Milliseconds(), list).StringSlice()
	switch {
	case err != nil && strings.Contains(err.Error(), "NOPERM") && strings.Contains(err.Error(), "keys"):
		return &RightsError{[]string{"~" + prefix + ":*"}, err}
	case err != nil && strings.Contains(err.Error(), "NOPERM"):
		return &RightsError{[]string{"+eval", "+evalsha"}, err}
	case err != nil:
		return fmt.Errorf("trying the rights: %w", err)
	case len(missing) > 0:
		for i := range missing {
			if missing[i] == "keys" {
				missing[i] = "~" + prefix + ":*"
				continue
			}
			missing[i] = "+" + missing[i]
		}
		return &RightsError{missing, nil}
	}
	return nil
}
