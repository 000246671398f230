package authz

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

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
	panicked atomic.Int64 // the same about a panic
}

// ServerOptions are hooks; all may be nil.
type ServerOptions struct {
	Log *slog.Logger
	// Observe is told each answer: "ok", "preflight", a denial's code,
	// "path_unknown", "path_invalid", "override_invalid" or "internal".
	Observe func(code string, took time.Duration)
	// Begin may return a context and the end of a span; headers are the
	// request's. The end is told what Observe is told.
	Begin func(ctx context.Context, headers func(name string) []string) (context.Context, func(code string))
	// Refused is told each refusal.
	Refused func(r Refusal)
	// OverrideRejected is told each call on a route whose overrides were
	// refused. Where the caller's class is not enforced the call goes on by
	// the policy without them; else Refused is told too.
	OverrideRejected func(err *policy.OverrideError)
	// Panicked is told each recovered panic.
	Panicked func()
}

// Refusal is a call that was refused here.
type Refusal struct {
	ID       string             // in the answer as x-weir-request-id
	Identity *identity.Identity // nil where the caller is not known
	Reason   string             // in the answer as x-weir-reason
	Detail   string             // for operators
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
	if o.Begin == nil {
		o.Begin = func(ctx context.Context, _ func(string) []string) (context.Context, func(string)) {
			return ctx, func(string) {}
		}
	}
	if o.Refused == nil {
		o.Refused = func(Refusal) {}
	}
	if o.OverrideRejected == nil {
		o.OverrideRejected = func(*policy.OverrideError) {}
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
	ctx, end := s.o.Begin(ctx, call{req.GetAttributes().GetRequest().GetHttp()}.values)
	defer func() {
		if caught := recover(); caught != nil {
			s.o.Panicked()
			// The value may hold what the caller sent, so its type alone is told.
			if last := s.panicked.Load(); start.Unix() > last && s.panicked.CompareAndSwap(last, start.Unix()) {
				s.o.Log.Error("panic in ext_authz", "panic", fmt.Sprintf("%T", caught), "stack", string(debug.Stack()))
			}
			resp, err = nil, status.Error(codes.Internal, "weir: internal error")
		}
		s.o.Observe(code, time.Since(start))
		end(code)
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
		return s.refuse(c, nil, answerOf(denial)), denial.Code, nil
	}
	if !clean {
		return s.refuse(c, who.id, pathInvalid), pathInvalid.observed, nil
	}
	e, extensions, err := effective(p, a)
	if err != nil {
		var base error
		if e, base = p.For(policy.Overrides{}); base != nil {
			return nil, "internal", status.Error(codes.Internal, "weir: no policy")
		}
		enforced := e.ModeOf(who.id.Class) == policy.Enforce
		s.rejectOverride(now, path, enforced, err)
		if enforced {
			bad := overrideInvalid
			bad.operator = err.Error()
			return s.refuse(c, who.id, bad), bad.observed, nil
		}
		extensions = policy.Overrides{}
	}
	api, ok := e.Route(c.http.GetMethod(), path)
	if !ok {
		if e.ModeOf(who.id.Class) == policy.Enforce {
			return s.refuse(c, who.id, pathUnknown), pathUnknown.observed, nil
		}
		return s.allow(p, c, who, extensions), "ok", nil // ext_proc judges it, and says so (O4)
	}
	if f := who.id.MissingFunction(e.FunctionsOf(api)); f != "" {
		d := identity.MissingScope(p.Identity.Realm, f)
		return s.refuse(c, who.id, answerOfFunction(d)), d.Code, nil
	}
	return s.allow(p, c, who, extensions), "ok", nil
}

// refuse answers a refusal and tells it under the id that the caller gets.
func (s *Server) refuse(c call, id *identity.Identity, a answer) *authv3.CheckResponse {
	a.id = newID()
	r := Refusal{ID: a.id, Identity: id, Reason: a.reason, Detail: a.message}
	if a.operator != "" {
		r.Detail = a.operator
	}
	s.o.Refused(r)
	return refuse(c, a)
}

// rejectOverride makes a misconfigured route loud: each call is told to the
// hook, and a line is written once a second.
func (s *Server) rejectOverride(now time.Time, path string, enforced bool, err error) {
	var bad *policy.OverrideError
	if !errors.As(err, &bad) {
		bad = &policy.OverrideError{Err: err}
	}
	s.o.OverrideRejected(bad)
	last := s.warned.Load()
	if now.Unix() > last && s.warned.CompareAndSwap(last, now.Unix()) {
		s.o.Log.Error("route override rejected", "path", path, "refused", enforced, "error", err)
	}
}

// allow answers OK. The common answer, without a forged header and without
// anything of the route to hand on, is made once for each token.
func (s *Server) allow(p *policy.Policy, c call, who *verified, extensions policy.Overrides) *authv3.CheckResponse {
	remove := s.removed(p, c)
	fields := who.fields
	if more := identity.OverrideFields(extensions); more != nil {
		fields = &structpb.Struct{Fields: maps.Clone(fields.GetFields())}
		maps.Copy(fields.Fields, metadata(more).GetFields())
	} else if len(remove) == 1 && remove[0] == authorization {
		return who.stripped
	}
	return okResponse(fields, remove)
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
