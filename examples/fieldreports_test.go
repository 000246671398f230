package examples_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/envoytest"
)

// The tests of this file hold weir behind a real Envoy against what was
// reported of gateways of this kind; the numbers are issues of the
// repositories named.

// TestOddAnswers: whatever a model answers reaches the client as it is, is
// charged by the rule for it, and leaves nothing taken.
func TestOddAnswers(t *testing.T) {
	plain, stream := chatBody(64, false), chatBody(64, true)
	cut := strings.NewReplacer(lastEvent+"\r\n\r\n", "", lastEvent+"\n\n", "")
	nothing, counted, whole := charge{1, promptGuess, 0}, charge{1, 3, 4}, charge{1, promptGuess, 64}
	cases := []struct {
		name, body string
		headers    []string
		code       int
		want       string // the answer's body
		charge     charge
		result     string
	}{
		{"chunked-nothing", plain, nil, 200, "", nothing, "ok"}, // envoyproxy/envoy#44201
		{"stream-nothing", stream, nil, 200, "", nothing, "unknown"},
		{"no-content", plain, nil, 204, "", nothing, "ok"},
		{"not-modified", plain, nil, 304, "", charge{}, "ok"},
		{"redirect", plain, nil, 307, strings.Repeat("<p>moved</p>", 100), charge{}, "ok"},
		{"busy", plain, nil, 429, `{"error":{"message":"slow down","type":"requests","code":"rate_limit_exceeded"}}`, charge{}, "failed"},              // sourcegraph#52633
		{"unknown-field", stream, nil, 400, `{"error":{"message":"unknown field stream_options","type":"invalid_request_error"}}`, charge{}, "caller"}, // BerriAI/litellm#35290
		{"limits", plain, nil, 200, jsonOf7, counted, "ok"},                                                                                            // envoyproxy/envoy#32657
		{"no-type", plain, nil, 200, jsonOf7, counted, "ok"},
		{"trailers", stream, nil, 200, wordEvent + "\n\ndata: [DONE]\n\n", counted, "ok"},
		{"crlf", stream, nil, 200, cut.Replace(wordEvent + "\r\n\r\n: ping\r\n\r\n" + lastEvent + "\r\n\r\ndata: [DONE]\r\n\r\n"), counted, "ok"},
		{"early-hints", plain, nil, 200, jsonOf7, counted, "ok"},
		{"gzip", plain, []string{"Accept-Encoding", "gzip"}, 200, zipped(jsonOf7), counted, "ok"}, // envoyproxy/ai-gateway#1189
		{"coded-twice", plain, []string{"Accept-Encoding", "gzip"}, 200, zipped(jsonOf7), counted, "ok"},
		{"gzip-not", plain, []string{"Accept-Encoding", "gzip"}, 200, jsonOf7, whole, "ok"},
		{"br", plain, []string{"Accept-Encoding", "br"}, 200, "\x0b\x02\x80not read\x03", whole, "ok"}, // xroche/httrack#556
		{"bomb", plain, []string{"Accept-Encoding", "gzip"}, 200, zipped(strings.Repeat("\x00", 10<<20)), whole, "ok"},
		{"boasts", plain, nil, 200, strings.Replace(jsonOf7, `"completion_tokens":4`, `"completion_tokens":19503`, 1), charge{1, 3, 64}, "ok"},                         // vllm-project/vllm-omni#2313
		{"pauses", stream, nil, 200, wordEvent + "\n\n" + `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\ndata: [DONE]\n\n", counted, "ok"}, // decolua/9router#3297
		{"huge-header", plain, nil, 200, jsonOf7, counted, "ok"},
	}
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		up := newOddModel(t)
		w := oddWorld(t, b, up, nil)
		for _, c := range cases {
			before := w.metric("weir_requests_ended_total", `result="`+c.result+`"`)
			a := w.odd(c.name, c.body, c.headers...)
			if a.err != nil || a.code != c.code || a.body != c.want {
				t.Errorf("%s: %d %v %.300q, want %d %.300q", c.name, a.code, a.err, a.body, c.code, c.want)
			}
			w.settled(c.name, c.charge)
			if n := w.metric("weir_requests_ended_total", `result="`+c.result+`"`) - before; n != 1 {
				t.Errorf("%s: %v ended as %s, want 1", c.name, n, c.result)
			}
			checkOdd(t, c.name, a)
		}
		if n := w.metric("weir_usage_implausible_total"); n != 1 {
			t.Errorf("%v implausible counts, want 1", n)
		}
		w.sound()
	})
}

// checkOdd holds the headers of some cases.
func checkOdd(t *testing.T, name string, a answer) {
	t.Helper()
	switch name {
	case "busy":
		if got := a.header["Retry-After"]; !slices.Equal(got, []string{"7"}) {
			t.Errorf("retry-after %q, want the model's own 7", got)
		}
	case "redirect":
		if got := a.header.Get("Location"); got != "https://elsewhere.example/v1" {
			t.Errorf("location %q", got)
		}
	case "limits":
		for _, n := range []string{"Limit-Requests", "Remaining-Requests", "Reset-Requests"} {
			if got := a.header["X-Ratelimit-"+n]; len(got) != 1 || got[0] == "1" || got[0] == "2" {
				t.Errorf("X-Ratelimit-%s is %q, want weir's alone", n, got)
			}
		}
	case "gzip":
		z, err := gzip.NewReader(strings.NewReader(a.body))
		if err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(z); err != nil || string(text) != jsonOf7 || a.header.Get("Content-Encoding") != "gzip" {
			t.Errorf("decodes to %q, %v", text, err)
		}
	}
}

// TestBodiesArriveWhole: what the model gets is what was sent, or what weir
// made of it, with its length (rossoctl/cortex#820, envoyproxy/envoy#38291,
// #40340); headers that are no text and large ones do no harm (#32607); a try
// that is reset is not repeated (#36119).
func TestBodiesArriveWhole(t *testing.T) {
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		up := newOddModel(t)
		w := oddWorld(t, b, up, nil)
		long := strings.Repeat("港 weir ", 8<<10) // 80 KiB: many pieces on the wire
		asked := `{"model":"deepseek-v4","max_tokens":4000,"stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"` + long + `"}]}`
		grown := `{"model":"deepseek-v4","max_tokens":4000,"stream":true,"messages":[{"role":"user","content":"` + long + `"}]}`
		for name, c := range map[string]struct {
			body, scope string
			change      int // of the length; 0 = the same bytes
			headers     []string
		}{
			"as sent": {body: asked},
			"chunked": {body: asked},
			"expect":  {body: asked, headers: []string{"Expect", "100-continue"}},
			"grown":   {body: grown, change: len(`,"stream_options":{"include_usage":true}`)},
			"clamped": {body: strings.Replace(asked, `"max_tokens":4000,`, "", 1), scope: " max_tokens<=16", change: len(`,"max_tokens":16`)},
			"no text": {body: asked, headers: []string{"X-Trace", "\xe4\xb8", "X-Other", "a\xffb"}},
			"many":    {body: asked, headers: []string{"X-Large", strings.Repeat("v", 40<<10)}},
		} {
			req := w.request(t.Context(), http.MethodPost, chatPath, c.body, append(c.headers, "X-Case", name,
				"Authorization", "Bearer "+w.token(claims{"scope": "llm_service chat_completion" + c.scope}))...)
			if name == "chunked" {
				req.ContentLength = -1
			}
			if a := w.do(req); a.code != http.StatusOK {
				t.Errorf("%s: %d %v %s", name, a.code, a.err, a.body)
				continue
			}
			got, tries := up.seen(name)
			if len(got.body) != len(c.body)+c.change || tries != 1 {
				t.Errorf("%s: the model got %d bytes in %d tries, want %d", name, len(got.body), tries, len(c.body)+c.change)
			}
			if c.change == 0 && sha256.Sum256([]byte(got.body)) != sha256.Sum256([]byte(c.body)) {
				t.Errorf("%s: the body was changed", name)
			}
			if got.length != int64(len(got.body)) && name != "chunked" {
				t.Errorf("%s: content-length %d for %d bytes", name, got.length, len(got.body))
			}
			for i := 0; i+1 < len(c.headers) && name != "expect"; i += 2 {
				if v := got.header.Get(c.headers[i]); v != c.headers[i+1] {
					t.Errorf("%s: header %s arrives as %.40q", name, c.headers[i], v)
				}
			}
		}
		a := w.odd("resets", chatBody(4, false))
		if _, tries := up.seen("resets"); a.code != http.StatusServiceUnavailable || tries != 1 {
			t.Errorf("a model that hangs up: %d after %d tries, want 503 after one", a.code, tries)
		}
		w.idle(5 * time.Second)
		w.sound()
	})
}

// dialled writes bytes to Envoy and reads the head of what it answers.
func (w *world) dialled(request string) (status int, reason, body string) {
	w.t.Helper()
	c, err := net.DialTimeout("tcp", w.envoy.Addr, 5*time.Second)
	if err != nil {
		w.t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(c, request); err != nil {
		w.t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		w.t.Fatalf("%.60q: %v", request, err)
	}
	defer res.Body.Close()
	var b bytes.Buffer
	_, _ = io.Copy(&b, io.LimitReader(res.Body, 64<<10)) // what came says enough
	return res.StatusCode, res.Header.Get("x-weir-reason"), b.String()
}

// TestRequestsThatNeverEnd: what is not there is not waited for
// (emissary-ingress/emissary#1140, envoyproxy/envoy#47081), and a token that
// is no text is no token (#32607).
func TestRequestsThatNeverEnd(t *testing.T) {
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		w := oddWorld(t, b, newOddModel(t), nil)
		auth := "host: x\r\nauthorization: Bearer " + w.token(nil) + "\r\n"
		post := "POST " + chatPath + " HTTP/1.1\r\n" + auth
		for name, c := range map[string]struct {
			request string
			status  int
			reason  string
		}{
			"no body and no length":    {post + "\r\n", 400, "body_missing"},
			"a body of no bytes":       {post + "content-length: 0\r\n\r\n", 400, "body_missing"},
			"chunks of no bytes":       {post + "transfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400, "body_missing"},
			"HEAD":                     {"HEAD " + chatPath + " HTTP/1.1\r\n" + auth + "connection: close\r\n\r\n", 404, "path_unknown"},
			"upgrade":                  {post + "connection: Upgrade\r\nupgrade: websocket\r\n\r\nbytes", 403, ""}, // Envoy's own word: no upgrade is configured
			"a token that is no text":  {"POST " + chatPath + " HTTP/1.1\r\nhost: x\r\nauthorization: Bearer \xff\xfe\r\ncontent-length: 2\r\n\r\n{}", 401, "token_malformed"},
			"begun and never ended":    {post + "content-type: application/json\r\ncontent-length: 1000\r\n\r\n{", 400, "body_truncated"},
			"announced and never sent": {post + "content-type: text/plain\r\ncontent-length: 1000\r\n\r\n", 415, "body_type"},
			"too large and never sent": {post + "content-length: 100000000\r\n\r\n", 413, "body_too_large"},
		} {
			start := time.Now()
			status, reason, body := w.dialled(c.request)
			if status != c.status || reason != c.reason {
				t.Errorf("%s: %d %s %s, want %d %s", name, status, reason, body, c.status, c.reason)
			}
			if took := time.Since(start); took > 10*time.Second {
				t.Errorf("%s: answered after %v", name, took)
			}
		}
		w.idle(5 * time.Second)
		w.sound()
	})
}

// TestBodyLimits: a body beyond what Envoy buffers is a 413 in the caller's
// shape and reaches nobody (envoyproxy/ai-gateway#1209, envoyproxy/envoy#40340);
// a route whose body is not read is not bound by it (#7404). Where Envoy stops
// reading (see docs/envoy.md), weir ends the wait.
func TestBodyLimits(t *testing.T) {
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		up := newOddModel(t)
		w := oddWorld(t, b, up, nil)
		for _, size := range []int{8 << 20, 40 << 20} {
			for _, chunked := range []bool{false, true} {
				name := fmt.Sprintf("%d MiB, chunked %v", size>>20, chunked)
				req := w.request(t.Context(), http.MethodPost, chatPath, modelBody("deepseek-v4", strings.Repeat("x", size)),
					"Authorization", "Bearer "+w.token(nil), "X-Case", "large", "Expect", "100-continue")
				if chunked {
					req.ContentLength = -1
				}
				a := w.do(req)
				stuck := chunked && formOf(b) == "two-filters.yaml" && a.code == http.StatusBadRequest && a.errorCode() == "truncated_body"
				if !stuck && (a.code != http.StatusRequestEntityTooLarge || a.errorCode() != "body_too_large") || a.header.Get("content-type") != "application/json" {
					t.Errorf("%s: %d %v %s", name, a.code, a.err, a.body)
				}
			}
		}
		if _, tries := up.seen("large"); tries != 0 {
			t.Errorf("%d bodies that were refused reached the model", tries)
		}
		upload := w.request(t.Context(), http.MethodPost, uploadPath, strings.Repeat("x", 20<<20), "Authorization", "Bearer "+w.token(nil), "X-Case", "upload")
		upload.Header.Set("Content-Type", "audio/wav")
		a := w.do(upload)
		if got, _ := up.seen("upload"); a.code != http.StatusOK || len(got.body) != 20<<20 {
			t.Errorf("an upload of 20 MiB: %d %v, %d bytes arrived", a.code, a.err, len(got.body))
		}
		// A model that answers before it has the body.
		early := w.request(t.Context(), http.MethodPost, uploadPath, strings.Repeat("x", 20<<20), "Authorization", "Bearer "+w.token(nil), "X-Case", "early")
		if a := w.do(early); a.code != http.StatusInsufficientStorage && a.err == nil {
			t.Errorf("an early answer: %d %s", a.code, a.body)
		}
		w.idle(5 * time.Second)
		w.sound()
	})
	t.Run("1 KiB", func(t *testing.T) {
		b := envoytest.Envoys(t)[0]
		up := newOddModel(t)
		w := oddWorld(t, b, up, func(tree envoytest.Tree) {
			limitBuffers(tree, 1<<10)
		})
		a := w.odd("small", modelBody("deepseek-v4", strings.Repeat("x", 64<<10)))
		if _, tries := up.seen("small"); a.code < 400 || a.code >= 500 || tries != 0 {
			t.Errorf("%d %v; %d tries reached the model", a.code, a.err, tries)
		}
	})
}

// TestOpenAndClosedWhenWeirDies (envoyproxy/envoy#38521): killed under load,
// the closed example answers 5xx alone, the open one 200 alone.
func TestOpenAndClosedWhenWeirDies(t *testing.T) {
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		for _, open := range []bool{false, true} {
			up := newOddModel(t)
			w := newWorld(t, b, setup{example: "two-filters.yaml", policy: oddPolicy, pools: []string{}, envoy: func(tree envoytest.Tree) {
				pointAt(tree, "chat-dyn", up.addr)
				pointAt(tree, "chat-fp16", up.addr)
				if open { // identity is off, to see what ext_proc does
					filters(tree, without(authzFilter))
					envoytest.Filter(tree, procFilter)["failure_mode_allow"] = true
				}
			}})
			w.weir.Kill()
			codes := map[int]int{}
			for range 20 {
				a := w.odd("dead", chatBody(4, false))
				if a.err != nil {
					t.Fatal(a.err)
				}
				codes[a.code]++
			}
			for code := range maps.Keys(codes) {
				if open && code != http.StatusOK || !open && code < 500 {
					t.Errorf("open %v: answers %v", open, codes)
				}
			}
		}
	})
}
