package admin

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// acting is a window whose actions are kept.
func acting(token string, kept *[]Action, err error) http.Handler {
	return window0(token, func(o *Options) {
		o.Act = func(_ context.Context, a Action) (any, error) {
			*kept = append(*kept, a)
			return map[string]string{"done": a.Do}, err
		}
		o.Timeline = func(q TimelineQuery) any { return q }
	})
}

func post(h http.Handler, path, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
	r.Host = "127.0.0.1:9902"
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// TestActionsAreStrict: what is not understood to the letter is not done.
func TestActionsAreStrict(t *testing.T) {
	long := strings.Repeat("x", maxReason+1)
	for body, says := range map[string]string{
		``:                     "one JSON object",
		`[]`:                   "one JSON object",
		`{"action":"trip"`:     "one JSON object",
		`{"action":"trip"} {}`: "one JSON object",
		"{\"action\":\"trip\",\"reason\":\"\xff\"}": "one JSON object",
		`{"action":"trip","action":"reset"}`:        "action stands twice",
		`{"action":"trip","Level":"soft"}`:          `\"Level\" is no key`,
		`{"action":"trip","who":"me"}`:              `\"who\" is no key`,
		`{"action":1}`:                              "action must be a string",
		`{"action":{"a":"b"}}`:                      "action must be a string",
		`{}`:                                        "action must be trip, reset or hold",
		`{"action":"open"}`:                         `trip, reset or hold (got \"open\")`,
		`{"action":"trip","level":"half_open"}`:     "level must be soft or hard",
		`{"action":"hold","level":"hard"}`:          "level is of no meaning with hold",
		`{"action":"reset","for":"1s"}`:             "for is of no meaning with reset",
		`{"action":"trip","for":"soon"}`:            "for must be a time above 0, up to 24h",
		`{"action":"trip","for":"0s"}`:              "for must be a time above 0, up to 24h",
		`{"action":"trip","for":"25h"}`:             "for must be a time above 0, up to 24h",
		`{"action":"trip","kind":"cluster"}`:        "kind must be pool or tenant",
		`{"action":"trip","reason":"a\nb"}`:         "reason must be one line",
		`{"action":"trip","reason":"a\u202eb"}`:     "reason must be one line", // turns what follows round
		`{"action":"trip","reason":"a\u2028b"}`:     "reason must be one line", // a line's end
		`{"action":"trip","reason":"` + long + `"}`: "reason must be one line",
	} {
		var kept []Action
		w := post(acting("s3cret", &kept, nil), "/debug/breakers/chat", body, "Authorization", "Bearer s3cret")
		if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), says) || len(kept) > 0 {
			t.Errorf("%s: %d %s, want 400 with %q and nothing done", body, w.Code, w.Body, says)
		}
	}
}

// TestActionIsRead to the field, with the name as it stands in the path.
func TestActionIsRead(t *testing.T) {
	for _, c := range []struct {
		path, body string
		want       Action
	}{
		{"chat", `{"action":"trip"}`, Action{Breaker: "chat", Do: "trip", Level: "hard"}},
		{"chat", `{"action":"trip","level":"soft","for":"30s","reason":" bad build ","kind":"pool"}`, Action{Breaker: "chat", Do: "trip", Level: "soft", For: 30 * time.Second, Reason: "bad build"}},
		{"a%2Fb%20c", `{"action":"hold","kind":"tenant"}`, Action{Breaker: "a/b c", Tenant: true, Do: "hold"}},
		{"chat", `{"action":"reset"}`, Action{Breaker: "chat", Do: "reset"}},
	} {
		var kept []Action
		w := post(acting("s3cret", &kept, nil), "/debug/breakers/"+c.path, c.body, "Authorization", "Bearer s3cret")
		c.want.Who = "admin token, from 192.0.2.1:1234" // of httptest
		if w.Code != http.StatusOK || len(kept) != 1 || kept[0] != c.want {
			t.Errorf("%s %s: %d, did %+v, want %+v", c.path, c.body, w.Code, kept, c.want)
		}
	}
}

// TestActionsNeedARight: over TCP the admin token, which must be set; reading
// does not.
func TestActionsNeedARight(t *testing.T) {
	const body = `{"action":"trip"}`
	for _, c := range []struct {
		token string
		auth  []string
		code  int
		says  string
	}{
		{"", nil, http.StatusForbidden, "set server.adminToken, or serve server.admin on a Unix socket"},
		{"", []string{"Authorization", "Bearer s3cret"}, http.StatusForbidden, "none is set"},
		{"s3cret", nil, http.StatusUnauthorized, "admin token missing or wrong"},
		{"s3cret", []string{"Authorization", "Bearer other"}, http.StatusUnauthorized, "admin token missing or wrong"},
		{"s3cret", []string{"Authorization", "Bearer s3cret"}, http.StatusOK, "done"},
	} {
		var kept []Action
		w := post(acting(c.token, &kept, nil), "/debug/breakers/chat", body, c.auth...)
		if w.Code != c.code || !strings.Contains(w.Body.String(), c.says) || (len(kept) == 1) != (c.code == http.StatusOK) {
			t.Errorf("token %q, %v: %d %s, done %d; want %d with %q", c.token, c.auth, w.Code, w.Body, len(kept), c.code, c.says)
		}
	}
	if w := ask(acting("", new([]Action), nil), "GET", "/debug/timeline"); w.Code != http.StatusOK {
		t.Errorf("reading without a token: %d", w.Code)
	}
}

