package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// A round gives each server two slices of its time, in the order noop, weir,
// weir, noop: what changes steadily meanwhile falls on both alike.
var order = []bool{false, true, true, false} // weir?

// sample is what one round found for one shape.
type sample struct {
	noop, weir float64 // µs of CPU a call
	foreign    float64 // CPUs that others used meanwhile
}

func (s sample) ratio() float64 { return s.weir / s.noop }

const (
	warmUp     = 300 * time.Millisecond
	quiet      = 0.2 // CPUs used by others that a round may pass with
	moreRounds = 1   // times as many rounds again, where they were disturbed
)

// measure runs the rounds. Where others used the CPUs, it runs as many again
// while the time lasts, and the quietest count.
func (h *harness) measure(ctx context.Context, o *options, r *results) error {
	began := time.Now()
	for i := range h.shapes {
		for _, s := range []*server{h.noop, h.shapes[i].weir} {
			if _, err := h.clients[s].Run(ctx, h.shapes[i].calls, o.inFlight, warmUp); err != nil {
				return fmt.Errorf("%s, %s: %w", s.name, h.shapes[i].name, err)
			}
		}
	}
	samples := make([][]sample, len(h.shapes))
	for round := range o.rounds * (1 + moreRounds) {
		if round >= o.rounds && !disturbed(samples, o.rounds) {
			break
		}
		if round > 0 && time.Since(began) > o.limit {
			break
		}
		for i := range h.shapes {
			at := (i + round) % len(h.shapes)
			s, err := h.round(ctx, &h.shapes[at], o)
			if err != nil {
				return err
			}
			samples[at] = append(samples[at], s)
		}
		r.Rounds++
	}
	for i := range h.shapes {
		r.add(h.shapes[i].name, quietest(samples[i], o.rounds))
	}
	return h.admitted(ctx)
}

// disturbed reports whether a shape has too few quiet rounds yet.
func disturbed(samples [][]sample, want int) bool {
	return slices.ContainsFunc(samples, func(list []sample) bool {
		calm := 0
		for _, s := range list {
			if s.foreign <= quiet {
				calm++
			}
		}
		return calm < want
	})
}

func quietest(list []sample, n int) []sample {
	sorted := slices.SortedStableFunc(slices.Values(list), func(a, b sample) int {
		return cmp.Compare(max(a.foreign, quiet), max(b.foreign, quiet))
	})
	return sorted[:min(n, len(sorted))]
}

// round measures one shape once on both servers.
func (h *harness) round(ctx context.Context, s *shape, o *options) (sample, error) {
	var used [2]time.Duration
	var calls [2]int64
	began := time.Now()
	before, err := busy()
	if err != nil {
		return sample{}, err
	}
	own, err := h.ownCPU()
	if err != nil {
		return sample{}, err
	}
	slice := time.Duration(o.seconds / 2 * float64(time.Second))
	for _, isWeir := range order {
		side, srv := 0, h.noop
		if isWeir {
			side, srv = 1, s.weir
		}
		n, spent, err := h.slice(ctx, srv, s, o.inFlight, slice)
		if err != nil {
			return sample{}, fmt.Errorf("%s, %s: %w", srv.name, s.name, err)
		}
		calls[side] += n
		used[side] += spent
	}
	after, err := busy()
	if err != nil {
		return sample{}, err
	}
	ownAfter, err := h.ownCPU()
	if err != nil {
		return sample{}, err
	}
	others := (after - before) - (ownAfter - own)
	perCall := func(side int) float64 { return float64(used[side]) / 1e3 / float64(calls[side]) }
	return sample{noop: perCall(0), weir: perCall(1), foreign: max(0, others.Seconds()/time.Since(began).Seconds())}, nil
}

// slice drives one server for a time; every call that it starts ends in it.
func (h *harness) slice(ctx context.Context, srv *server, s *shape, inFlight int, d time.Duration) (int64, time.Duration, error) {
	before, err := cpu(srv.pid())
	if err != nil {
		return 0, 0, err
	}
	n, err := h.clients[srv].Run(ctx, s.calls, inFlight, d)
	if err != nil {
		return 0, 0, err
	}
	after, err := cpu(srv.pid())
	if err == nil && n == 0 {
		err = errors.New("no call came to its end")
	}
	return n, after - before, err
}

// admitted makes sure that what was measured are admissions: a refusal costs
// less.
func (h *harness) admitted(ctx context.Context) error {
	for _, w := range h.weirs {
		for metric, good := range map[string]string{
			"weir_decisions_total":    `reason="admitted"`,
			"weir_authz_checks_total": `code="ok"`,
		} {
			values, err := w.counters(ctx, metric)
			if err != nil {
				return err
			}
			for labels, v := range values {
				if v > 0 && !strings.Contains(labels, good) {
					return fmt.Errorf("%s: %s{%s} is %g: not everything was admitted", w.name, metric, labels, v)
				}
			}
		}
	}
	return nil
}

// countAllocations finds the heap objects of one Check, of the whole process.
func (h *harness) countAllocations(ctx context.Context, o *options, r *results) error {
	check := &h.shapes[0]
	for _, srv := range []*server{h.noop, check.weir} {
		scrape, err := h.mallocs(ctx, srv, check, o, 0)
		if err != nil {
			return err
		}
		run, err := h.mallocs(ctx, srv, check, o, 300*time.Millisecond)
		if err != nil {
			return err
		}
		a := allocations{
			Objects: round((run.objects - scrape.objects) / float64(run.calls)),
			Bytes:   round((run.bytes - scrape.bytes) / float64(run.calls)),
		}
		if srv == h.noop {
			r.Allocations.Noop = a
		} else {
			r.Allocations.Weir = a
		}
	}
	r.AllocsCheck = r.Allocations.Weir.Objects
	return nil
}

type heap struct {
	calls          int64
	objects, bytes float64
}

// mallocs is what happens on a server's heap between two looks, with load for
// d between them; the looks themselves count.
func (h *harness) mallocs(ctx context.Context, srv *server, s *shape, o *options, d time.Duration) (heap, error) {
	look := func() (objects, bytes float64, err error) {
		page := map[string]float64{}
		for _, name := range []string{"go_memstats_mallocs_total", "go_memstats_alloc_bytes_total"} {
			values, err := srv.counters(ctx, name)
			if err != nil {
				return 0, 0, err
			}
			page[name] = values[""]
		}
		return page["go_memstats_mallocs_total"], page["go_memstats_alloc_bytes_total"], nil
	}
	objects, bytes, err := look()
	if err != nil {
		return heap{}, err
	}
	var out heap
	if d > 0 {
		if out.calls, err = h.clients[srv].Run(ctx, s.calls, o.inFlight, d); err != nil {
			return heap{}, err
		}
	}
	objectsAfter, bytesAfter, err := look()
	out.objects, out.bytes = objectsAfter-objects, bytesAfter-bytes
	return out, err
}

// ownCPU is what the harness and its servers have used.
func (h *harness) ownCPU() (time.Duration, error) {
	sum, err := cpu(self)
	for _, s := range append(h.weirs, h.noop) {
		var t time.Duration
		if err == nil {
			t, err = cpu(s.pid())
			sum += t
		}
	}
	return sum, err
}
