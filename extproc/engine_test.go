package extproc

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/extproc/body"
	"github.com/weirproxy/weir/identity"
	"github.com/weirproxy/weir/policy"
)

// engines is a policy whose pool chat-dyn, where the test desk sends all,
// takes a priority; the others do not.
func engines(edit ...func(*policy.Policy)) *policy.Policy {
	return rules(append(edit, func(p *policy.Policy) { p.Pools[1].Priority = policy.VLLMPriority })...)
}

// toEngine is a body as it reaches the pool of an admitted call; "" = unchanged.
func toEngine(t *testing.T, p *policy.Policy, id *identity.Identity, path, in string, edit ...func(*admission.Decision)) string {
	t.Helper()
	v := verdict{}
	if len(edit) > 0 {
		v.edit = edit[0]
	}
	h := openWith(t, newTestDesk(v), p)
	e := h.call()
	e.send(post(id, path, "content-type", "application/json", "content-length", strconv.Itoa(len(in))))
	e.want("request_headers")
	e.send(reqBody(in, true))
	r := e.decided()
	_ = e.hangUp(true)
	h.ended()
	out := string(common(r).GetBodyMutation().GetBody())
	if set, _ := mutations(r); out != "" && set["content-length"] != strconv.Itoa(len(out)) {
		t.Errorf("content-length %q for %d bytes", set["content-length"], len(out))
	}
	return out
}

// An engine that takes a priority is told the class's number, -1 for red; all
// other bytes and their order stay.
func TestEngineIsToldThePriority(t *testing.T) {
	as := func(c policy.Class, col policy.Colour) *identity.Identity {
		id := caller()
		id.Class, id.Colour = c, col
		return id
	}
	const chat = "/v1/chat/completions"
	for _, c := range []struct {
		name, path string
		id         *identity.Identity
		in, want   string
	}{
		{"critical", chat, as(policy.Critical, 0), `{"model":"deepseek-v4","messages":[]}`, `{"model":"deepseek-v4","messages":[],"priority":0}`},
		{"standard", chat, as(policy.Standard, policy.Green), `{"model":"deepseek-v4","messages":[]}`, `{"model":"deepseek-v4","messages":[],"priority":1}`},
		{"batch", chat, as(policy.Batch, 0), `{ "messages":[] , "model":"deepseek-v4" }`, `{ "messages":[] , "model":"deepseek-v4","priority":2 }`},
		{"red", chat, as(policy.Batch, policy.Red), `{"model":"deepseek-v4","messages":[]}`, `{"model":"deepseek-v4","messages":[],"priority":-1}`},
		{"the caller's own is replaced", chat, as(policy.Batch, 0), `{"priority":-100,"model":"deepseek-v4","messages":[]}`, `{"priority":2,"model":"deepseek-v4","messages":[]}`},
		{"in other letters", chat, as(policy.Batch, 0), `{"\u0070riority": "x","model":"deepseek-v4","messages":[]}`, `{"\u0070riority": 2,"model":"deepseek-v4","messages":[]}`},
		{"inside of another field it is none", chat, as(policy.Batch, 0), `{"metadata":{"priority":-9},"model":"deepseek-v4","messages":[]}`, `{"metadata":{"priority":-9},"model":"deepseek-v4","messages":[],"priority":2}`},
		{"beside another change", chat, as(policy.Standard, 0), `{"stream":true,"model":"deepseek-v4","messages":[]}`, `{"stream":true,"model":"deepseek-v4","messages":[],"stream_options":{"include_usage":true},"priority":1}`},
		{"embeddings", "/v1/embeddings", as(policy.Standard, 0), `{"model":"deepseek-v4","input":"x"}`, `{"model":"deepseek-v4","input":"x","priority":1}`},
		{"of any shape", "/v1/rerank", as(policy.Standard, 0), `{"query":"x"}`, `{"query":"x","priority":1}`},
	} {
		if got := toEngine(t, engines(), c.id, c.path, c.in); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}

	own := `{"priority":-100,"model":"deepseek-v4","messages":[]}`
	const without = `{"model":"deepseek-v4","messages":[]}`
	if got := toEngine(t, rules(), caller(), chat, own); got != without {
		t.Errorf("no engine takes it, and the body became %s", got)
	}
	keep := func(p *policy.Policy) { p.Body.Priority = policy.KeepPriority }
	if got := toEngine(t, rules(keep), caller(), chat, own); got != "" {
		t.Errorf("the policy keeps it, and the body became %s", got)
	}
	to := func(pool string) func(*admission.Decision) { return func(d *admission.Decision) { d.Pool = pool } }
	if got := toEngine(t, engines(), caller(), chat, own, to("chat-int8")); got != without {
		t.Errorf("this pool's engine takes none, and the body became %s", got)
	}
}

// K1: a key's scope binds what the caller sends; what it leaves out is the
// class's.
func TestEnginePriorityUnderScopes(t *testing.T) {
	id := caller()
	id.Params = params("priority>=0")
	if got, want := toEngine(t, engines(), id, "/v1/chat/completions", `{"model":"deepseek-v4","messages":[]}`), `{"model":"deepseek-v4","messages":[],"priority":1}`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for name, in := range map[string]string{
		"below the key's bound": `{"priority":-1,"model":"deepseek-v4","messages":[]}`,
		"in other case":         `{"Priority":5,"model":"deepseek-v4","messages":[]}`,
	} {
		reason := admission.ParameterDenied
		if name == "in other case" {
			reason, id.Params = admission.BodyDuplicate, nil
		} else {
			id.Params = params("priority>=0")
		}
		h := openWith(t, newTestDesk(), engines())
		e := h.call()
		e.send(chatHeadOf(id))
		e.want("request_headers")
		e.send(reqBody(in, true))
		checkRefusal(t, e.next(), reason, "priority")
		_ = e.hangUp(true)
		h.ended()
	}
}

// Bodies as clients send them: with priority set, everything else is as it was.
func TestEnginePriorityKeepsTheBody(t *testing.T) {
	files, err := filepath.Glob("body/testdata/chat_*.json")
	if err != nil || len(files) < 4 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	told := 0
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		b, bad := body.Parse(policy.OpenAIChat, raw)
		if bad != nil || b.Model == "" {
			continue
		}
		p := engines(func(p *policy.Policy) {
			p.Metering.IncludeUsage = false
			p.Models[0].Aliases = append(p.Models[0].Aliases, "*")
		})
		out := toEngine(t, p, caller(), "/v1/chat/completions", string(raw))
		if rest := strings.Replace(out, `,"priority":1`, "", 1); rest != string(raw) {
			t.Errorf("%s: %.200s", file, out)
		}
		var m map[string]any
		if err := json.Unmarshal([]byte(out), &m); err != nil || m["priority"] != 1.0 {
			t.Errorf("%s: priority %v, %v", file, m["priority"], err)
		}
		told++
	}
	if told < 4 {
		t.Errorf("%d bodies were read", told)
	}
}
