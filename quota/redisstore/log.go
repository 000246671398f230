package redisstore

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/redis/go-redis/v9"
)

// LogTo sends what the Redis client itself has to say (failed dials, mostly)
// to a logger, at debug level; by default it writes plain lines to the
// standard error. It is for the whole process: call it once, before New.
func LogTo(l *slog.Logger) { redis.SetLogger(clientLog{l}) }

type clientLog struct{ to *slog.Logger }

// Printf implements the client's logging interface.
func (l clientLog) Printf(ctx context.Context, format string, v ...any) {
	if l.to.Enabled(ctx, slog.LevelDebug) {
		l.to.DebugContext(ctx, fmt.Sprintf(format, v...))
	}
}
