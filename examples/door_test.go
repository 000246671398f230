package examples_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/envoytest"
)

// raw sends bytes to Envoy as they are and reads one answer; code 0 when the
// connection was closed without one.
func (w *world) raw(text string) answer {
	ctx, stop := context.WithTimeout(w.t.Context(), 30*time.Second)
	defer stop()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", w.envoy.Addr)
	if err != nil {
		return answer{code: -1, err: err}
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline)
	if _, err := io.WriteString(conn, text); err != nil {
		return answer{err: err}
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return answer{err: err}
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return answer{code: res.StatusCode, header: res.Header, body: string(body), err: err}
}

// TestRawInput: bytes that no HTTP library sends. Envoy or weir refuses them
// with a 4xx or closes the connection; no 5xx, no seat, no charge.
func TestRawInput(t *testing.T) {
	eachForm(t, setup{policy: uploads}, func(t *testing.T, w *world) {
		token, body := w.token(nil), chatBody(4, false)
		post := func(path, headers, body string) string {
			return "POST " + path + " HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\nAuthorization: Bearer " + token +
				"\r\nContent-Type: application/json\r\n" + headers + "\r\n" + body
		}
		sized := fmt.Sprintf("Content-Length: %d\r\n", len(body))
		cases := map[string]string{
			"control bytes in a header":   post(chatPath, "X-DeepSeek-Priority: ba\x01tch\r\n"+sized, body),
			"a NUL in a header":           post(chatPath, "X-Request-Timeout: 1\x00\r\n"+sized, body),
			"a space in a name":           post(chatPath, "X Weir: 1\r\n"+sized, body),
			"no colon":                    post(chatPath, "nonsense\r\n"+sized, body),
			"an underscore in a name":     post(chatPath, "x_weir_tenant: evil\r\n"+sized, body),
			"a folded header":             post(chatPath, "X-Request-Timeout: 1\r\n 2\r\n"+sized, body),
			"two lengths that differ":     post(chatPath, sized+"Content-Length: 3\r\n", body),
			"length and chunks":           post(chatPath, sized+"Transfer-Encoding: chunked\r\n", fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(body), body)),
			"another transfer coding":     post(chatPath, "Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n"),
			"a negative length":           post(chatPath, "Content-Length: -1\r\n", body),
			"a chunk of letters":          post(chatPath, "Transfer-Encoding: chunked\r\n", "zz\r\n"+body),
			"chunks without bytes":        post(chatPath, "Transfer-Encoding: chunked\r\n", "0\r\n\r\n"),
			"headers of 100 KiB":          post(chatPath, "X-Long: "+strings.Repeat("x", 100<<10)+"\r\n"+sized, body),
			"two hundred headers":         post(chatPath, strings.Repeat("X-Many: 1\r\n", 200)+sized, body),
			"bytes above ASCII in a path": post("/v1/chat/\xff\xfe", sized, body),
			"a control byte in a path":    post("/v1/chat/\x01completions", sized, body),
			"a fragment":                  post(chatPath+"#frag", sized, body),
			"a path of 60 KiB":            post("/v1/"+strings.Repeat("a", 60<<10), sized, body),
			"CONNECT":                     "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example\r\nAuthorization: Bearer " + token + "\r\nConnection: close\r\n\r\n",
			"another method":              strings.Replace(post(chatPath, sized, body), "POST", "PUT", 1),
			"TRACE":                       strings.Replace(post(chatPath, sized, body), "POST", "TRACE", 1),
			"HTTP/0.9":                    "GET /v1/models\r\n\r\n",
			"no HTTP":                     "\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
			"an upgrade":                  post(chatPath, "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: YTpi\r\n", ""),
		}
		answers := make(chan func(), len(cases)) // at once: Envoy closes a broken connection after a second
		for name, text := range cases {
			go func() {
				a := w.raw(text)
				answers <- func() {
					if refused := a.code >= 400 && a.code < 500; !refused && (a.code != 0 || os.IsTimeout(a.err)) {
						t.Errorf("%s: %d %v %s %s", name, a.code, a.err, a.header.Get("x-weir-reason"), a.body)
					}
				}
			}()
		}
		for range cases {
			(<-answers)()
		}
		w.untouched("acme")
	})
}

// TestPathSpellings: however a path is spelt, it is guarded as the plain one:
// a spelling that Envoy normalises is that path for weir and for the model,
// any other is refused (TestWrongInput).
func TestPathSpellings(t *testing.T) {
	eachForm(t, setup{policy: uploads}, func(t *testing.T, w *world) {
		good, poor := w.token(nil), w.token(claims{"scope": "llm_service completion"})
		spellings := []string{
			chatPath, chatPath + "?a=b&c=/v1/models", "/v1/../v1/chat/completions", "//v1//chat/completions", "/v1/./chat/completions",
			"/v1/%2e%2e/v1/chat/completions", "/v1/%63hat/completions", "/v1/completions/../chat/completions", `/v1\chat/completions`,
		}
		for _, path := range spellings {
			send := func(token string) answer {
				req := w.request(t.Context(), http.MethodPost, "/", chatBody(2, false), "Authorization", "Bearer "+token)
				req.URL.Opaque = "//" + w.envoy.Addr + path
				return w.do(req)
			}
			if a := send(""); a.code != http.StatusUnauthorized && a.code != http.StatusBadRequest {
				t.Errorf("%s, anonymous: %d %s", path, a.code, a.body)
			}
			if a := send(poor); a.code != http.StatusForbidden && a.code != http.StatusBadRequest {
				t.Errorf("%s, without the scope: %d %s", path, a.code, a.body)
			}
			if a := send(good); a.code != http.StatusOK && a.code != http.StatusBadRequest {
				t.Errorf("%s: %d %s", path, a.code, a.body)
			}
		}
		if a := w.chat(good, 2, false); a.code != http.StatusOK {
			t.Errorf("the plain path: %d %s", a.code, a.body)
		}
		w.idle(5 * time.Second)
		w.sound()
	})
}

