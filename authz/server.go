package authz

import (
	"context"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weirproxy/weir/identity"
	"github.com/weirproxy/weir/policy"
)

// Server answers envoy.service.auth.v3.Authorization/Check: who asks, and may
// they use this API (K1, service and function level). It sees no bodies,
// takes no seats and charges nothing.
//
// Allowed calls carry the identity as dynamic metadata, refused ones a mark
// and no tenant. Headers that only weir may set are taken off the request,
// and the token too, unless identity.forward is on.
type Server struct {
	authv3.UnimplementedAuthorizationServer
	verifier *Verifier
	policy   func() *policy.Policy
	o        ServerOptions
	warned   atomic.Int64 // unix seconds of the last line about a bad override
}

// ServerOptions are hooks; all may be nil.
type ServerOptions struct {
	Log *slog.Logger
	// Observe is told each answer: "ok", "preflight", a denial's code,
	// "path_unknown", "path_invalid", "override_invalid" or "internal".
	Observe func(code string, took time.Duration)
	// OverrideRejected is told each call on a misconfigured route.
	OverrideRejected func()
	// Panicked is told each recovered panic.
	Panicked func()
}

// NewServer serves by the policy that the function returns; each call asks
// once. The verifier stays its owner's to close.
func NewServer(v *Verifier, p func() *policy.Policy, o ServerOptions) *Server {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Observe == nil {
		o.Observe = func(string, time.Duration) {}
	}
	if o.OverrideRejected == nil {
		o.OverrideRejected = func() {}
	}
	if o.Panicked == nil {
		o.Panicked = func() {}
	}
	return &Server{verifier: v, policy: p, o: o}
}

// Check implements authv3.AuthorizationServer. A refusal is a denied
// response; an error means that weir or its configuration is at fault.
func (s *Server) Check(ctx context.Context, req *authv3.CheckRequest) (resp *authv3.CheckResponse, err error) {
	start := time.Now()
	code := "internal"
	defer func() {
		if caught := recover(); caught != nil {
			s.o.Panicked()
			s.o.Log.Error("panic in ext_authz", "panic", caught, "stack", string(debug.Stack()))
			resp, err = nil, status.Error(codes.Internal, "weir: internal error")
		}
		s.o.Observe(code, time.Since(start))
	}()
	resp, code, err = s.check(ctx, start, req.GetAttributes())
	return resp, err
}

func (s *Server) check(ctx context.Context, now time.Time, a *authv3.AttributeContext) (*authv3.CheckResponse, string, error) {
	if a.GetRequest().GetHttp() == nil {
		return nil, "internal", status.Error(codes.InvalidArgument, "weir: a CheckRequest without an HTTP request")
	}
	c, p := call{a.GetRequest().GetHttp()}, s.policy()
	path, clean := policy.CleanPath(c.http.GetPath())
	if p.Identity.Preflight && clean && c.isPreflight() {
		return s.preflight(p, c), "preflight", nil
	}
	who, denial := s.verifier.verify(ctx, now, c.values)
	if denial != nil {
		return refuse(c, answerOf(denial)), denial.Code, nil
	}
	if !clean {
		return refuse(c, pathInvalid), pathInvalid.observed, nil
	}
	e, err := effective(p, a)
	if err != nil {
		s.rejectOverride(now, path, err)
		return nil, "override_invalid", status.Error(codes.FailedPrecondition, "weir: this route is misconfigured")
	}
	api, ok := e.Route(c.http.GetMethod(), path)
	if !ok {
		return refuse(c, pathUnknown), pathUnknown.observed, nil
	}
	if f := missingFunction(e, api, who.id); f != "" {
		d := identity.MissingScope(p.Identity.Realm, f)
		return refuse(c, answerOfFunction(d)), d.Code, nil
	}
	return s.allow(p, c, who), "ok", nil
}

// missingFunction is the first function scope that the identity lacks: the
// route's and, because a route may only narrow, also the API's, unless the
// policy lets routes loosen.
func missingFunction(e *policy.Effective, api *policy.API, id *identity.Identity) string {
	if f := e.FunctionOf(api); !id.FunctionAllowed(f) {
		return f
	}
	if !e.Envoy.AllowLoosen && !id.FunctionAllowed(api.Function) {
		return api.Function
	}
	return ""
}

// rejectOverride makes a misconfigured route loud: a count for each call and
// a line once a second.
func (s *Server) rejectOverride(now time.Time, path string, err error) {
	s.o.OverrideRejected()
	last := s.warned.Load()
	if now.Unix() > last && s.warned.CompareAndSwap(last, now.Unix()) {
		s.o.Log.Error("route override rejected: calls on this route fail", "path", path, "error", err)
	}
}

// allow answers OK. The common answer, without a forged header, is made once
// for each token.
func (s *Server) allow(p *policy.Policy, c call, who *verified) *authv3.CheckResponse {
	remove := s.removed(p, c)
	if len(remove) == 1 && remove[0] == authorization {
		return who.stripped
	}
	return okResponse(who.fields, remove)
}

const authorization = "authorization"

func (s *Server) preflight(p *policy.Policy, c call) *authv3.CheckResponse {
	return okResponse(metadata(identity.PreflightFields()), s.removed(p, c))
}

// removed lists the headers that must not go on: forged ones and, unless it
// is needed behind us, the token. Headers that the policy names as the
// caller's own wish for a priority (P1) are not forged.
func (s *Server) removed(p *policy.Policy, c call) []string {
	remove := make([]string, 0, 1)
	for _, name := range c.forged() {
		mayAsk := slices.ContainsFunc(p.PriorityHeaders, func(h string) bool { return strings.EqualFold(h, name) })
		if !mayAsk {
			remove = append(remove, name)
		}
	}
	if !p.Identity.Forward && p.Identity.From != policy.FromExtProc {
		remove = append(remove, authorization)
	}
	return remove
}
