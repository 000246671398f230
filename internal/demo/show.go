package demo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// phase is a stretch of the show with one load.
type phase struct {
	name string
	load float64 // of the pools' capacity
	long time.Duration
}

// show is the load and its picture.
type show struct {
	*stage
	phases  []phase
	callers []*caller
	start   time.Time
	total   time.Duration
	marks   []rune // sparkline of what waits
	drawn   int    // lines of the last picture
}

func newShow(s *stage) *show {
	v := &show{stage: s, phases: []phase{{"steady", 0.5, 6 * time.Second}, {"burst", 4, 8 * time.Second}, {"steady", 0.5, 8 * time.Second}}}
	if s.o.Short {
		v.phases = []phase{{"steady", 0.5, time.Second}, {"burst", 4, 3 * time.Second}, {"steady", 0.5, 2 * time.Second}}
	}
	for _, p := range v.phases {
		v.total += p.long
	}
	client := &http.Client{Transport: &http.Transport{
		MaxIdleConns: 2000, MaxIdleConnsPerHost: 2000,
		DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
	}}
	for i, g := range Groups() {
		v.callers = append(v.callers, &caller{group: g, url: "http://" + s.addr + "/v1/chat/completions", token: s.tokens[i], client: client})
	}
	return v
}

// play runs the phases and prints the summary.
func (v *show) play(ctx context.Context) error {
	capacity, err := v.measure(ctx)
	if err != nil {
		return err
	}
	v.say("Capacity: %d + %d seats, measured %.0f requests a second. Steady load at half of it, then a burst of four times as much.\n", fp16Seats, int8Seats, capacity)
	v.start = time.Now()
	stop := v.watch(ctx)
	for i, p := range v.phases {
		v.run(ctx, p, capacity, uint64(i))
	}
	for _, c := range v.callers {
		c.wg.Wait()
	}
	stop()
	return errors.Join(ctx.Err(), v.summary(ctx))
}

// measure fills every seat once to learn how long an answer takes.
func (v *show) measure(ctx context.Context) (perSecond float64, err error) {
	c := &caller{group: Groups()[1], url: v.callers[1].url, token: v.callers[1].token, client: v.callers[1].client}
	ctx, stop := context.WithTimeout(ctx, 30*time.Second)
	defer stop()
	start := time.Now()
	for range fp16Seats {
		c.wg.Go(func() { c.try(ctx, false) })
	}
	c.wg.Wait()
	took := time.Since(start)
	if r := c.tally.read(); r.bad > 0 || r.admitted != fp16Seats {
		return 0, fmt.Errorf("the first %d requests did not all get through (%d did): %s", fp16Seats, r.admitted, r.lastBad)
	}
	return float64(fp16Seats+int8Seats) / took.Seconds(), nil
}

// run offers one phase's load.
func (v *show) run(ctx context.Context, p phase, capacity float64, seed uint64) {
	ctx, stop := context.WithTimeout(ctx, p.long)
	defer stop()
	var wg sync.WaitGroup
	for i, c := range v.callers {
		c.left = v.start.Add(v.total + 10*time.Second)
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		wg.Go(func() { c.offer(ctx, p.load*capacity*c.group.share, rng) })
	}
	wg.Wait()
}

// watch draws the picture until the returned function is called.
func (v *show) watch(ctx context.Context) (stop func()) {
	every := time.Second
	if v.o.Live {
		every = 250 * time.Millisecond
	}
	done, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				v.draw(ctx)
			case <-done:
				v.draw(ctx)
				return
			}
		}
	}()
	return func() { close(done); <-gone }
}

const header = "class     tenant           sent admitted  queued degraded     429     503  p50 wait  p99 wait   tokens"

// draw prints the table over the last one, or one line where nobody looks.
func (v *show) draw(ctx context.Context) {
	waiting := v.waiting(ctx)
	v.marks = append(v.marks, spark(waiting))
	at := time.Since(v.start)
	name := v.phaseAt(at)
	if !v.o.Live {
		line := fmt.Sprintf("%5.1fs %-6s waiting %3d", at.Seconds(), name, waiting)
		for _, c := range v.callers {
			r := c.tally.read()
			line += fmt.Sprintf(" | %s %d sent, %d ok, %d x 429, %d x 503", c.group.Class, r.sent, r.admitted, r.rejected, r.shed)
		}
		v.say("%s", line)
		return
	}
	var b strings.Builder
	if v.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", v.drawn)
	}
	const width = 40
	filled := int(width * min(1, at.Seconds()/v.total.Seconds()))
	lines := []string{fmt.Sprintf("[%s%s] %4.1fs  %s", strings.Repeat("#", filled), strings.Repeat("-", width-filled), at.Seconds(), name), header}
	for _, c := range v.callers {
		tokens, err := v.charged(ctx, c.group.Tenant)
		if err != nil {
			tokens = c.tokens // weir is busy: the last known figure
		}
		c.tokens = tokens
		lines = append(lines, tableRow(c, tokens))
	}
	marks := v.marks[max(0, len(v.marks)-80):]
	lines = append(lines, fmt.Sprintf("waiting %3d  %s", waiting, string(marks)))
	for _, l := range lines {
		b.WriteString("\x1b[2K" + l + "\n")
	}
	v.drawn = len(lines)
	fmt.Fprint(v.o.Out, b.String())
}

func tableRow(c *caller, tokens int64) string {
	r := c.tally.read()
	return fmt.Sprintf("%-9s %-14s %6d %8d %7d %8d %7d %7d %9s %9s %8d", c.group.Class, c.group.Tenant, r.sent, r.admitted, r.queued,
		r.degraded, r.rejected, r.shed, short(r.p50), short(r.p99), tokens)
}

func short(d time.Duration) string { return d.Round(time.Millisecond).String() }

// spark is one sign of a sparkline of up to 200 waiting.
func spark(n int) rune {
	signs := []rune(" ▁▂▃▄▅▆▇█")
	if n == 0 {
		return signs[0]
	}
	return signs[min(len(signs)-1, 1+n*8/200)]
}

func (v *show) phaseAt(at time.Duration) string {
	for _, p := range v.phases {
		if at < p.long {
			return p.name
		}
		at -= p.long
	}
	return "end"
}
