package examples_test

import (
	"bytes"
	"compress/gzip"
	"net/http"
	"strings"
	"testing"

	"github.com/weirproxy/weir/internal/envoytest"
)

// uploads adds an API whose bodies weir does not read, and lets CORS
// preflights pass.
const uploads = ledger + `
apis:
  - {path: /v1/chat/completions, kind: openai.chat, function: chat_completion}
  - {path: /v1/completions, kind: openai.completions, function: completion}
  - {path: /v1/embeddings, kind: openai.embeddings, function: embedding}
  - {path: /v1/models, kind: openai.models, method: GET}
  - {path: /v1/audio/transcriptions, kind: opaque, function: transcription, cost: 700}
`

// input is a caller's mistake and its answer.
type input struct {
	name, path, body string
	headers          []string
	status           int
	reason           string // "" where Envoy itself answers, "*" where either may be first
	names            []string
}

var inputs = []input{
	{"no body", chatPath, "", nil, 400, "body_missing", nil},
	{"empty object", chatPath, "{}", nil, 400, "body_field", []string{"messages"}},
	{"white space", chatPath, " \n", nil, 400, "body_invalid", nil},
	{"broken", chatPath, `{"model":`, nil, 400, "body_invalid", nil},
	{"truncated", chatPath, chatBody(4, false)[:60], nil, 400, "body_invalid", nil},
	{"two documents", chatPath, chatBody(4, false) + chatBody(4, false), nil, 400, "body_invalid", nil},
	{"an array", chatPath, "[" + chatBody(4, false) + "]", nil, 400, "body_invalid", nil},
	{"no UTF-8", chatPath, "{\"model\":\"deepseek-v4\",\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}", nil, 400, "body_invalid", nil},
	{"a byte order mark", chatPath, "\ufeff" + chatBody(4, false), nil, 400, "body_invalid", nil},
	{"duplicate key", chatPath, `{"model":"deepseek-v4","model":"infer","messages":[]}`, nil, 400, "body_duplicate_key", []string{"model"}},
	{"duplicate key, escaped", chatPath, `{"model":"deepseek-v4","\u006dodel":"infer","messages":[]}`, nil, 400, "body_duplicate_key", []string{"model"}},
	{"case twin", chatPath, `{"model":"deepseek-v4","Max_Tokens":9,"messages":[]}`, nil, 400, "body_duplicate_key", []string{"max_tokens"}},
	{"model a number", chatPath, `{"model":4,"messages":[]}`, nil, 400, "body_field", []string{"model", "4"}},
	{"max_tokens a string", chatPath, `{"model":"deepseek-v4","max_tokens":"9","messages":[]}`, nil, 400, "body_field", []string{"max_tokens"}},
	{"max_tokens negative", chatPath, `{"model":"deepseek-v4","max_tokens":-1,"messages":[]}`, nil, 400, "body_field", []string{"max_tokens", "-1"}},
	{"max_tokens huge", chatPath, `{"model":"deepseek-v4","max_tokens":1e300,"messages":[]}`, nil, 400, "body_field", []string{"max_tokens", "1e300"}},
	{"stream a word", chatPath, `{"model":"deepseek-v4","stream":"yes","messages":[]}`, nil, 400, "body_field", []string{"stream"}},
	{"messages an object", chatPath, `{"model":"deepseek-v4","messages":{}}`, nil, 400, "body_field", []string{"messages"}},
	{"a deep nest", chatPath, `{"model":"deepseek-v4","messages":[],"x":` + strings.Repeat("[", 1000) + strings.Repeat("]", 1000) + "}", nil, 400, "body_invalid", nil},
	{"no model", chatPath, `{"messages":[]}`, nil, 400, "body_field", []string{"model"}},
	{"padded model", chatPath, `{"model":" deepseek-v4","messages":[]}`, nil, 400, "body_field", []string{"model"}},
	{"empty model", chatPath, `{"model":"","messages":[]}`, nil, 400, "body_field", []string{"model"}},
	{"unknown model", chatPath, `{"model":"gpt-4","messages":[]}`, nil, 404, "model_unknown", []string{"gpt-4"}},
	{"unknown model, completions", "/v1/completions", `{"model":"gpt-4","prompt":"x"}`, nil, 404, "model_unknown", []string{"gpt-4"}},
	{"unknown model, embeddings", "/v1/embeddings", `{"model":"gpt-4","input":"x"}`, nil, 404, "model_unknown", []string{"gpt-4"}},
	{"gzip", chatPath, zipped(chatBody(4, false)), []string{"Content-Encoding", "gzip"}, 415, "body_encoding", []string{"gzip"}},
	{"a form", chatPath, "model=deepseek-v4", []string{"Content-Type", "application/x-www-form-urlencoded"}, 400, "body_invalid", nil},
	{"a form of parts", chatPath, "model=deepseek-v4", []string{"Content-Type", "multipart/form-data; boundary=x"}, 415, "body_type", []string{"multipart/form-data"}},
	{"two content types", chatPath, chatBody(4, false), []string{"Content-Type", "text/plain", "Content-Type", "application/json"}, 415, "body_type", nil},
	{"another charset", chatPath, chatBody(4, false), []string{"Content-Type", "application/json; charset=utf-16"}, 415, "body_type", []string{"utf-16"}},
	{"gRPC on a JSON path", chatPath, "", []string{"Content-Type", "application/grpc"}, 200, "body_type", nil}, // HTTP 200 and a grpc-status
	{"larger than weir takes", chatPath, modelBody("deepseek-v4", strings.Repeat("x", 5<<20)), nil, 413, "body_too_large", []string{"4194304"}},
	{"larger than Envoy takes", chatPath, modelBody("deepseek-v4", strings.Repeat("x", 9<<20)), nil, 413, "*", nil},
	{"a deadline of words", chatPath, chatBody(4, false), []string{"X-Request-Timeout", "soon"}, 400, "header_invalid", []string{"soon"}},
	{"unknown path", "/v1/nowhere", chatBody(4, false), nil, 404, "path_unknown", nil},
	{"the root", "/", "", nil, 404, "path_unknown", nil},
	{"unknown fine-tune", "/v1/fine_tuning/jobs", "{}", nil, 404, "path_unknown", nil},
	{"upper case", "/V1/Chat/Completions", chatBody(4, false), nil, 404, "path_unknown", nil},
	{"a slash at the end", chatPath + "/", chatBody(4, false), nil, 404, "path_unknown", nil},
	{"a parameter", chatPath + ";a=b", chatBody(4, false), nil, 400, "header_invalid", nil},
	{"an encoded slash", "/v1%2Fchat/completions", chatBody(4, false), nil, 400, "", nil},
	{"an encoded dot", "/v1/chat/%2e%2e%2fcompletions", chatBody(4, false), nil, 400, "", nil},
	{"encoded twice", "/v1/chat/%252e%252e/completions", chatBody(4, false), nil, 400, "header_invalid", nil},
	{"an encoded NUL", chatPath + "%00", chatBody(4, false), nil, 400, "", nil},
}

