package examples_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/weirproxy/weir/internal/envoytest"
)

// script is what a user of the OpenAI client does; it prints what went wrong
// and exits with 1.
const script = `
import sys, time, openai
base, good, poor, scopeless = sys.argv[1:5]
messages = [{"role": "user", "content": "What is a weir?"}]

def client(token, retries=0):
    return openai.OpenAI(base_url=base, api_key=token, max_retries=retries, timeout=30)

def must(ok, what):
    if not ok: sys.exit("FAILED: " + what)

c = client(good)
r = c.chat.completions.create(model="deepseek-v4", max_tokens=9, messages=messages)
must(r.usage.completion_tokens == 9 and r.choices[0].finish_reason == "length", "JSON answer %r" % r)

usage, text = [], ""
for e in c.chat.completions.create(model="deepseek-v4", max_tokens=9, messages=messages, stream=True):
    must(len(e.choices) == 1, "a chunk that was not asked for: %r" % e)
    text += e.choices[0].delta.content or ""
must(text != "", "streamed answer is empty")
for e in c.chat.completions.create(model="deepseek-v4", max_tokens=9, messages=messages, stream=True, stream_options={"include_usage": True}):
    if e.usage: usage.append(e.usage.completion_tokens)
must(usage == [9], "usage asked for: %r" % usage)

must([m.id for m in c.models.list()] == ["deepseek-v4", "infer"], "models")
must(c.embeddings.create(model="deepseek-v4", input=["a", "b"]).usage.prompt_tokens > 0, "embeddings")
must(c.completions.create(model="deepseek-v4", prompt="once", max_tokens=3).usage.completion_tokens == 3, "completions")

def refused(kind, status, code, call):
    try: call()
    except kind as e:
        must(e.status_code == status and e.code == code, "%s: %s %s" % (kind.__name__, e.status_code, e.code))
        must(e.response.headers.get("x-weir-reason"), "no reason")
        return e
    sys.exit("FAILED: %s was expected" % kind.__name__)

ask = lambda t, **k: client(t).chat.completions.create(**{"model": "deepseek-v4", "max_tokens": 9, "messages": messages, **k})
refused(openai.AuthenticationError, 401, "invalid_token", lambda: ask("nonsense"))
refused(openai.PermissionDeniedError, 403, "insufficient_scope", lambda: ask(scopeless))
refused(openai.NotFoundError, 404, "model_not_found", lambda: ask(good, model="gpt-5"))
refused(openai.BadRequestError, 400, "invalid_value", lambda: ask(good, max_tokens=-4))

# One request a second: the second is refused with a hint, and a client that
# may retry comes back at the hint and gets in.
ask(poor)
e = refused(openai.RateLimitError, 429, "rate_limit_exceeded", lambda: ask(poor))
hint = float(e.response.headers["retry-after-ms"]) / 1000
must(0 < hint <= 1.1 and int(e.response.headers["retry-after"]) >= 1, "hint %r" % hint)
start = time.monotonic()
must(client(poor, retries=2).chat.completions.create(model="deepseek-v4", max_tokens=9, messages=messages).id, "retry")
must(time.monotonic() - start < 10, "the client waited for more than the hint")
print("ok")
`

// TestStockOpenAIClient: the unmodified OpenAI client for Python works, and
// understands every refusal.
func TestStockOpenAIClient(t *testing.T) {
	w := newWorld(t, envoytest.Envoys(t)[0], setup{policy: `
quotas:
  - {name: slow, match: {tenant: slow}, by: [tenant], limits: [{requests: 1, per: 1s}]}
`})
	cmd := exec.CommandContext(t.Context(), "python3", "-", "http://"+w.envoy.Addr+"/v1",
		w.token(nil), w.token(claims{"tenant": "slow"}), w.token(claims{"scope": "llm_service"}))
	cmd.Stdin = bytes.NewReader([]byte(script))
	cmd.Env = append(os.Environ(), "PYTHONPATH="+openAI(t))
	out, err := cmd.CombinedOutput()
	if err != nil || string(bytes.TrimSpace(out)) != "ok" {
		t.Fatalf("%v\n%s", err, out)
	}
	w.idle(1e9)
}

// openAI is the folder of the stock client.
func openAI(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("OPENAI_PATH"); path != "" {
		return path
	}
	found, _ := filepath.Glob(filepath.Join(envoytest.Root(), ".tools", "openai-*"))
	if len(found) == 0 {
		t.Fatal("no OpenAI client to test with: run build/openai, or set OPENAI_PATH")
	}
	return found[len(found)-1]
}
