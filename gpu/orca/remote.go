package orca

import (
	"context"
	"errors"
	"fmt"
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
	ErrClosed = link.ErrClosed
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
	name  string
	every time.Duration
	inbox *link.Inbox[tally]
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
	r := &Remote{name: name, every: every}
	r.inbox = link.NewInbox[tally](l, r.watch, "no load report")
	return r, nil
}

// Name is the configured name.
func (r *Remote) Name() string { return r.name }

// Engine is true: whoever reports is an engine.
func (r *Remote) Engine() bool { return true }

// Close ends the connection. Looks under way and later ones fail.
func (r *Remote) Close() error {
	r.inbox.Close()
	return nil
}

// Sample is the newest report that no look has returned yet, at the instant at
// which it came.
func (r *Remote) Sample(ctx context.Context) (gpu.Sample, error) {
	heard, err := r.inbox.Take(ctx)
	var s gpu.Sample
	if err == nil {
		s, err = heard.sample(r.name)
	}
	if err != nil {
		return gpu.Sample{}, fmt.Errorf("telemetry source %s: %w", r.name, err)
	}
	return s, nil
}

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
	r.inbox.Put(func(untaken tally) tally {
		for f, n := range untaken.faults {
			news.faults[f] += n
		}
		return news
	})
}
