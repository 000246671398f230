package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/internal/admin"
	"github.com/weirproxy/weir/internal/envoytest"
	"github.com/weirproxy/weir/policy"
)

// TestBreakerAct: what a hand does, what it answers, and what it leaves in the
// audit log and in the timeline.
func TestBreakerAct(t *testing.T) {
	r := newReplica(t, "a", readPolicy(t, streetPolicy), nil)
	defer r.end()
	audit := &lines{}
	log := slog.New(slog.NewJSONHandler(audit, nil))
	for _, c := range []struct {
		a             admin.Action
		before, after string
	}{
		{admin.Action{Breaker: "chat", Do: "trip", Level: "soft", For: time.Minute, Reason: "bad build", Who: "me"}, "closed", "soft"},
		{admin.Action{Breaker: "chat", Do: "hold", Who: "me"}, "soft", "soft, held"},
		{admin.Action{Breaker: "chat", Do: "trip", Level: "hard", Who: "me"}, "soft, held", "hard"},
		{admin.Action{Breaker: "chat", Do: "reset", Who: "me"}, "hard", "closed"},
		{admin.Action{Breaker: "chat", Do: "hold", For: time.Hour, Who: "me"}, "closed", "closed, held"},
		{admin.Action{Breaker: "chat", Tenant: true, Do: "trip", Level: "hard", Who: "me"}, "closed", "hard"}, // a tenant of the same name
		{admin.Action{Breaker: "chat", Tenant: true, Do: "reset", Who: "me"}, "hard", "closed"},
		{admin.Action{Breaker: "new", Tenant: true, Do: "hold", Who: "me"}, "closed", "closed, held"},
	} {
		got, err := r.act(context.Background(), log, c.a)
		if err != nil {
			t.Errorf("%+v: %v", c.a, err)
			continue
		}
		v := got.(handView)
		if v.Before != c.before || v.After != c.after || v.Breaker.Name != c.a.Breaker || (v.Breaker.Kind == "tenant") != c.a.Tenant {
			t.Errorf("%+v: %s to %s, %+v; want %s to %s", c.a, v.Before, v.After, v.Breaker, c.before, c.after)
		}
	}
	first, _, _ := strings.Cut(audit.b.String(), "\n")
	var line map[string]any
	if err := json.Unmarshal([]byte(first), &line); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]any{
		"audit": true, "who": "me", "action": "trip", "breaker": "chat", "kind": "pool", "level": "soft", "for": "1m0s", "before": "closed", "after": "soft", "reason": "bad build",
	} {
		if line[key] != want {
			t.Errorf("audit: %s is %v, want %v", key, line[key], want)
		}
	}
	if n := audit.count(`"audit":true`); n != 8 {
		t.Errorf("%d audit lines of 8 actions", n)
	}
	hands := r.entries(entryHand)
	if len(hands) != 8 || hands[0].Breaker != "chat" || hands[0].Cluster != "c" || hands[0].Key != "trip" || hands[0].By != "me" || hands[0].Because != "bad build" || hands[5].Cluster != "" {
		t.Errorf("the timeline says %+v", hands)
	}
	if s := r.pool("chat").View; s.By != "me" || !s.Held {
		t.Errorf("the breaker says %+v", s)
	}
}

