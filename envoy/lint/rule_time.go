package lint

import (
	"fmt"
	"slices"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/weirproxy/weir/policy"
)

// Envoy's defaults.
const (
	defaultMessageTimeout = 200 * time.Millisecond
	defaultStreamIdle     = 5 * time.Minute
	defaultCacheIdle      = 50 * time.Second
	minAnswer             = 10 * time.Minute // what a long answer may take
)

// hold is the longest that weir may keep Envoy waiting for one answer.
func (l *linter) hold(m *manager) time.Duration {
	if l.Policy != nil {
		if l.Policy.Envoy.MaxMessageTimeout > 0 {
			return l.Policy.Envoy.MaxMessageTimeout
		}
		return l.Policy.Envoy.MessageTimeout
	}
	return max(m.messageTimeout(), m.proc.GetMaxMessageTimeout().AsDuration())
}

func (m *manager) messageTimeout() time.Duration {
	if t := m.proc.GetMessageTimeout(); t != nil {
		return t.AsDuration()
	}
	return defaultMessageTimeout
}

func checkMessageTimeout(l *linter) {
	for _, m := range l.scene.managers {
		if m.proc == nil {
			continue
		}
		message, most := m.messageTimeout(), m.proc.GetMaxMessageTimeout().AsDuration()
		p, pMost := l.doc.field(m.proc, "message_timeout"), l.doc.field(m.proc, "max_message_timeout")
		switch {
		case message == 0:
			l.fail(p, "message_timeout 0s fires at once", "set message_timeout: 1s")
		case message < time.Second:
			l.warn(p, fmt.Sprintf("message_timeout is %v: a busy Envoy alone takes that long", message), "set message_timeout: 1s or more")
		}
		if most > 0 && most < message {
			l.warn(pMost, fmt.Sprintf("max_message_timeout %v is below message_timeout %v", most, message), "set it to the longest hold, as envoy.maxMessageTimeout of the policy")
		}
		if l.Policy == nil {
			continue
		}
		e := &l.Policy.Envoy
		if message < e.MessageTimeout {
			l.fail(p, fmt.Sprintf("message_timeout %v is below envoy.messageTimeout %v of the policy: Envoy gives up while weir still holds", message, e.MessageTimeout), "make both equal")
		} else if message > e.MessageTimeout {
			l.warn(p, fmt.Sprintf("message_timeout %v is above envoy.messageTimeout %v of the policy", message, e.MessageTimeout), "make both equal")
		}
		if most < e.MaxMessageTimeout {
			l.fail(pMost, fmt.Sprintf("max_message_timeout %v is below envoy.maxMessageTimeout %v of the policy: Envoy ignores weir's longer waits and answers 504", most, e.MaxMessageTimeout), "make both equal")
		}
	}
}

// checkManagerTimeouts: clocks that run while weir holds a request.
func checkManagerTimeouts(l *linter) {
	for _, m := range l.scene.managers {
		if m.proc == nil {
			continue
		}
		hold := l.hold(m)
		if t := m.hcm.GetRequestTimeout().AsDuration(); t > 0 {
			l.fail(l.doc.field(m.hcm, "request_timeout"), fmt.Sprintf("a hold counts in request_timeout: %v", t), "remove it; request_headers_timeout bounds slow callers")
		}
		idle, p := defaultStreamIdle, l.doc.of(m.hcm)
		if t := m.hcm.GetStreamIdleTimeout(); t != nil {
			idle, p = t.AsDuration(), l.doc.field(m.hcm, "stream_idle_timeout")
		}
		l.idle(p, "stream_idle_timeout", idle, hold)
		if t := m.hcm.GetCommonHttpProtocolOptions().GetMaxStreamDuration(); t != nil && t.AsDuration() > 0 && t.AsDuration() < l.longestAnswer("") {
			l.add(Warning, "route-timeout", l.doc.field(m.hcm.GetCommonHttpProtocolOptions(), "max_stream_duration"), fmt.Sprintf("max_stream_duration cuts every answer after %v", t.AsDuration()), "remove it, or make it longer than any answer")
		}
		for _, r := range m.routes {
			if t := r.GetRoute().GetIdleTimeout(); t != nil {
				l.idle(l.doc.field(r.GetRoute(), "idle_timeout"), "idle_timeout", t.AsDuration(), hold)
			}
		}
	}
}

func (l *linter) idle(p at, name string, idle, hold time.Duration) {
	if idle > 0 && idle <= hold {
		l.add(Error, "idle-timeout", p, fmt.Sprintf("%s %v ends what weir may hold for %v", name, idle, hold), "make it longer than the hold and the longest gap between two tokens")
	}
}

// longestAnswer is what an answer of a cluster may take by the policy; "" of
// any.
func (l *linter) longestAnswer(cluster string) time.Duration {
	longest := time.Duration(0)
	if l.Policy != nil {
		for i := range l.Policy.Pools {
			if p := &l.Policy.Pools[i]; cluster == "" || p.Cluster == cluster {
				longest = max(longest, p.MaxHold)
			}
		}
	}
	if longest == 0 {
		longest = minAnswer
	}
	return longest
}

