package admin

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
)

func window0(token string, change func(*Options)) http.Handler {
	o := Options{
		Token: func() policy.Secret {
			if token == "" {
				return policy.Secret{}
			}
			return policy.NewSecret("", token)
		},
		Ready:   func() error { return nil },
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "weir_up 1\n") }),
		Queue:   func(time.Time) any { return map[string]int{"waiting": 3} },
		GPU: func(pool string, _ time.Time) (any, bool) {
			return map[string]string{"pool": pool}, pool == "" || pool == "chat"
		},
		Quotas: func(_ context.Context, tenant string) ([]quota.Counter, error) {
			return []quota.Counter{{Rule: "per-tenant", Key: "k", Limit: policy.Limit{Unit: policy.Tokens, Max: 100, Per: time.Minute}, Used: 130}}, nil
		},
		Config:  func() ([]byte, error) { return []byte("version: 1\n"), nil },
		Explain: func(id string) (any, bool) { return map[string]string{"id": id}, id == "known" },
		Recent:  func(int) any { return []string{} },
		Log:     slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&o)
	}
	return New(o)
}

func ask(h http.Handler, method, path string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, http.NoBody)
	r.Host = "127.0.0.1:9902"
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestTokenGuardsEverythingButHealth(t *testing.T) {
	h := window0("s3cret", nil)
	for _, p := range []string{"/metrics", "/debug/queue", "/debug/gpu", "/debug/quotas?tenant=a", "/debug/config", "/debug/explain", "/debug/pprof/", "/debug/pprof/cmdline", "/nonsense"} {
		for name, auth := range map[string][]string{
			"none": nil, "wrong": {"Authorization", "Bearer wrong"}, "other scheme": {"Authorization", "Basic s3cret"},
			"two": {"Authorization", "Bearer s3cret", "Authorization", "Bearer s3cret"}, "empty": {"Authorization", ""},
		} {
			if w := ask(h, "GET", p, auth...); w.Code != http.StatusUnauthorized {
				t.Errorf("%s with %s token: %d, want 401", p, name, w.Code)
			}
		}
		if w := ask(h, "GET", p, "Authorization", "bearer s3cret"); w.Code == http.StatusUnauthorized {
			t.Errorf("%s with the right token: 401", p)
		}
	}
	for _, p := range []string{"/healthz", "/readyz"} {
		if w := ask(h, "GET", p); w.Code != http.StatusOK {
			t.Errorf("%s without a token: %d, want 200", p, w.Code)
		}
	}
}

// TestForeignPagesReadNothing: without a token, a page whose host's name leads
// here (DNS rebinding) gets nothing; with one the token decides.
func TestForeignPagesReadNothing(t *testing.T) {
	for host, ours := range map[string]bool{
		"127.0.0.1:9902": true, "127.0.0.1": true, "[::1]:9902": true, "[::1]": true, "localhost:9902": true, "LOCALHOST": true,
		"a.localhost:9902": true, "weir": true, "": true,
		"evil.example": false, "evil.example:9902": false, "127.0.0.1.evil.example": false, "localhost.evil.example:9902": false,
		"evillocalhost": false, "localhost.": false, "weir.evil.example": false, "127.0.0.1:9902.evil.example": false,
	} {
		for _, path := range []string{"/debug/config", "/debug/breakers", "/metrics", "/debug/pprof/", "/healthz", "/readyz"} {
			for _, token := range []string{"", "s3cret"} {
				h := window0(token, func(o *Options) { o.Breakers = func(time.Time) any { return 1 } })
				r := httptest.NewRequest("GET", path, http.NoBody)
				r.Host = host
				r.Header.Set("Authorization", "Bearer s3cret")
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				want := http.StatusOK
				if !ours && token == "" && !strings.HasSuffix(path, "z") {
					want = http.StatusForbidden
				}
				if w.Code != want {
					t.Errorf("%s as %q, token %q: %d, want %d", path, host, token, w.Code, want)
				}
			}
		}
	}
}

func TestReadySaysWhyNot(t *testing.T) {
	h := window0("", func(o *Options) { o.Ready = func() error { return errors.New("draining") } })
	if w := ask(h, "GET", "/readyz"); w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "draining") {
		t.Errorf("%d %q, want 503 with the reason", w.Code, w.Body)
	}
	if w := ask(h, "GET", "/healthz"); w.Code != http.StatusOK {
		t.Errorf("healthz %d while draining, want 200", w.Code)
	}
}

func TestQuotas(t *testing.T) {
	h := window0("", nil)
	for _, w := range []*httptest.ResponseRecorder{
		ask(h, "GET", "/debug/quotas?tenant=acme"),
		ask(h, "POST", "/debug/quotas", "X-Tenant-ID", "acme"), // T11
	} {
		body := w.Body.String()
		for _, want := range []string{`"tenant": "acme"`, `"unit": "tokens"`, `"per": "1m0s"`, `"used": 130`, `"left": 0`} {
			if w.Code != 200 || !strings.Contains(body, want) {
				t.Errorf("%d %s misses %s", w.Code, body, want)
			}
		}
	}
	if w := ask(h, "GET", "/debug/quotas"); w.Code != http.StatusBadRequest {
		t.Errorf("without a tenant: %d, want 400", w.Code)
	}
	down := window0("", func(o *Options) {
		o.Quotas = func(context.Context, string) ([]quota.Counter, error) { return nil, errors.New("away") }
	})
	if w := ask(down, "GET", "/debug/quotas?tenant=a"); w.Code != http.StatusServiceUnavailable {
		t.Errorf("store away: %d, want 503", w.Code)
	}
}

func TestGPU(t *testing.T) {
	h := window0("", nil)
	for path, want := range map[string]string{"/debug/gpu": `"pool": ""`, "/debug/gpu?pool=chat": `"pool": "chat"`} {
		if w := ask(h, "GET", path); w.Code != 200 || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: %d %s, want %s", path, w.Code, w.Body, want)
		}
	}
	if w := ask(h, "GET", "/debug/gpu?pool=other"); w.Code != http.StatusNotFound || !strings.Contains(w.Body.String(), "other") {
		t.Errorf("unknown pool: %d %s, want 404 with its name", w.Code, w.Body)
	}
}

func TestExplain(t *testing.T) {
	h := window0("", nil)
	if w := ask(h, "GET", "/debug/explain?request=known"); w.Code != 200 {
		t.Errorf("known request: %d", w.Code)
	}
	if w := ask(h, "GET", "/debug/explain?request=x"); w.Code != http.StatusNotFound {
		t.Errorf("unknown request: %d, want 404", w.Code)
	}
}

func TestAPictureWithoutJSONFormIsAnErrorNotACrash(t *testing.T) {
	h := window0("", func(o *Options) { o.Queue = func(time.Time) any { return math.NaN() } })
	if w := ask(h, "GET", "/debug/queue"); w.Code != http.StatusInternalServerError || !strings.Contains(w.Body.String(), "error") {
		t.Errorf("%d %q", w.Code, w.Body)
	}
}
