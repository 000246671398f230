package extproc

import (
	"strings"
	"testing"

	"github.com/weirproxy/weir/policy"
)

// Q5: marks of a caller that comes back. A bad one counts as none.
func TestAttempts(t *testing.T) {
	for _, c := range []struct {
		h    header
		want int
	}{
		{nil, 0},
		{header{{headerRetryCount, "0"}}, 0},
		{header{{headerRetryCount, "2"}}, 2},
		{header{{headerPrevious, "3"}}, 3},
		{header{{headerAttempt, "1"}}, 0},
		{header{{headerAttempt, "4"}}, 3},
		{header{{headerAttempt, "0"}}, 0},
		{header{{headerRetryCount, "1"}, {headerPrevious, "5"}, {headerAttempt, "3"}}, 5},
		{header{{headerRetryCount, "many"}}, 0},
		{header{{headerRetryCount, "-1"}}, 0},
		{header{{headerRetryCount, "1.5"}}, 0},
		{header{{headerRetryCount, ""}}, 0},
		{header{{headerRetryCount, " 1"}}, 0},
		{header{{headerRetryCount, strings.Repeat("9", 1000)}}, 0},
		{header{{headerRetryCount, "1000000"}}, mostAttempts},
		{header{{headerRetryCount, "x"}, {headerPrevious, "1"}}, 1},
	} {
		if got := attempts(c.h, true); got != c.want {
			t.Errorf("%.60v: %d, want %d", c.h, got, c.want)
		}
	}
}

// P8: priority is asked for by header and allowed by the token.
func TestAsksPriority(t *testing.T) {
	names := policy.Default().PriorityHeaders
	for _, c := range []struct {
		name  string
		token standing
		limit *policy.Class
		h     header
		want  bool
	}{
		{"no header", standing{class: policy.Critical, colour: policy.Red}, nil, nil, false},
		{"critical", standing{class: policy.Critical}, nil, header{{"x-deepseek-priority", "critical"}}, true},
		{"by number", standing{class: policy.Critical}, nil, header{{"x-deepseek-priority", " 0 "}}, true},
		{"red", standing{class: policy.Batch, colour: policy.Red}, nil, header{{"x-traffic-color", "RED"}}, true},
		{"the token does not allow it", standing{class: policy.Standard}, nil, header{{"x-deepseek-priority", "critical"}}, false},
		{"red is not the token's", standing{class: policy.Standard, colour: policy.Yellow}, nil, header{{"x-traffic-color", "red"}}, false},
		{"less is asked for", standing{class: policy.Critical}, nil, header{{"x-deepseek-priority", "standard"}}, false},
		{"another colour is asked for", standing{class: policy.Critical}, nil, header{{"x-traffic-color", "green"}}, false},
		{"one header lowers what the other asks for", standing{class: policy.Critical}, nil, header{{"x-deepseek-priority", "critical"}, {"x-traffic-color", "batch"}}, false},
		{"empty", standing{class: policy.Critical}, nil, header{{"x-deepseek-priority", ""}}, false},
		{"the route caps", standing{class: policy.Critical}, new(policy.Standard), header{{"x-deepseek-priority", "critical"}}, false},
	} {
		s := judgeStanding(c.token, c.limit, names, c.h)
		if got := asksPriority(s, names, c.h); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// What the caller says of itself reaches the desk; its session is told to the
// log as there, never by its name, and goes on to the model.
func TestCallerReachesTheDesk(t *testing.T) {
	d := newTestDesk()
	h := openWith(t, d, rules(func(p *policy.Policy) { p.Variants.Session = "X-Session-Id" }))
	say := func(kv ...string) map[string]bool {
		id := caller()
		id.Class = policy.Critical
		e := h.call()
		e.send(post(id, "/v1/chat/completions", append([]string{"content-type", "application/json"}, kv...)...))
		e.want("request_headers")
		e.send(reqBody(chatBody, true))
		r := e.next()
		_, removed := mutations(r)
		logged := r.GetDynamicMetadata().GetFields()[decisionNamespace].GetStructValue().GetFields()["session"].GetBoolValue()
		if logged != (d.last().request.Session != "") {
			t.Errorf("session logged: %v", logged)
		}
		_ = e.hangUp(true)
		h.ended()
		return removed
	}
	removed := say("x-session-id", "secret conversation", "x-deepseek-priority", "critical", "x-stainless-retry-count", "2")
	first := d.last().request
	if !removed["x-deepseek-priority"] {
		t.Error("a priority header goes on to the model")
	}
	if !first.Priority || first.Attempt != 2 || len(first.Session) != 32 || strings.Contains(first.Session, "secret") || removed["x-session-id"] {
		t.Errorf("%+v, removed %v", first, removed)
	}
	say("x-session-id", strings.Repeat("s", 10_000), "x-stainless-retry-count", "often")
	if second := d.last().request; second.Priority || second.Attempt != 0 || len(second.Session) != 32 || second.Session == first.Session {
		t.Errorf("%+v", second)
	}
	say()
	if third := d.last().request; third.Session != "" {
		t.Errorf("session %q of nobody", third.Session)
	}
	if sessionOf("", header{{"", "x"}}) != "" {
		t.Error("a session without a header's name")
	}
}

// TestPriorityTravelsToAnotherWeir: the last stage keeps priority headers, a
// stage hands them on; a body that curl -d sends goes on as JSON.
func TestPriorityTravelsToAnotherWeir(t *testing.T) {
	for _, stage := range []bool{false, true} {
		d := newTestDesk()
		h := openWith(t, d, rules(func(p *policy.Policy) {
			for i := range p.Pools {
				p.Pools[i].Stage = stage
			}
		}))
		e := h.call()
		e.send(post(caller(), "/v1/chat/completions", "content-type", "application/x-www-form-urlencoded", "x-deepseek-priority", "2", "x-traffic-color", "vip"))
		e.want("request_headers")
		e.send(reqBody(chatBody, true))
		set, removed := mutations(e.next())
		if removed["x-deepseek-priority"] == stage || removed["x-traffic-color"] == stage || set["content-type"] != "application/json" {
			t.Errorf("stage %v: set %v, removed %v", stage, set, removed)
		}
		if r := d.last().request; r.Class != policy.Batch {
			t.Errorf("class %v", r.Class)
		}
		_ = e.hangUp(true)
		h.ended()
	}
}
