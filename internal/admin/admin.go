// Package admin is the operator's window: health, metrics, live pictures of
// queue, telemetry, quotas, policy and decisions, and profiles.
//
// It listens on loopback or a Unix socket; where the policy names
// server.adminToken, everything but the two health paths needs it as a bearer
// token, compared in constant time. Answers are JSON, never cached, and hold no
// prompt, no token and no secret. It shows, with one exception: POST
// /debug/breakers/NAME trips, resets or holds a breaker. Over TCP that takes
// the admin token, also on loopback, where every process and every page in a
// browser of the machine gets; a Unix socket is guarded by its mode.
//
// A browser lets a page read only what its own host answers, and a host's name
// may be made to lead to 127.0.0.1 (DNS rebinding). So over TCP and without a
// token the Host must be one that no foreign page has: an address, localhost,
// or weir, which is what the tools say.
package admin

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
)

// Options are the pictures that the window shows. Every function must be safe
// for concurrent use.
type Options struct {
	Token   func() policy.Secret // not set = no token needed
	Ready   func() error         // nil = ready; the error's text is shown
	Trouble func() []string      // what is wrong all the same, shown while ready; nil = nothing is
	Metrics http.Handler
	Queue   func(now time.Time) any
	GPU     func(pool string, now time.Time) (any, bool) // "" = all pools; false = that pool has no telemetry
	Quotas  func(ctx context.Context, tenant string) ([]quota.Counter, error)
	Config  func() ([]byte, error) // effective policy as YAML, secrets masked
	Explain func(id string) (any, bool)
	Recent  func(n int) any

	Breakers func(now time.Time) any
	Act      func(ctx context.Context, a Action) (any, error) // an ActionError says the status; else 500
	Envoys   func(now time.Time) any
	Timeline func(q TimelineQuery) any

	Log *slog.Logger
}

// New is the window's handler.
func New(o Options) http.Handler {
	w := window{o}
	guarded := http.NewServeMux()
	guarded.Handle("GET /metrics", o.Metrics)
	guarded.HandleFunc("GET /debug/queue", w.queue)
	guarded.HandleFunc("GET /debug/gpu", w.gpu)
	guarded.HandleFunc("GET /debug/quotas", w.quotas)
	guarded.HandleFunc("POST /debug/quotas", w.quotas)
	guarded.HandleFunc("GET /debug/config", w.config)
	guarded.HandleFunc("GET /debug/explain", w.explain)
	guarded.HandleFunc("GET /debug/breakers", w.breakers)
	guarded.HandleFunc("POST /debug/breakers/{name}", w.act)
	guarded.HandleFunc("GET /debug/envoys", w.envoys)
	guarded.HandleFunc("GET /debug/timeline", w.timeline)
	guarded.HandleFunc("GET /debug/pprof/", pprof.Index)
	guarded.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	guarded.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	guarded.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	guarded.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(rw http.ResponseWriter, _ *http.Request) { text(rw, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", w.ready)
	mux.Handle("/", w.guard(guarded))
	return mux
}

type window struct{ Options }

// guard asks for the admin token, and where there is none for a Host that no
// foreign page has.
func (w window) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Cache-Control", "no-store")
		rw.Header().Set("X-Content-Type-Options", "nosniff")
		want := w.Token()
		if want.Set() && !bearer(r, want) {
			rw.Header().Set("WWW-Authenticate", `Bearer realm="weir admin"`)
			fail(rw, http.StatusUnauthorized, "admin token missing or wrong: send Authorization: Bearer with the content of server.adminToken")
			return
		}
		if !want.Set() && !overSocket(r) && !ownHost(r.Host) {
			fail(rw, http.StatusForbidden, "without server.adminToken this is answered only by an address or as localhost, not as "+strconv.Quote(r.Host))
			return
		}
		next.ServeHTTP(rw, r)
	})
}

// ownHost reports whether a Host is none that somebody else's DNS answers for.
func ownHost(host string) bool {
	if name, port, err := net.SplitHostPort(host); err == nil {
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return false
		}
		host = name
	}
	host = strings.ToLower(strings.Trim(host, "[]"))
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	return host == "" || host == "localhost" || strings.HasSuffix(host, ".localhost") || host == "weir"
}

