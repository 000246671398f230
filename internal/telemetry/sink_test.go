package telemetry

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// gate is a writer that hangs until it is opened.
type gate struct {
	open chan struct{}
	bytes.Buffer
}

func (g *gate) Write(p []byte) (int, error) {
	<-g.open
	return g.Buffer.Write(p)
}

// A log that nobody reads holds nobody up; what it missed is counted and told,
// and what was kept comes out whole and in order.
func TestHungLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{open: make(chan struct{})}
		s := NewSink(g)
		log := NewLogger(s, slog.LevelInfo)
		log.Info("line 0")
		synctest.Wait() // the goroutine hangs with it
		start := time.Now()
		for i := range keptLines + 10 {
			log.Info(fmt.Sprintf("line %d", i+1))
		}
		if waited := time.Since(start); waited != 0 || s.Dropped() != 10 {
			t.Errorf("waited %v, %d lines dropped, want 10", waited, s.Dropped())
		}
		s.Close(time.Second)
		if waited := time.Since(start); waited != time.Second {
			t.Errorf("Close waited %v for a writer that hangs", waited)
		}
		log.Info("after the end")
		close(g.open)
		synctest.Wait()
		lines := strings.Split(strings.TrimSpace(g.String()), "\n")
		told := 0
		for i := 0; i < len(lines); i++ {
			if strings.Contains(lines[i], "log lines dropped") {
				lines = append(lines[:i], lines[i+1:]...)
				told++
				i--
			}
		}
		if len(lines) != keptLines+1 || told == 0 {
			t.Fatalf("%d lines, %d of them about dropped ones", len(lines), told)
		}
		for i, line := range lines {
			if !strings.Contains(line, fmt.Sprintf(`"line %d"`, i)) {
				t.Fatalf("line %d is %s", i, line)
			}
		}
	})
}

// Close writes what is kept, at once where the writer takes it.
func TestSinkCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		s := NewSink(&out)
		start := time.Now()
		for range 100 {
			_, _ = s.Write([]byte("x\n"))
		}
		s.Close(time.Minute)
		s.Close(time.Minute)
		if out.String() != strings.Repeat("x\n", 100) || time.Since(start) != 0 || s.Dropped() != 0 {
			t.Errorf("%d bytes after %v", out.Len(), time.Since(start))
		}
	})
}