func zipped(s string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := z.Write([]byte(s))
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		panic(err) // writes to memory
	}
	return b.String()
}

// wide lets Envoy take bodies of 8 MiB, twice of what weir takes.
func wide(tree envoytest.Tree) {
	limitBuffers(tree, 8<<20)
}

// TestWrongInput: every mistake of the caller's is a clear error in the
// caller's own shape, never a 5xx; nothing is charged and no seat is taken.
func TestWrongInput(t *testing.T) {
	eachForm(t, setup{policy: uploads, envoy: wide}, func(t *testing.T, w *world) {
		token := w.token(nil)
		for _, c := range inputs {
			t.Run(c.name, func(t *testing.T) {
				req := w.request(t.Context(), http.MethodPost, "/", c.body, "Authorization", "Bearer "+token)
				req.URL.Opaque = "//" + w.envoy.Addr + c.path // as written, not as net/url cleans it
				for i := 0; i < len(c.headers); i += 2 {
					if i == 0 {
						req.Header.Del(c.headers[0])
					}
					req.Header.Add(c.headers[i], c.headers[i+1])
				}
				a := w.do(req)
				if a.err != nil || a.code != c.status || c.reason != "*" && a.header.Get("x-weir-reason") != c.reason {
					t.Fatalf("%d %s (%v), want %d %s: %s", a.code, a.header.Get("x-weir-reason"), a.err, c.status, c.reason, a.body)
				}
				if len(c.reason) > 1 && c.status != 200 && a.errorCode() == "" {
					t.Errorf("no OpenAI error: %s", a.body)
				}
				for _, name := range c.names {
					if !strings.Contains(a.body, name) {
						t.Errorf("%s does not name %s", a.body, name)
					}
				}
				if strings.Contains(a.body, "weir good for") {
					t.Errorf("the error quotes the prompt: %s", a.body)
				}
			})
		}
		w.untouched("acme")
	})
}
