package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Action is what an operator does to one breaker by hand.
type Action struct {
	Breaker string        // name of the pool, or of the tenant
	Tenant  bool          // else a pool
	Do      string        // "trip", "reset" or "hold"
	Level   string        // with trip: "soft" or "hard"
	For     time.Duration // trip: 0 = the policy's open time; hold: 0 = until it is reset
	Reason  string        // in the operator's words; may be empty
	Who     string        // by what right, and from where
}

// ActionError is an action that was not done.
type ActionError struct {
	Code  int // HTTP
	Text  string
	Known []string // names that could have been meant
}

// Error is the text.
func (e *ActionError) Error() string { return e.Text }

// TimelineQuery says which entries of the timeline are wanted.
type TimelineQuery struct {
	Since   uint64 // entries with a larger number; 0 = all that are kept
	Breaker string // "" = of all
	Cluster string // "" = of all
}

// The bounds of an action.
const (
	maxAction = 4 << 10 // bytes of its JSON
	maxReason = 256     // bytes
	maxFor    = 24 * time.Hour

	bodyWait = 10 * time.Second // for an action to have come
)

// breakers shows every breaker.
func (w window) breakers(rw http.ResponseWriter, _ *http.Request) {
	reply(rw, http.StatusOK, w.Breakers(time.Now()))
}

func (w window) envoys(rw http.ResponseWriter, _ *http.Request) {
	reply(rw, http.StatusOK, w.Envoys(time.Now()))
}

// timeline shows what happened, in order.
func (w window) timeline(rw http.ResponseWriter, r *http.Request) {
	v, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		fail(rw, http.StatusBadRequest, "the query cannot be read: "+err.Error())
		return
	}
	for name, values := range v {
		if len(values) > 1 {
			fail(rw, http.StatusBadRequest, name+" stands twice")
			return
		}
	}
	q := TimelineQuery{Breaker: v.Get("breaker"), Cluster: v.Get("cluster")}
	if text := v.Get("since"); text != "" {
		if q.Since, err = strconv.ParseUint(text, 10, 64); err != nil {
			fail(rw, http.StatusBadRequest, fmt.Sprintf("since must be the number of an entry (got %q)", text))
			return
		}
	}
	reply(rw, http.StatusOK, w.Timeline(q))
}

// act does something to a breaker. Whoever reaches a Unix socket may, by the
// socket's mode; over TCP it takes the admin token, which the guard has seen
// where there is one.
func (w window) act(rw http.ResponseWriter, r *http.Request) {
	if !overSocket(r) && !w.Token().Set() {
		w.Log.WarnContext(r.Context(), "breaker action refused: no admin token is set", "peer", r.RemoteAddr, "breaker", r.PathValue("name"))
		fail(rw, http.StatusForbidden, "actions need the admin token, and none is set: set server.adminToken, or serve server.admin on a Unix socket")
		return
	}
	body, code, err := readAction(rw, r)
	if err != nil {
		fail(rw, code, err.Error())
		return
	}
	a, err := parseAction(body)
	if err != nil {
		fail(rw, http.StatusBadRequest, err.Error())
		return
	}
	a.Breaker, a.Who = r.PathValue("name"), who(r)
	done, err := w.Act(r.Context(), a)
	if err != nil {
		code, known := http.StatusInternalServerError, []string(nil)
		var e *ActionError
		if errors.As(err, &e) {
			code, known = e.Code, e.Known
		}
		out := map[string]any{"error": err.Error()}
		if known != nil {
			out["known"] = known
		}
		reply(rw, code, out)
		return
	}
	reply(rw, http.StatusOK, done)
}

// readAction reads a body; code is what an error is answered with.
func readAction(rw http.ResponseWriter, r *http.Request) (body []byte, code int, err error) {
	c := http.NewResponseController(rw)
	_ = c.SetReadDeadline(time.Now().Add(bodyWait)) // stands after an error: the server then looks for the rest
	body, err = io.ReadAll(http.MaxBytesReader(rw, r.Body, maxAction))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, http.StatusRequestEntityTooLarge, fmt.Errorf("an action has at most %d bytes", maxAction)
	case err != nil:
		return nil, http.StatusBadRequest, fmt.Errorf("the action did not come within %v, or broke off", bodyWait)
	}
	_ = c.SetReadDeadline(time.Time{}) // the connection may be gone
	return body, http.StatusOK, nil
}