// bearer wants exactly one Authorization header.
func bearer(r *http.Request, want policy.Secret) bool {
	values := r.Header.Values("Authorization")
	if len(values) != 1 {
		return false
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	return strings.EqualFold(scheme, "Bearer") && want.Equal(strings.TrimSpace(token))
}

func (w window) ready(rw http.ResponseWriter, _ *http.Request) {
	if err := w.Ready(); err != nil {
		text(rw, http.StatusServiceUnavailable, err.Error())
		return
	}
	said := "ready"
	if w.Trouble != nil {
		for _, line := range w.Trouble() {
			said += "\n" + line
		}
	}
	text(rw, http.StatusOK, said)
}

func (w window) queue(rw http.ResponseWriter, _ *http.Request) {
	reply(rw, http.StatusOK, w.Queue(time.Now()))
}

// gpu shows the telemetry of all pools, or of ?pool=.
func (w window) gpu(rw http.ResponseWriter, r *http.Request) {
	pool := r.URL.Query().Get("pool")
	picture, ok := w.GPU(pool, time.Now())
	if !ok {
		fail(rw, http.StatusNotFound, "pool "+pool+" has no telemetry")
		return
	}
	reply(rw, http.StatusOK, picture)
}

// quotas shows a tenant's live counters. The tenant is named by X-Tenant-ID or
// ?tenant=.
func (w window) quotas(rw http.ResponseWriter, r *http.Request) {
	tenant := r.Header.Get("X-Tenant-ID")
	if tenant == "" {
		tenant = r.URL.Query().Get("tenant")
	}
	if tenant == "" {
		fail(rw, http.StatusBadRequest, "name the tenant: header X-Tenant-ID or ?tenant=")
		return
	}
	ctx, stop := context.WithTimeout(r.Context(), time.Second)
	defer stop()
	counters, err := w.Quotas(ctx, tenant)
	if err != nil {
		w.Log.WarnContext(ctx, "debug/quotas", "error", err)
		fail(rw, http.StatusServiceUnavailable, "the quota store does not answer: "+err.Error())
		return
	}
	reply(rw, http.StatusOK, map[string]any{"tenant": tenant, "counters": rows(counters)})
}

type counterRow struct {
	Rule  string `json:"rule"`
	Key   string `json:"key"`
	Unit  string `json:"unit"`
	Per   string `json:"per,omitempty"`
	Limit int64  `json:"limit"`
	Used  int64  `json:"used"`
	Left  int64  `json:"left"`
}

func rows(counters []quota.Counter) []counterRow {
	out := make([]counterRow, 0, len(counters))
	for _, c := range counters {
		row := counterRow{Rule: c.Rule, Key: c.Key, Unit: c.Limit.Unit.String(), Limit: c.Limit.Max, Used: c.Used, Left: max(0, c.Limit.Max-c.Used)}
		if c.Limit.Per > 0 {
			row.Per = c.Limit.Per.String()
		}
		out = append(out, row)
	}
	return out
}

func (w window) config(rw http.ResponseWriter, _ *http.Request) {
	doc, err := w.Config()
	if err != nil {
		fail(rw, http.StatusInternalServerError, err.Error())
		return
	}
	rw.Header().Set("Content-Type", "application/yaml")
	_, _ = rw.Write(doc) // the operator may hang up
}

// explain shows one decision by its request id, or the latest ones.
func (w window) explain(rw http.ResponseWriter, r *http.Request) {
	id := r.URL.Query().Get("request")
	if id == "" {
		reply(rw, http.StatusOK, w.Recent(50))
		return
	}
	d, ok := w.Explain(id)
	if !ok {
		fail(rw, http.StatusNotFound, "no decision of request "+id+" is kept (telemetry.explain bounds how many are)")
		return
	}
	reply(rw, http.StatusOK, d)
}

func text(rw http.ResponseWriter, code int, s string) {
	rw.Header().Set("Content-Type", "text/plain; charset=utf-8")
	rw.WriteHeader(code)
	_, _ = rw.Write([]byte(s + "\n"))
}

func fail(rw http.ResponseWriter, code int, msg string) {
	reply(rw, code, map[string]string{"error": msg})
}

func reply(rw http.ResponseWriter, code int, v any) {
	doc, err := json.MarshalIndent(v, "", "  ")
	if err != nil { // a value without a JSON form, NaN for example
		code, doc = http.StatusInternalServerError, []byte(`{"error":"this picture has no JSON form"}`)
	}
	rw.Header().Set("Content-Type", "application/json")
	rw.WriteHeader(code)
	_, _ = rw.Write(append(doc, '\n')) // the operator may hang up
}
