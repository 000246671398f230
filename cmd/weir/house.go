package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/authz"
	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/extproc"
	"github.com/weirproxy/weir/internal/admin"
	"github.com/weirproxy/weir/internal/listen"
	"github.com/weirproxy/weir/internal/telemetry"
	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
	"github.com/weirproxy/weir/quota/redisstore"
)

// house is one running weir: every room wired to the next.
type house struct {
	log      *slog.Logger
	level    *slog.LevelVar
	sink     *telemetry.Sink // where log writes; nil = it writes to somebody else
	audit    *slog.Logger    // what operators do by hand, at any level of the log; nil = log
	policy   *policy.Holder
	metrics  *telemetry.Metrics
	tracer   atomic.Pointer[telemetry.Tracer]
	verifier *authz.Verifier
	store    quota.Store
	moves    quota.Moves // of usage, over the reloads; the watch of the policy file owns it
	gauges   *gauges
	desk     *admission.Desk
	explain  *admission.Explain
	refusals *admission.Sampler // of the log
	street   *street
	extproc  *extproc.Server
	grpc     *grpc.Server
	health   *health.Server
	admin    *http.Server

	grpcListener, adminListener net.Listener

	draining atomic.Bool
	misled   atomic.Int64                          // unix second of the last line about a route override
	faulted  [extproc.FaultConfig + 1]atomic.Int64 // the same about each kind of fault
	stop     context.CancelFunc                    // of background work
	work     sync.WaitGroup
}

// build wires a house on a policy; nothing listens yet. What was opened is
// closed again on an error.
func build(ctx context.Context, config string, p *policy.Policy, log *slog.Logger, level *slog.LevelVar) (_ *house, err error) {
	h := &house{log: log, level: level, policy: policy.NewHolder(p), gauges: newGauges(log), explain: admission.NewExplain(p.Telemetry.Explain), refusals: admission.NewSampler()}
	h.explain.Configure(&p.Telemetry)
	var background context.Context
	background, h.stop = context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		if err != nil {
			h.close()
		}
	}()
	h.metrics = telemetry.New(p.Telemetry.Tenants, version)
	h.metrics.Policy(p)
	tracer, err := telemetry.NewTracer(background, p.Telemetry.OTLP, version)
	if err != nil {
		return nil, err
	}
	h.tracer.Store(tracer)
	if err = h.gauges.swap(p); err != nil {
		return nil, err
	}
	if h.verifier, err = authz.NewVerifier(&p.Identity, authz.Options{Log: log}); err != nil {
		return nil, err
	}
	if h.store, err = openStore(p, log); err != nil {
		return nil, err
	}
	replica := replicaName(p)
	journal, council := &breaker.Journal{Max: 8192}, breaker.NewCouncil(replica, p.Breaker)
	h.desk = admission.New(admission.Options{
		Policy: p, Store: h.store, Gauges: h.gauges.reading, Settlers: settlers(p), Journal: journal, Council: council,
		Observers: []admission.Observer{h.metrics, h.explain},
	})
	bus, err := openBus(p)
	if err != nil {
		return nil, fmt.Errorf("breaker.cascade: %w", err)
	}
	if h.street, err = newStreet(time.Now(), streetOptions{
		Policy: h.policy.Current, Desk: h.desk, Journal: journal, Council: council, Replica: replica, Bus: bus,
		Unwell: h.gauges.unwell, Metrics: h.metrics, Log: log,
		Trace: func(t *breaker.Transition) { h.tracer.Load().Transition(t) },
	}); err != nil {
		if bus != nil {
			err = errors.Join(err, bus.Close())
		}
		return nil, err
	}
	h.metrics.Pools(h.desk.Snapshot)
	h.metrics.House(h.houseStats)
	h.metrics.Gauges(h.gaugeStats)
	h.metrics.Street(h.street.stats)
	if h.extproc, err = extproc.NewServer(extproc.Options{
		Desk: extproc.NewDesk(h.desk), Policy: h.policy.Current, Verify: h.verifier.Verify, Hooks: h.hooks(),
	}); err != nil {
		return nil, err
	}
	if err = h.listen(p); err != nil {
		return nil, err
	}
	h.street.fill(background)
	h.street.start(background)
	h.watch(background, config)
	h.work.Go(func() { (&seatLog{log: log}).follow(background, h.desk.Snapshot) })
	h.work.Go(func() { (&gaugeLog{log: log}).follow(background, h.gaugeStats) })
	h.work.Go(func() { h.followRefusals(background) })
	return h, nil
}

// settlers is how many goroutines settle: none in memory, where it is cheaper
// to do it at once.
func settlers(p *policy.Policy) int {
	if p.Store.Redis == nil {
		return 0
	}
	return 8
}