// printable reports whether a text is one line without marks that turn it round
// or hide in it: it goes to logs and terminals.
func printable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

// parseAction reads {"action": ..., "kind": ..., "level": ..., "for": ...,
// "reason": ...}: these keys, each at most once, all strings.
func parseAction(body []byte) (Action, error) {
	fields, err := fieldsOf(body, "action", "kind", "level", "for", "reason")
	if err != nil {
		return Action{}, err
	}
	a := Action{Do: fields["action"], Level: fields["level"], Reason: strings.TrimSpace(fields["reason"])}
	switch fields["kind"] {
	case "", "pool":
	case "tenant":
		a.Tenant = true
	default:
		return a, fmt.Errorf("kind must be pool or tenant (got %q)", fields["kind"])
	}
	if err := a.level(fields); err != nil {
		return a, err
	}
	if text, set := fields["for"]; set {
		if a.Do == "reset" {
			return a, errors.New("for is of no meaning with reset")
		}
		if a.For, err = time.ParseDuration(text); err != nil || a.For <= 0 || a.For > maxFor {
			return a, fmt.Errorf("for must be a time above 0, up to %v, such as 30s (got %q)", maxFor, text)
		}
	}
	if len(a.Reason) > maxReason || !printable(a.Reason) {
		return a, fmt.Errorf("reason must be one line of at most %d bytes, of printable characters", maxReason)
	}
	return a, nil
}

func (a *Action) level(fields map[string]string) error {
	level, set := fields["level"]
	switch a.Do {
	case "trip":
		if !set {
			a.Level = "hard"
		} else if level != "soft" && level != "hard" {
			return fmt.Errorf("level must be soft or hard (got %q)", level)
		}
	case "reset", "hold":
		if set {
			return fmt.Errorf("level is of no meaning with %s", a.Do)
		}
	default:
		return fmt.Errorf("action must be trip, reset or hold (got %q)", a.Do)
	}
	return nil
}

// fieldsOf reads one JSON object of strings with no other keys than these and
// none of them twice.
func fieldsOf(body []byte, keys ...string) (map[string]string, error) {
	form := func() error {
		return fmt.Errorf("the body must be one JSON object whose keys are %s and whose values are strings", strings.Join(keys, ", "))
	}
	if !utf8.Valid(body) {
		return nil, form()
	}
	d := json.NewDecoder(bytes.NewReader(body))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, form()
	}
	out := make(map[string]string)
	for d.More() {
		t, err := d.Token()
		key, ok := t.(string)
		if err != nil || !ok {
			return nil, form()
		}
		if !slices.Contains(keys, key) {
			return nil, fmt.Errorf("%q is no key of an action: the keys are %s", key, strings.Join(keys, ", "))
		}
		if _, twice := out[key]; twice {
			return nil, fmt.Errorf("%s stands twice", key)
		}
		if t, err = d.Token(); err != nil {
			return nil, form()
		}
		if out[key], ok = t.(string); !ok {
			return nil, fmt.Errorf("%s must be a string", key)
		}
	}
	if _, err := d.Token(); err != nil {
		return nil, form()
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, form()
	}
	return out, nil
}

// overSocket reports whether a request came over a Unix socket.
func overSocket(r *http.Request) bool {
	a, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return ok && a.Network() == "unix"
}

// who is what is known of the operator.
func who(r *http.Request) string {
	if !overSocket(r) {
		return "admin token, from " + r.RemoteAddr
	}
	text := "unix socket"
	if uid, ok := r.Context().Value(peerUser{}).(uint32); ok {
		text += ", uid " + strconv.FormatUint(uint64(uid), 10)
	}
	if r.Header.Get("Authorization") != "" {
		text += ", with a token"
	}
	return text
}

// peerUser is the context key of the user at the other end of a Unix socket.
type peerUser struct{}

// ConnContext is for http.Server: it notes who is at the other end of a Unix
// socket, where the system tells.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return ctx
	}
	if uid, ok := userOf(u); ok {
		return context.WithValue(ctx, peerUser{}, uid)
	}
	return ctx
}