// TestModelList: GET /v1/models is answered from the caller's scopes; nothing
// is charged.
func TestModelList(t *testing.T) {
	eachForm(t, setup{policy: uploads}, func(t *testing.T, w *world) {
		for scope, want := range map[string][]string{
			"llm_service":               {"deepseek-v4", "infer"},
			"llm_service model=infer":   {"infer"},
			"llm_service model=other|x": nil,
		} {
			a := w.do(w.request(t.Context(), http.MethodGet, "/v1/models", "", "Authorization", "Bearer "+w.token(claims{"scope": scope})))
			var list struct {
				Object string
				Data   []struct{ ID, Object string }
			}
			if err := json.Unmarshal([]byte(a.body), &list); err != nil || a.code != http.StatusOK || list.Object != "list" {
				t.Fatalf("%s: %d %v %s", scope, a.code, err, a.body)
			}
			var got []string
			for _, m := range list.Data {
				got = append(got, m.ID)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: %q, want %q", scope, got, want)
			}
		}
		refused(t, w.do(w.request(t.Context(), http.MethodGet, "/v1/models", "")), http.StatusUnauthorized, "token_missing", "missing_token")
		refused(t, w.do(w.request(t.Context(), http.MethodGet, "/v1/models", "", "Authorization", "Bearer "+w.token(claims{"scope": "chat_completion"}))),
			http.StatusForbidden, "scope_service", "insufficient_scope")
		w.untouched("acme")
	})
}

// TestUpload: an API of kind opaque is decided at its headers: its body flows
// past weir, is not bounded by the buffer, and costs what the policy states.
func TestUpload(t *testing.T) {
	up := newEcho(t)
	eachForm(t, setup{policy: uploads, envoy: func(tree envoytest.Tree) { pointAt(tree, "chat-fp16", up.addr) }}, func(t *testing.T, w *world) {
		const size = 20 << 20
		send := func(scope string) answer {
			return w.do(w.request(t.Context(), http.MethodPost, "/v1/audio/transcriptions", strings.Repeat("x", size),
				"Authorization", "Bearer "+w.token(claims{"class": "critical", "scope": scope})))
		}
		before, _ := up.received()
		refused(t, send("llm_service"), http.StatusForbidden, "scope_function", "insufficient_scope")
		if n, _ := up.received(); n != before {
			t.Error("the model saw a refused upload")
		}
		if a := send("llm_service transcription"); a.code != http.StatusOK || a.header.Get("x-weir-reason") != "admitted" {
			t.Fatalf("%d %v %s", a.code, a.err, a.body)
		}
		if n, bytes := up.received(); n != before+1 || bytes != size {
			t.Errorf("the model saw %d uploads of %d bytes, want 1 of %d", n-before, bytes, size)
		}
		w.idle(10 * time.Second)
		if used := w.used("acme"); used["requests"] != 1 || used["tokens"] != 700 {
			t.Errorf("charged %v, want 1 request and 700 tokens", used)
		}
		w.sound()
	})
}

// TestUpgrade: where Envoy lets upgrades in, weir refuses them unless the
// policy takes them.
func TestUpgrade(t *testing.T) {
	eachForm(t, setup{policy: uploads, envoy: func(tree envoytest.Tree) {
		envoytest.HCM(tree)["upgrade_configs"] = []any{envoytest.Tree{"upgrade_type": "websocket"}}
	}}, func(t *testing.T, w *world) {
		ask := "GET " + chatPath + " HTTP/1.1\r\nHost: a.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: YTpi\r\n"
		for _, method := range []string{"GET", "POST"} {
			text := strings.Replace(ask, "GET", method, 1) + "Authorization: Bearer " + w.token(nil) + "\r\n\r\n"
			if a := w.raw(text); a.code != map[string]int{"GET": 404, "POST": 400}[method] {
				t.Errorf("%s: %d %s %s", method, a.code, a.header.Get("x-weir-reason"), a.body)
			}
		}
		if a := w.raw(ask + "\r\n"); a.code != http.StatusUnauthorized {
			t.Errorf("anonymous: %d %s", a.code, a.body)
		}
		w.untouched("acme")
	})
}

// TestPreflight: a CORS preflight passes without a token where the policy says
// so, in both forms, and is charged to nobody; nothing else passes with it.
func TestPreflight(t *testing.T) {
	eachForm(t, setup{policy: uploads}, func(t *testing.T, w *world) {
		w.reload(func(p string) string { return strings.Replace(p, "identity: {", "identity: {preflight: true, ", 1) })
		ask := func(method string, headers ...string) answer {
			return w.do(w.request(t.Context(), method, chatPath, "", headers...))
		}
		cors := []string{"Origin", "https://a.example", "Access-Control-Request-Method", "POST"}
		if a := ask(http.MethodOptions, cors...); a.code != http.StatusMethodNotAllowed || a.header.Get("allow") != "POST" {
			t.Errorf("the preflight: %d %s, want the model's own 405", a.code, a.body)
		}
		for name, a := range map[string]answer{
			"another method":   ask(http.MethodPost, cors...),
			"without origin":   ask(http.MethodOptions, cors[2:]...),
			"without a method": ask(http.MethodOptions, cors[:2]...),
		} {
			if a.code != http.StatusUnauthorized {
				t.Errorf("%s: %d %s", name, a.code, a.body)
			}
		}
		w.untouched("acme")
	})
}
