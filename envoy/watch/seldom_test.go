package watch

import (
	"bytes"
	"fmt"
	"log/slog"
	"testing"
	"time"
)

// TestWordsAreBounded: a peer that gives itself a new name each time writes
// saidLimit lines a minute, not one for each.
func TestWordsAreBounded(t *testing.T) {
	var log bytes.Buffer
	s, now := newSeldom(slog.New(slog.NewTextHandler(&log, nil))), time.Unix(1_900_000_000, 0)
	for i := range 5000 {
		s.warn(now.Add(time.Duration(i)*time.Millisecond), fmt.Sprint("denied ", i), "refused")
	}
	if n := bytes.Count(log.Bytes(), []byte("\n")); n != saidLimit {
		t.Errorf("%d lines, want %d", n, saidLimit)
	}
	if s.warn(now.Add(time.Hour), "another", "refused"); bytes.Count(log.Bytes(), []byte("\n")) != saidLimit+1 {
		t.Error("silent for ever")
	}
}
