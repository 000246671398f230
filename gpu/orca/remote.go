package orca

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	orcav3 "github.com/cncf/xds/go/xds/data/orca/v3"
	servicev3 "github.com/cncf/xds/go/xds/service/orca/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/gpu/link"
)

// Errors of a remote look, wrapped with the source's name.
var (
	ErrClosed = errors.New("telemetry source is closed")
	ErrSilent = errors.New("the server reports nothing")
)

// How long a stream may be silent before another one is tried: silentPeriods
// of the period that was asked for, and at least minSilence, since servers
// have a least period of their own (grpc-go's is 30 s).
const (
	silentPeriods = 10
	minSilence    = 2 * time.Minute
)

// Remote listens to one server's xds.service.orca.v3.OpenRcaService, from its
// first look on. Of the reports between two looks the newest counts. A look
// waits for a report where none has come since the last one, and fails at once
// while there is no stream. It is safe for concurrent use and must be closed.
type Remote struct {
	name   string
	every  time.Duration
	link   *link.Link
	life   context.Context
	end    context.CancelFunc
	listen sync.Once
	work   sync.WaitGroup

	mu      sync.Mutex
	changed chan struct{} // closed at each change of what follows
	heard   tally         // since the last look
	down    error         // why there is no stream; nil = there is one, or none was tried yet
}

var _ gpu.Source = (*Remote)(nil)

// NewRemote makes a source that asks for a report each every. Nothing is
// connected yet, but the files must be good. The link's Message is set here.
func NewRemote(name string, every time.Duration, c link.Config) (*Remote, error) {
	c.Message = MaxReport
	l, err := link.New(c)
	if err != nil {
		return nil, fmt.Errorf("telemetry source %s: %w", name, err)
	}
	r := &Remote{name: name, every: every, link: l, changed: make(chan struct{})}
	r.life, r.end = context.WithCancel(context.Background())
	return r, nil
}

// Name is the configured name.
func (r *Remote) Name() string { return r.name }

// Engine is true: whoever reports is an engine.
func (r *Remote) Engine() bool { return true }

// Close ends the connection. Looks under way and later ones fail.
func (r *Remote) Close() error {
	r.listen.Do(func() {}) // never from now on
	r.end()
	r.work.Wait()
	return nil
}

// Sample is the newest report that no look has returned yet, at the instant at
// which it came.
func (r *Remote) Sample(ctx context.Context) (gpu.Sample, error) {
	s, err := r.next(ctx)
	if err != nil {
		return gpu.Sample{}, fmt.Errorf("telemetry source %s: %w", r.name, err)
	}
	return s, nil
}

func (r *Remote) next(ctx context.Context) (gpu.Sample, error) {
	if err := ctx.Err(); err != nil {
		return gpu.Sample{}, err
	}
	r.listen.Do(func() { r.work.Go(func() { r.link.Keep(r.life, r.watch, r.fell) }) })
	for {
		r.mu.Lock()
		heard, down, changed := r.heard, r.down, r.changed
		r.heard = tally{}
		r.mu.Unlock()
		switch {
		case r.life.Err() != nil:
			return gpu.Sample{}, ErrClosed
		case !heard.at.IsZero():
			return heard.sample(r.name)
		case down != nil:
			return gpu.Sample{}, down
		}
		select {
		case <-changed:
		case <-r.life.Done():
		case <-ctx.Done():
			return gpu.Sample{}, fmt.Errorf("no load report: %w", ctx.Err())
		}
	}
}

// change tells waiting looks that fn has changed something.
func (r *Remote) change(fn func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fn()
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *Remote) fell(err error) { r.change(func() { r.down = err }) }

// watch listens to one stream.
func (r *Remote) watch(ctx context.Context, conn *grpc.ClientConn) (heard bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := max(silentPeriods*r.every, minSilence)
	timer := time.AfterFunc(silence, func() { cancel(ErrSilent) })
	defer timer.Stop()
	stream, err := servicev3.NewOpenRcaServiceClient(conn).StreamCoreMetrics(ctx, &servicev3.OrcaLoadReportRequest{ReportInterval: durationpb.New(r.every)})
	if err != nil {
		return false, err
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			if errors.Is(context.Cause(ctx), ErrSilent) {
				err = ErrSilent
			}
			return heard, err
		}
		heard = true
		timer.Reset(silence)
		r.hear(m)
	}
}

// hear takes a report in place of an older one that no look has returned.
func (r *Remote) hear(m *orcav3.OrcaLoadReport) {
	news := tally{}
	news.add(read(m), nil, time.Now())
	r.change(func() {
		for f, n := range r.heard.faults {
			news.faults[f] += n
		}
		r.heard, r.down = news, nil
	})
}
