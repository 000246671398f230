package examples_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/envoytest"
)

// oddModel answers as the header x-case says, and remembers what it was sent.
type oddModel struct {
	addr string

	mu    sync.Mutex
	tries map[string]int
	sent  map[string]sentRequest // by case
}

// sentRequest is what the model got.
type sentRequest struct {
	header http.Header
	length int64 // content-length; -1 = none
	body   string
}

func newOddModel(t *testing.T) *oddModel {
	t.Helper()
	m := &oddModel{tries: map[string]int{}, sent: map[string]sentRequest{}}
	s := httptest.NewServer(m)
	t.Cleanup(s.Close)
	m.addr = strings.TrimPrefix(s.URL, "http://")
	return m
}

const (
	usageOf7  = `"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}`
	jsonOf7   = `{"object":"chat.completion","choices":[{"index":0,"message":{"content":"four tokens of text"},"finish_reason":"stop"}],` + usageOf7 + `}`
	wordEvent = `data: {"choices":[{"index":0,"delta":{"content":"four tokens of text 港"}}]}`
	lastEvent = `data: {"choices":[],` + usageOf7 + `}`
)

func (m *oddModel) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	which := r.Header.Get("x-case")
	m.mu.Lock()
	m.tries[which]++
	m.mu.Unlock()
	if which == "early" { // before the body is there
		w.WriteHeader(http.StatusInsufficientStorage)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the caller left
	}
	m.mu.Lock()
	m.sent[which] = sentRequest{r.Header.Clone(), r.ContentLength, string(body)}
	m.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if answer := oddAnswers[which]; answer != nil {
		answer(w)
		return
	}
	write(w, jsonOf7)
}

// write sends pieces, each flushed; a caller that left is no trouble here.
func write(w io.Writer, pieces ...string) {
	for _, p := range pieces {
		_, _ = io.WriteString(w, p)
		if f, ok := w.(http.Flusher); ok && len(pieces) > 1 {
			f.Flush()
		}
	}
}

// hangUp closes the connection without an answer.
func hangUp(w http.ResponseWriter) {
	if c, _, err := http.NewResponseController(w).Hijack(); err == nil {
		_ = c.Close()
	}
}

// raw writes bytes that net/http would not.
func raw(w http.ResponseWriter, answer string) {
	if c, _, err := http.NewResponseController(w).Hijack(); err == nil {
		write(c, answer)
		_ = c.Close()
	}
}

func asStream(w http.ResponseWriter) { w.Header().Set("Content-Type", "text/event-stream") }