// TestSocketIsARight: a Unix socket is guarded by its mode; who is at its other
// end is told.
func TestSocketIsARight(t *testing.T) {
	var kept []Action
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: acting("", &kept, nil), ConnContext: ConnContext, ReadHeaderTimeout: time.Second}
	go server.Serve(l)
	defer server.Close()
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}}
	defer client.CloseIdleConnections()
	res, err := client.Post("http://weir/debug/breakers/chat", "application/json", strings.NewReader(`{"action":"reset"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, _ := io.ReadAll(res.Body)
	if res.StatusCode != http.StatusOK || len(kept) != 1 || !strings.HasPrefix(kept[0].Who, "unix socket, uid ") {
		t.Errorf("%d %s, did %+v", res.StatusCode, text, kept)
	}
}

// TestActionIsNotWaitedFor: who promises a body and sends none holds nothing.
func TestActionIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &pipe{conns: make(chan net.Conn, 1)}
		server := &http.Server{Handler: acting("s3cret", new([]Action), nil), ReadHeaderTimeout: time.Second}
		done := make(chan error, 1)
		go func() { done <- server.Serve(l) }()
		ours, theirs := net.Pipe()
		l.conns <- theirs
		begun := time.Now()
		io.WriteString(ours, "POST /debug/breakers/chat HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer s3cret\r\nContent-Length: 100\r\n\r\n{")
		res, err := http.ReadResponse(bufio.NewReader(ours), nil)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(res.Body)
		if took := time.Since(begun); res.StatusCode != http.StatusBadRequest || took != bodyWait || !strings.Contains(string(text), "did not come within 10s") {
			t.Errorf("%d after %v: %s", res.StatusCode, took, text)
		}
		ours.Close()
		server.Close()
		<-done
	})
}

// pipe is a listener of connections made by hand.
type pipe struct {
	conns chan net.Conn
	once  sync.Once
}

func (p *pipe) Accept() (net.Conn, error) {
	c, ok := <-p.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (p *pipe) Close() error   { p.once.Do(func() { close(p.conns) }); return nil }
func (p *pipe) Addr() net.Addr { return &net.TCPAddr{} }

// TestActionErrors carry their status and the names that are known.
func TestActionErrors(t *testing.T) {
	for err, want := range map[error]int{
		&ActionError{Code: http.StatusNotFound, Text: "there is no such breaker", Known: []string{"chat"}}: http.StatusNotFound,
		errors.New("oops"): http.StatusInternalServerError,
	} {
		w := post(acting("s3cret", new([]Action), err), "/debug/breakers/x", `{"action":"trip"}`, "Authorization", "Bearer s3cret")
		if w.Code != want || !strings.Contains(w.Body.String(), err.Error()) {
			t.Errorf("%v: %d %s", err, w.Code, w.Body)
		}
		if want == http.StatusNotFound && !strings.Contains(w.Body.String(), `"chat"`) {
			t.Errorf("the known names are not told: %s", w.Body)
		}
	}
}

func TestTimelineQuery(t *testing.T) {
	h := acting("", new([]Action), nil)
	for path, want := range map[string]string{
		"/debug/timeline": `"Since": 0`,
		"/debug/timeline?since=7&breaker=chat&cluster=c": `"Since": 7`,
		"/debug/timeline?since=-1":                       `since must be the number of an entry`,
		"/debug/timeline?since=x":                        `since must be the number of an entry`,
		"/debug/timeline?since=7%zz":                     `the query cannot be read`,
		"/debug/timeline?since=7;breaker=chat":           `the query cannot be read`,
		"/debug/timeline?since=7&since=8":                `since stands twice`,
	} {
		if w := ask(h, "GET", path); !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: %s, want %s", path, w.Body, want)
		}
	}
}

func FuzzParseAction(f *testing.F) {
	f.Add([]byte(`{"action":"trip","level":"soft","for":"30s","reason":"x","kind":"tenant"}`))
	f.Add([]byte(`{"action":"hold"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		a, err := parseAction(body)
		if err != nil {
			return
		}
		if a.Do != "trip" && a.Do != "reset" && a.Do != "hold" || a.For < 0 || a.For > maxFor || len(a.Reason) > maxReason ||
			(a.Do == "trip") != (a.Level == "soft" || a.Level == "hard") {
			t.Errorf("%s gives %+v", body, a)
		}
	})
}
