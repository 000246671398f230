package child

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
)

// maxLine bounds a line of a child's log, in bytes; what is beyond is lost.
const maxLine = 8 << 10

// lines writes what a child says into weir's log: its own lines at their
// level with what they carry, anything else (a dynamic linker's last words)
// as a warning.
type lines struct {
	log  *slog.Logger
	part []byte
}

// Write takes any piece of the child's output.
func (l *lines) Write(p []byte) (int, error) {
	n := len(p)
	for {
		line, rest, whole := bytes.Cut(p, []byte("\n"))
		l.part = append(l.part, line[:min(len(line), maxLine-len(l.part))]...)
		if !whole {
			return n, nil
		}
		l.flush()
		p = rest
	}
}

// flush says the line at hand.
func (l *lines) flush() {
	line := bytes.TrimSpace(l.part)
	defer func() { l.part = l.part[:0] }()
	if len(line) == 0 {
		return
	}
	var said map[string]any
	level := slog.LevelWarn
	message := ""
	if json.Unmarshal(line, &said) == nil {
		message, _ = said["msg"].(string)
		if text, ok := said["level"].(string); ok && level.UnmarshalText([]byte(text)) != nil {
			level = slog.LevelWarn
		}
	}
	if message == "" {
		l.log.Warn("GPU agent says", "line", string(line))
		return
	}
	for _, own := range []string{"time", "level", "msg"} {
		delete(said, own)
	}
	attrs := make([]slog.Attr, 0, len(said))
	for _, key := range slices.Sorted(maps.Keys(said)) {
		attrs = append(attrs, slog.Any(key, said[key]))
	}
	l.log.LogAttrs(context.Background(), level, "GPU agent: "+message, attrs...)
}