var oddAnswers = map[string]func(w http.ResponseWriter){
	"chunked-nothing": func(w http.ResponseWriter) { raw(w, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n") },
	"stream-nothing": func(w http.ResponseWriter) {
		raw(w, "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n")
	},
	"no-content": func(w http.ResponseWriter) { w.WriteHeader(http.StatusNoContent) },
	"not-modified": func(w http.ResponseWriter) {
		w.Header().Set("Etag", `"x"`)
		w.WriteHeader(http.StatusNotModified)
	},
	"redirect": func(w http.ResponseWriter) {
		w.Header().Set("Location", "https://elsewhere.example/v1")
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(http.StatusTemporaryRedirect)
		write(w, strings.Repeat("<p>moved</p>", 100))
	},
	"busy": func(w http.ResponseWriter) {
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(http.StatusTooManyRequests)
		write(w, `{"error":{"message":"slow down","type":"requests","code":"rate_limit_exceeded"}}`)
	},
	"unknown-field": func(w http.ResponseWriter) {
		w.WriteHeader(http.StatusBadRequest)
		write(w, `{"error":{"message":"unknown field stream_options","type":"invalid_request_error"}}`)
	},
	"limits": func(w http.ResponseWriter) {
		for _, n := range []string{"Limit-Requests", "Remaining-Requests", "Reset-Requests"} {
			w.Header()["X-Ratelimit-"+n] = []string{"1", "2"}
		}
		write(w, jsonOf7)
	},
	"no-type": func(w http.ResponseWriter) { w.Header()["Content-Type"] = nil; write(w, jsonOf7) },
	"trailers": func(w http.ResponseWriter) {
		asStream(w)
		w.Header().Set("Trailer", "X-Weir-Evil")
		write(w, wordEvent+"\n\n", lastEvent+"\n\n", "data: [DONE]\n\n")
		w.Header().Set("X-Weir-Evil", "1")
	},
	"crlf": func(w http.ResponseWriter) {
		asStream(w)
		write(w, strings.Split(wordEvent+"\r\n\r\n: ping\r\n\r\n"+lastEvent+"\r\n\r\ndata: [DONE]\r\n\r\n", "")...)
	},
	"early-hints": func(w http.ResponseWriter) {
		w.Header().Set("Link", "</x>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		write(w, jsonOf7)
	},
	"gzip": func(w http.ResponseWriter) { w.Header().Set("Content-Encoding", "gzip"); write(w, zipped(jsonOf7)) },
	"coded-twice": func(w http.ResponseWriter) {
		w.Header()["Content-Encoding"] = []string{"identity", "x-gzip"}
		write(w, zipped(jsonOf7))
	},
	"gzip-not": func(w http.ResponseWriter) { w.Header().Set("Content-Encoding", "gzip"); write(w, jsonOf7) },
	"br": func(w http.ResponseWriter) {
		w.Header().Set("Content-Encoding", "br")
		write(w, "\x0b\x02\x80not read\x03")
	},
	"bomb": func(w http.ResponseWriter) {
		w.Header().Set("Content-Encoding", "gzip")
		write(w, zipped(strings.Repeat("\x00", 10<<20)))
	},
	"huge-header": func(w http.ResponseWriter) { w.Header().Set("X-Huge", strings.Repeat("v", 40<<10)); write(w, jsonOf7) },
	"boasts": func(w http.ResponseWriter) { // of 19,503 tokens where 64 were allowed
		write(w, strings.Replace(jsonOf7, `"completion_tokens":4`, `"completion_tokens":19503`, 1))
	},
	"pauses": func(w http.ResponseWriter) {
		asStream(w)
		write(w, wordEvent+"\n\n", `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`+"\n\n")
		<-time.After(2 * time.Second)
		write(w, lastEvent+"\n\n", "data: [DONE]\n\n")
	},
	"resets": hangUp,
}

// seen is what the model got of a case, and how often it was tried.
func (m *oddModel) seen(which string) (sentRequest, int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sent[which], m.tries[which]
}

// oddPolicy reserves far more than the model's answers need.
const oddPolicy = wideQuotas + `
estimate: {output: 1000}
metering: {includeUsage: true}
profiles: {plain: {metering: {includeUsage: false}}}
pools: [{name: chat-dyn, variant: fp16-dyn, seats: {requests: 8}}, {name: chat-fp16, variant: fp16, seats: {requests: 8}}]
models: [{name: deepseek-v4, pools: [chat-dyn]}, {name: whisper, pools: [chat-fp16]}]
apis:
  - {path: /v1/chat/completions, kind: openai.chat, function: chat_completion}
  - {path: /v1/audio/transcriptions, kind: opaque, model: whisper, cost: 300}
`

func oddWorld(t *testing.T, b envoytest.Binary, up *oddModel, more func(envoytest.Tree)) *world {
	dir := envoytest.Dir(t)
	server := strings.Replace(envoytest.Server(dir), "{", "{bodyTimeout: 2s, ", 1)
	return newWorld(t, b, setup{example: formOf(b), dir: dir, server: server, policy: oddPolicy, pools: []string{}, envoy: func(tree envoytest.Tree) {
		pointAt(tree, "chat-dyn", up.addr)
		pointAt(tree, "chat-fp16", up.addr)
		if more != nil {
			more(tree)
		}
	}})
}

// odd is one call of a tenant named as the case.
func (w *world) odd(which, body string, headers ...string) answer {
	w.t.Helper()
	headers = append(headers, "Authorization", "Bearer "+w.token(claims{"tenant": which}), "X-Case", which)
	req := w.request(w.t.Context(), http.MethodPost, chatPath, body, headers...)
	if res, err := w.client.Transport.RoundTrip(req); err != nil {
		return answer{err: err}
	} else {
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		return answer{code: res.StatusCode, header: res.Header, body: string(b), err: err}
	}
}