// TestBreakerActRefused: what is not known, or off, is not worked.
func TestBreakerActRefused(t *testing.T) {
	on := newReplica(t, "a", readPolicy(t, streetPolicy), nil)
	defer on.end()
	off := newReplica(t, "a", readPolicy(t, strings.Replace(streetPolicy, "breaker: {", "breaker: {disabled: true, ", 1)), nil)
	defer off.end()
	on.desk.Tenants().Trip(time.Now(), "acme", breaker.Hard, time.Minute, "test")
	for _, c := range []struct {
		r     *replica
		a     admin.Action
		code  int
		says  string
		known []string
	}{
		{on, admin.Action{Breaker: "chta", Do: "trip"}, http.StatusNotFound, `there is no pool "chta"; the breakers are chat, infer, small`, []string{"chat", "infer", "small"}},
		{on, admin.Action{Breaker: "c", Do: "reset"}, http.StatusNotFound, `there is no pool "c"`, []string{"chat", "infer", "small"}},
		{on, admin.Action{Breaker: "nobody", Tenant: true, Do: "reset"}, http.StatusNotFound, `tenant "nobody" has no breaker`, []string{"acme"}},
		{on, admin.Action{Breaker: strings.Repeat("x", 257), Tenant: true, Do: "trip"}, http.StatusBadRequest, "no tenant can be called so: tenant: 257 bytes", nil},
		{on, admin.Action{Breaker: "a\nb", Tenant: true, Do: "hold"}, http.StatusBadRequest, "no tenant can be called so", nil},
		{on, admin.Action{Breaker: "\xff", Tenant: true, Do: "trip"}, http.StatusBadRequest, "no tenant can be called so", nil},
		{on, admin.Action{Breaker: "*", Tenant: true, Do: "trip"}, http.StatusBadRequest, "no tenant can be called so", nil},
		{off, admin.Action{Breaker: "chat", Do: "trip"}, http.StatusConflict, "the breaker of pool chat is switched off", nil},
		{off, admin.Action{Breaker: "acme", Tenant: true, Do: "hold"}, http.StatusConflict, "the breaker of tenant acme is switched off", nil},
	} {
		audit := &lines{}
		_, err := c.r.act(context.Background(), slog.New(slog.NewJSONHandler(audit, nil)), c.a)
		var e *admin.ActionError
		if !errors.As(err, &e) || e.Code != c.code || !strings.Contains(e.Text, c.says) || !slices.Equal(e.Known, c.known) {
			t.Errorf("%+v: %+v, want %d %s %v", c.a, err, c.code, c.says, c.known)
		}
		if audit.count("audit") > 0 || len(c.r.entries(entryHand)) > 0 {
			t.Errorf("%+v: audit or timeline of what was not done", c.a)
		}
	}
}

// TestBreakersPicture: state, figures, thresholds, the words of each replica
// and what comes next.
func TestBreakersPicture(t *testing.T) {
	p := readPolicy(t, streetPolicy)
	r := newReplica(t, "a", p, nil)
	defer r.end()
	now := time.Now()
	r.ends("chat", 40, true)
	r.o.Council.Hear(now, breaker.Opinion{Replica: "b", Breaker: "small", State: breaker.Soft, Level: breaker.Soft, Requests: 30, Failures: 12, Since: now, Left: time.Second, Seq: 1, TTL: 15 * time.Second})
	r.desk.Breaker("infer").Hold(now, now.Add(time.Hour), "me")
	r.desk.Tenants().Trip(now, "acme", breaker.Soft, time.Minute, "me")
	v := r.breakers(now).(breakersView)
	if len(v.Breakers) != 3 || v.Bus != "off" || v.Known != 1 || len(v.Tenants) != 1 || v.Tenants[0].Name != "acme" || v.Tenants[0].State != "soft" {
		t.Fatalf("%+v", v)
	}
	chat, small, infer := v.Breakers[0], v.Breakers[1], v.Breakers[2]
	if chat.State != "hard" || chat.Level != "hard" || chat.Cause != "ratio" || chat.Since == nil || chat.Requests != 20 || chat.Failures != 20 || chat.Ratio != 1 ||
		chat.MinRequests != 20 || chat.Soft != 0.3 || chat.Hard != 0.5 || chat.Release != 0 || chat.Next.To != "half_open" || chat.Next.In == nil || *chat.Next.In > 6 || *chat.Next.In < 4 {
		t.Errorf("chat: %+v", chat)
	}
	if small.State != "closed" || small.Level != "" || small.Cluster != "c" || small.Elsewhere.State != "soft" || !small.Elsewhere.Sheds || small.Elsewhere.Votes != 1 ||
		len(small.Elsewhere.Words) != 1 || small.Elsewhere.Words[0].Replica != "b" || small.Elsewhere.Words[0].Failures != 12 || small.Next.To != "soft" ||
		small.Next.When != "30 % of at least 20 ends fail; hard from 50 %" {
		t.Errorf("small: %+v, %+v", small, small.Elsewhere)
	}
	if infer.Kind != "grpc" || infer.Held == nil || infer.Held.By != "me" || infer.Next.To != "closed" || infer.Next.In == nil || *infer.Next.In < 3599 {
		t.Errorf("infer: %+v", infer)
	}
	if _, err := json.Marshal(v); err != nil {
		t.Error(err)
	}
	if _, err := json.Marshal(r.envoys(now)); err != nil {
		t.Error(err)
	}
}

