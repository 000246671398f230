package extproc

import (
	"slices"
	"sync"
	"testing"

	"github.com/weirproxy/weir/policy"
)

// listening is a policy whose pool chat-dyn, where the test desk sends all,
// listens to load reports.
func listening(p *policy.Policy) {
	p.Pools[1].Telemetry = []policy.TelemetrySource{{Kind: policy.KindVLLM}, {Kind: policy.KindORCA}}
}

// told notes what the hook hears.
type told struct {
	mu   sync.Mutex
	list []string
}

func (l *told) hook(o *Options) {
	o.Hooks.Load = func(pool, value string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.list = append(l.list, pool+": "+value)
	}
}

func (l *told) check(t *testing.T, want ...string) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Equal(l.list, want) {
		t.Errorf("heard %q, want %q", l.list, want)
	}
}

var callersLoad = []string{"endpoint-load-metrics-format", "JSON", "endpoint-load-metrics", "TEXT named_metrics.kv_cache_usage_perc=1"}

// A pool that listens is asked for its load, whatever the caller asks; of any
// other pool the caller asks in vain.
func TestPoolIsAskedForItsLoad(t *testing.T) {
	for name, c := range map[string]struct {
		policy *policy.Policy
		want   string
	}{
		"listens": {rules(listening), "text"},
		"another": {rules(), ""},
	} {
		for _, headers := range [][]string{nil, callersLoad} {
			set, removed := mutations(admitted(t, c.policy, chatBody, headers...))
			if set[headerLoadFormat] != c.want {
				t.Errorf("%s: format %q, want %q", name, set[headerLoadFormat], c.want)
			}
			if own := len(headers) > 0; removed[headerLoad] != own || removed[headerLoadFormat] != (own && c.want == "") {
				t.Errorf("%s, caller's own %v: removed %v", name, own, removed)
			}
		}
	}
	t.Run("grpc", func(t *testing.T) {
		h := openWith(t, newTestDesk(), rules(listening))
		e := h.call()
		e.send(grpcHead())
		if set, _ := mutations(e.next()); set[headerLoadFormat] != "text" {
			t.Errorf("set %v", set)
		}
		_ = e.hangUp(true)
		h.ended()
	})
	t.Run("no seat", func(t *testing.T) {
		h := openWith(t, newTestDesk(), rules(listening))
		e := h.call()
		e.send(post(caller(), "/health", callersLoad...))
		if set, removed := mutations(e.next()); set[headerLoadFormat] != "" || !removed[headerLoadFormat] || !removed[headerLoad] {
			t.Errorf("set %v, removed %v", set, removed)
		}
		e.send(answered("200", via, false, headerLoad, "TEXT eps=1"))
		if _, removed := mutations(e.next()); !removed[headerLoad] {
			t.Error("the load went on to the caller")
		}
		e.send(trailers(headerLoadBinary, "AAAA"))
		if _, removed := mutations(e.next()); !removed[headerLoadBinary] {
			t.Error("the load went on to the caller in a trailer")
		}
		_ = e.hangUp(true)
		h.ended()
	})
}

// What the pool says is handed on as it came, and no caller sees it.
func TestLoadIsHeard(t *testing.T) {
	var l told
	h := openWith(t, newTestDesk(), rules(listening), l.hook)
	e := h.call()
	e.send(chatHead(callersLoad...))
	e.want("request_headers")
	e.send(reqBody(chatBody, true))
	e.want("request_body")
	l.check(t) // a caller's word is none
	e.send(answered("200", via, false, "content-type", "application/json", headerLoad, "TEXT a=1, b=2", headerLoadBinary, "CgA=", headerLoadFormat, "TEXT"))
	set, removed := mutations(e.next())
	for _, name := range []string{headerLoad, headerLoadBinary, headerLoadFormat} {
		if !removed[name] || set[name] != "" {
			t.Errorf("%s went on to the caller: set %v, removed %v", name, set, removed)
		}
	}
	e.send(chunk("{}", false))
	e.want("response_body")
	e.send(trailers(headerLoadBinary, "CgE="))
	if _, removed := mutations(e.next()); !removed[headerLoadBinary] {
		t.Error("a load trailer went on to the caller")
	}
	_ = e.hangUp(true)
	h.ended()
	l.check(t, "chat-dyn: TEXT a=1, b=2", "chat-dyn: BIN CgA=", "chat-dyn: BIN CgE=")
}

// Envoy's own answers say nothing of a pool.
func TestLocalReplyIsNoLoad(t *testing.T) {
	var l told
	h := openWith(t, newTestDesk(), rules(listening), l.hook)
	e := h.call()
	e.send(chatHead())
	e.want("request_headers")
	e.send(reqBody(chatBody, true))
	e.want("request_body")
	e.send(answered("503", "no_healthy_upstream", true, headerLoad, "TEXT a=1"))
	if _, removed := mutations(e.next()); !removed[headerLoad] {
		t.Error("the header went on to the caller")
	}
	_ = e.hangUp(true)
	h.ended()
	l.check(t)
}