// listen opens both listeners and registers the services.
func (h *house) listen(p *policy.Policy) error {
	options := extproc.ServerOptions(p)
	if p.Server.TLS != nil {
		config, err := listen.TLS(p.Server.TLS)
		if err != nil {
			return fmt.Errorf("server.%w", err)
		}
		options = append(options, grpc.Creds(credentials.NewTLS(config)))
	}
	h.grpc = grpc.NewServer(options...)
	h.extproc.Register(h.grpc)
	authv3.RegisterAuthorizationServer(h.grpc, authz.NewServer(h.verifier, h.policy.Current, authz.ServerOptions{
		Log: h.log, Observe: h.metrics.Check, Begin: h.checking,
		Refused:          h.refusedAtTheDoor,
		OverrideRejected: func(err *policy.OverrideError) { h.metrics.OverrideRejected(string(err.Channel)) },
		Panicked:         func() { h.metrics.Panic("authz") },
	}))
	h.street.register(h.grpc)
	h.health = health.NewServer()
	healthpb.RegisterHealthServer(h.grpc, h.health)
	h.admin = &http.Server{
		Handler: admin.New(admin.Options{
			Token:   func() policy.Secret { return h.policy.Current().Server.AdminToken },
			Ready:   h.ready,
			Trouble: h.trouble,
			Metrics: h.metrics.Handler(),
			Queue:   func(now time.Time) any { return queuePicture(h.desk.Snapshot(now)) },
			GPU:     h.gpuPicture,
			Quotas:  h.quotas,
			Config:  func() ([]byte, error) { return h.policy.Current().Dump(), nil },
			Explain: h.explained,
			Recent:  func(n int) any { return h.explain.Recent(n) },

			Breakers: h.street.breakers,
			Act:      h.act,
			Envoys:   h.street.envoys,
			Timeline: func(q admin.TimelineQuery) any { return h.street.timeline.view(q) },
			Log:      h.log,
		}),
		ConnContext:       admin.ConnContext,
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          slog.NewLogLogger(h.log.Handler(), slog.LevelWarn),
	}
	var err error
	if h.adminListener, err = listen.Open(p.Server.Admin); err != nil {
		return fmt.Errorf("server.admin: %w", err)
	}
	if h.grpcListener, err = listen.Open(p.Server.GRPC); err != nil {
		return fmt.Errorf("server.grpc: %w", err)
	}
	return nil
}

// open serves; the channel tells the first listener that fails.
func (h *house) open() <-chan error {
	failed := make(chan error, 2)
	h.work.Go(func() {
		if err := h.grpc.Serve(h.grpcListener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			failed <- err
		}
	})
	h.work.Go(func() {
		if err := h.admin.Serve(h.adminListener); err != nil && !errors.Is(err, http.ErrServerClosed) {
			failed <- err
		}
	})
	return failed
}

// ready is nil when weir may get requests.
func (h *house) ready() error {
	switch {
	case h.draining.Load():
		return errors.New("draining")
	case h.policy.Current().Identity.From != policy.FromMetadata && !h.verifier.Ready():
		return errors.New("no usable keys: tokens cannot be verified")
	}
	return nil
}

// trouble lists what is wrong although requests are served.
func (h *house) trouble() []string {
	var lines []string
	for _, k := range h.verifier.Stats().KeySets {
		if k.Trouble != "" {
			lines = append(lines, fmt.Sprintf("keys of issuer %q are %v old: %s", k.Issuer, k.Age.Round(time.Second), k.Trouble))
		}
	}
	return lines
}

func (h *house) quotas(ctx context.Context, tenant string) ([]quota.Counter, error) {
	return h.store.Usage(ctx, time.Time{}, tenant)
}

// act does to a breaker what an operator asks.
func (h *house) act(ctx context.Context, a admin.Action) (any, error) {
	audit := h.audit
	if audit == nil {
		audit = h.log
	}
	return h.street.act(ctx, audit, a)
}

func (h *house) gpuPicture(pool string, now time.Time) (any, bool) {
	v := gpuPicture(h.gaugeStats(), pool, now)
	return v, pool == "" || len(v.Pools) > 0
}

func (h *house) explained(id string) (any, bool) {
	r, ok := h.explain.Find(id)
	return &r, ok
}

// close ends everything in the reverse order of build. Safe on half a house.
func (h *house) close() {
	h.stop()
	if h.grpc != nil {
		h.grpc.Stop()
	}
	if h.admin != nil {
		_ = h.admin.Close() // listeners and connections; nothing to save
	}
	for _, l := range []net.Listener{h.grpcListener, h.adminListener} {
		if l != nil {
			_ = l.Close() // closed by its server already when it served
		}
	}
	if h.extproc != nil {
		h.extproc.Wait()
	}
	h.work.Wait()
	if h.street != nil {
		h.street.close()
	}
	if h.desk != nil {
		h.desk.Close()
	}
	if r, ok := h.store.(*redisstore.Store); ok {
		r.Flush(context.Background()) // bounded, and it logs what is left
	}
	if h.store != nil {
		if err := h.store.Close(); err != nil {
			h.log.Warn("close store", "error", err)
		}
	}
	if h.verifier != nil {
		h.verifier.Close()
	}
	h.gauges.close()
	h.closeTracer(h.tracer.Load())
}