func checkRouteTimeouts(l *linter) {
	for _, m := range l.scene.managers {
		if m.proc == nil {
			continue
		}
		for _, r := range m.routes {
			a := r.GetRoute()
			if a == nil || l.answeredHere(r.Route) {
				continue
			}
			t := a.GetTimeout()
			need := minAnswer
			for _, c := range clustersOf(a) {
				need = l.longestAnswer(c)
			}
			switch {
			case t == nil && a.GetMaxStreamDuration() == nil:
				l.warn(l.doc.of(a), "route "+quote(r.GetName())+" has no timeout: Envoy ends answers after 15 s", "set timeout: 0s and idle_timeout")
			case t.AsDuration() > 0 && t.AsDuration() < need:
				l.warn(l.doc.field(a, "timeout"), fmt.Sprintf("answers end after %v, and may take %v", t.AsDuration(), need), "set timeout: 0s and idle_timeout")
			}
			if d := a.GetMaxStreamDuration().GetMaxStreamDuration(); d != nil && d.AsDuration() > 0 && d.AsDuration() < need {
				l.warn(l.doc.field(a.GetMaxStreamDuration(), "max_stream_duration"), fmt.Sprintf("answers end after %v, and may take %v", d.AsDuration(), need), "remove it")
			}
			if p := a.GetRetryPolicy().GetPerTryTimeout(); p != nil && p.AsDuration() > 0 && p.AsDuration() < need {
				l.warn(l.doc.field(a.GetRetryPolicy(), "per_try_timeout"), fmt.Sprintf("a try ends after %v, and an answer may take %v", p.AsDuration(), need), "remove it")
			}
		}
	}
}

// answeredHere is whether weir answers a route itself.
func (l *linter) answeredHere(r *routev3.Route) bool {
	path := r.GetMatch().GetPath()
	if l.Policy == nil {
		return path == "/v1/models"
	}
	if path == "" {
		return false
	}
	api, ok := l.Policy.Route("GET", path)
	return ok && api.Kind == policy.ModelList
}

func checkGRPCTimeouts(l *linter) {
	for _, m := range l.scene.managers {
		if t := m.authz.GetGrpcService().GetTimeout(); t != nil && t.AsDuration() == 0 {
			if l.before(38) {
				l.fail(l.doc.field(m.authz.GetGrpcService(), "timeout"), "before Envoy 1.38 timeout 0s of ext_authz fails every call at once", "set timeout: 0.5s")
			}
		} else if t != nil && t.AsDuration() < 50*time.Millisecond {
			l.warn(l.doc.field(m.authz.GetGrpcService(), "timeout"), fmt.Sprintf("ext_authz has %v to answer: a busy moment refuses everybody", t.AsDuration()), "set timeout: 0.5s")
		}
		if t := m.proc.GetGrpcService().GetTimeout(); t != nil && t.AsDuration() > 0 {
			l.warn(l.doc.field(m.proc.GetGrpcService(), "timeout"), "timeout of ext_proc's grpc_service has no effect", "remove it; message_timeout is the clock")
		}
	}
}

// checkGraceful: with a graceful close, a worker that began no side stream for
// the cache's idle time drops its gRPC client, and Envoy 1.36 to 1.40 crashes
// when a side stream begun before ends.
func checkGraceful(l *linter) {
	if !l.gracefulClose() {
		return
	}
	idle := defaultCacheIdle
	c := l.doc.root.GetGrpcAsyncClientManagerConfig()
	if t := c.GetMaxCachedEntryIdleDuration(); t != nil {
		idle = t.AsDuration()
	}
	if idle < 24*time.Hour {
		p := l.doc.field(c, "max_cached_entry_idle_duration")
		if c == nil {
			p = l.doc.field(l.doc.root, "layered_runtime")
		}
		l.fail(p, fmt.Sprintf("ext_proc_graceful_grpc_close is on and gRPC clients are dropped after %v: Envoy crashes when a longer answer ends", idle),
			"set grpc_async_client_manager_config: {max_cached_entry_idle_duration: 86400s}, or leave the runtime key off")
	}
}

// checkHotRestart: with a graceful close, the old process of a hot restart
// crashes at its shutdown while side streams are open (Envoy 1.36 to 1.40).
func checkHotRestart(l *linter) {
	if l.gracefulClose() {
		l.warn(l.doc.field(l.doc.root, "layered_runtime"), "ext_proc_graceful_grpc_close is on: at a hot restart the old Envoy dies by SIGSEGV when it shuts down with answers under way",
			"set it to false, unless this Envoy is never restarted hot (--restart-epoch)")
	}
}

func (l *linter) gracefulClose() bool {
	v := l.scene.runtime["envoy.reloadable_features.ext_proc_graceful_grpc_close"]
	return v.GetBoolValue() || v.GetStringValue() == "true"
}

// checkLocalReplies: Envoy 1.36 hides its own answers from ext_proc unless
// told not to; later releases always show them and complain of the key.
func checkLocalReplies(l *linter) {
	const key = "envoy.reloadable_features.skip_ext_proc_on_local_reply"
	v, set := l.scene.runtime[key]
	asked := slices.ContainsFunc(l.scene.managers, func(m *manager) bool { return m.proc != nil })
	switch p := l.doc.field(l.doc.root, "layered_runtime"); {
	case !asked:
	case l.Release == 36 && (!set || v.GetBoolValue()):
		l.fail(p, "Envoy 1.36 does not tell weir of its own answers: a dead pool never opens its breaker", "set "+key+": false in a static runtime layer")
	case l.Release > 36 && set:
		l.warn(p, "Envoy has removed "+key+" and writes an error about it", "leave it out")
	}
}