// adminOf serves a replica's window on a Unix socket.
func adminOf(t *testing.T, r *replica) (address string) {
	t.Helper()
	path := filepath.Join(envoytest.Dir(t), "a.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{ReadHeaderTimeout: time.Second, ConnContext: admin.ConnContext, Handler: admin.New(admin.Options{
		Token:    func() policy.Secret { return policy.Secret{} },
		Metrics:  http.NotFoundHandler(),
		Breakers: r.breakers, Log: slog.New(slog.DiscardHandler),
		Act: func(ctx context.Context, a admin.Action) (any, error) { return r.act(ctx, r.street.log, a) },
	})}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	return "unix:" + path
}

// TestBreakerCommand: the command line to the letter, and its exit codes.
func TestBreakerCommand(t *testing.T) {
	r := newReplica(t, "a", readPolicy(t, streetPolicy), nil)
	defer r.end()
	at := adminOf(t, r)
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"list", 0, "NAME"},
		{"list", 0, "infer  grpc  closed"},
		{"list --json", 0, `"replica": "a"`},
		{"trip chat --for 1m --level soft --reason test", 0, "chat: soft, was closed; next half_open in "},
		{"list", 0, "chat   http  soft"},
		{"hold chat", 0, "chat: soft, held, was soft; next soft: held until it is reset or tripped"},
		{"hold chat --for 1h", 0, "next soft: its hold ends in 3"}, // and what is then is not new
		{"reset chat --json", 0, `"after": "closed"`},
		{"trip a/b --tenant", 0, "a/b: hard, was closed"},
		{"list", 0, "a/b    tenant"},
		{"trip chta", 1, `404 Not Found: there is no pool "chta"; the breakers are chat, infer, small`},
		{"reset nobody --tenant", 1, `tenant "nobody" has no breaker (known: a/b)`},
		{"trip chat --for 25h", 1, "for must be a time above 0, up to 24h"},
		{"trip chat --for -1s", 2, "--for -1s: must be above 0"},
		{"trip chat --for soon", 2, "soon"},
		{"trip chat --level open", 2, `--level "open": must be soft or hard`},
		{"trip", 2, "see weir breaker trip --help"},
		{"reset chat --for 1s", 2, "unknown flag: --for"},
		{"hold chat --level hard", 2, "unknown flag: --level"},
		{"list chat", 2, "see weir breaker list --help"},
		{"nonsense", 2, "nonsense"},
		{"trip .. --tenant", 0, "..: hard, was closed"},
		{"reset . --tenant", 1, `tenant "." has no breaker`},
	} {
		args := append([]string{"breaker"}, strings.Fields(c.args)...)
		if c.code != 2 || !strings.Contains(c.args, "nonsense") {
			args = append(args, "--admin", at)
		}
		out, errOut, code := execute(t, args...)
		if code != c.code || !strings.Contains(out+errOut, c.says) {
			t.Errorf("weir breaker %s: exit code %d, want %d; says %q, want %q", c.args, code, c.code, out+errOut, c.says)
		}
	}
}

// TestBreakerTableIsPlain: whatever a name holds, a terminal is not told what to
// do.
func TestBreakerTableIsPlain(t *testing.T) {
	var out strings.Builder
	v := breakersView{Replica: "r\x1b[2J", Breakers: []breakerView{{Name: "a\x1b[31m"}, {Name: "b\u202ec"}, {Name: "c\nd"}, {Name: "Zürich 1"}}}
	if err := printBreakers(&out, &v); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); strings.ContainsAny(text, "\x1b\u202e") || strings.Count(text, "\n") != 6 || !strings.Contains(text, `"a\x1b[31m" `) || !strings.Contains(text, "\nZürich 1 ") {
		t.Errorf("%q", text)
	}
}

// TestBreakerCommandAsksWell: an address or a token that cannot be meant is not
// sent, and the error says what is wrong with it.
func TestBreakerCommandAsksWell(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"empty": "\n", "two": "a\nb\n", "long": strings.Repeat("x", 5000), "good": "s3cret\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"trip", ""}, 2, "NAME is empty"},
		{[]string{"list", "--admin", "garbage"}, 2, `--admin "garbage": must be host:port or unix:/path`},
		{[]string{"list", "--admin", ""}, 2, `--admin "": must be`},
		{[]string{"list", "--admin", "unix:"}, 2, `--admin "unix:": must be`},
		{[]string{"list", "--admin", "http://127.0.0.1:1"}, 2, "must be host:port"},
		{[]string{"list", "--admin", "127.0.0.1:99999"}, 2, "must be host:port"},
		{[]string{"list", "--admin", "127.0.0.1:"}, 2, "must be host:port"},
		{[]string{"list", "--admin", "127.0.0.1:1", "--token-file", filepath.Join(dir, "good")}, 1, "weir: no weir answers at 127.0.0.1:1: dial tcp"},
		{[]string{"list", "--admin", "127.0.0.1:1", "--token-file", filepath.Join(dir, "none")}, 1, "no such file"},
		{[]string{"list", "--admin", "127.0.0.1:1", "--token-file", filepath.Join(dir, "empty")}, 1, "empty: the token must be one line"},
		{[]string{"list", "--admin", "127.0.0.1:1", "--token-file", filepath.Join(dir, "two")}, 1, "two: the token must be one line"},
		{[]string{"list", "--admin", "127.0.0.1:1", "--token-file", filepath.Join(dir, "long")}, 1, "long: more than 4096 bytes"},
	} {
		out, errOut, code := execute(t, append([]string{"breaker"}, c.args...)...)
		if code != c.code || !strings.Contains(errOut, c.says) {
			t.Errorf("weir breaker %q: exit code %d, want %d; says %q, want %q", c.args, code, c.code, out+errOut, c.says)
		}
	}
}

// TestBreakerByHandInARunningWeir: a weir process whose breaker is tripped from
// the command line refuses, and admits again when it is reset. Who did it is in
// its log at any level.
func TestBreakerByHandInARunningWeir(t *testing.T) {
	dir := envoytest.Dir(t)
	w := envoytest.Serve(t, dir, "version: 1\n"+envoytest.Server(dir)+`identity: {from: metadata, metadata: {namespace: door}}
models: [{name: m, pools: [chat]}]
pools: [{name: chat, variant: fp16, seats: {requests: 64}}]
telemetry: {log: {level: error}}
`)
	conn, err := grpc.NewClient("unix:"+w.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	at := "unix:" + filepath.Join(dir, "admin.sock")
	weir := func(says string, args ...string) {
		t.Helper()
		out, errOut, code := execute(t, append(append([]string{"breaker"}, args...), "--admin", at)...)
		if code != 0 || !strings.Contains(out, says) {
			t.Fatalf("weir breaker %v: %d, %s%s", args, code, out, errOut)
		}
	}
	if status := askWeir(t, conn); status != 200 {
		t.Fatalf("before: %d", status)
	}
	weir("chat: hard, was closed", "trip", "chat", "--for", "10m", "--reason", "rolling back")
	if status := askWeir(t, conn); status != 503 {
		t.Errorf("tripped: %d, want 503", status)
	}
	weir("chat  http  hard", "list")
	weir("chat: closed, was hard", "reset", "chat")
	if status := askWeir(t, conn); status != 200 {
		t.Errorf("reset: %d, want 200", status)
	}
	for _, line := range []string{`"action":"trip"`, `"action":"reset"`} {
		envoytest.Eventually(t, 5*time.Second, "audit of "+line, func() bool {
			for text := range strings.Lines(w.Log()) {
				if strings.Contains(text, line) {
					return strings.Contains(text, `"audit":true`) && strings.Contains(text, `"who":"unix socket, uid `)
				}
			}
			return false
		})
	}
	if !strings.Contains(w.Log(), `"reason":"rolling back"`) {
		t.Error("the audit does not say why")
	}
	var line timelineView
	envoytest.Eventually(t, 5*time.Second, "both transitions in the timeline", func() bool {
		body, err := adminGet(t.Context(), at, "", "/debug/timeline?breaker=chat")
		if err != nil || json.Unmarshal(body, &line) != nil {
			t.Fatal(err)
		}
		n := 0
		for _, e := range line.Entries {
			if e.What == entryTransition {
				n++
			}
		}
		return n == 2
	})
	w.Signal(syscall.SIGTERM)
	select {
	case <-w.Exited():
		if w.ExitCode() != 0 {
			t.Errorf("exit code %d:\n%s", w.ExitCode(), w.Log())
		}
	case <-time.After(10 * time.Second):
		t.Error("weir does not end")
	}
}
