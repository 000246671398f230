package examples_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/envoytest"
)

// tuned has short work for routes to change: a profile without a queue, one
// in shadow, and waits that a test can tell apart.
const tuned = ledger + `
pools:
  - {name: chat-fp16, variant: fp16, seats: {requests: 8}}
  - {name: chat-dyn, variant: fp16-dyn, seats: {requests: 1}}
  - {name: chat-int8, variant: int8, seats: {requests: 8}}
  - {name: infer, variant: fp16, seats: {requests: 8}}
models:
  - {name: deepseek-v4, aliases: ["deepseek-*"], pools: [chat-fp16, chat-dyn, chat-int8]}
  - {name: infer, pools: [infer]}
classes: [{name: standard, maxWait: 8s, onExpiry: drop}]
profiles:
  edge: {queue: {length: {max: 0}}}
  trial: {mode: shadow}
`

// Types of the per-route sections of Envoy's filters.
const (
	authzPerRoute = "type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthzPerRoute"
	procPerRoute  = "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute"
	authzFilter   = "envoy.filters.http.ext_authz"
	procFilter    = "envoy.filters.http.ext_proc"
)

// hosts adds virtual hosts to an Envoy configuration: each is a copy of the
// example's, changed, under a name of its own.
func hosts(tree envoytest.Tree, changes map[string]func(host envoytest.Tree)) {
	config := envoytest.HCM(tree)["route_config"].(envoytest.Tree)
	list := config["virtual_hosts"].([]any)
	for name, change := range changes {
		host := copyOf(list[0].(envoytest.Tree))
		host["name"], host["domains"] = name, []any{name}
		change(host)
		list = append(list, host)
	}
	config["virtual_hosts"] = list
}

func copyOf(tree envoytest.Tree) (out envoytest.Tree) {
	raw, err := json.Marshal(tree)
	if err == nil {
		err = json.Unmarshal(raw, &out)
	}
	if err != nil {
		panic(err) // it came from JSON
	}
	return out
}

// routeMetadata writes weir.policy metadata to the route chat.
func routeMetadata(values envoytest.Tree) func(envoytest.Tree) {
	return func(host envoytest.Tree) {
		for _, r := range host["routes"].([]any) {
			if r.(envoytest.Tree)["name"] == "chat" {
				r.(envoytest.Tree)["metadata"] = envoytest.Tree{"filter_metadata": envoytest.Tree{"weir.policy": values}}
			}
		}
	}
}

// perFilter sets a filter's section of a virtual host.
func perFilter(host envoytest.Tree, filter string, section envoytest.Tree) {
	all, _ := host["typed_per_filter_config"].(envoytest.Tree)
	if all == nil {
		all = envoytest.Tree{}
		host["typed_per_filter_config"] = all
	}
	all[filter] = section
}

// extensions writes context_extensions to a virtual host.
func extensions(values envoytest.Tree) func(envoytest.Tree) {
	return func(host envoytest.Tree) {
		perFilter(host, authzFilter, envoytest.Tree{"@type": authzPerRoute, "check_settings": envoytest.Tree{"context_extensions": values}})
	}
}

// initialMetadata writes grpc_initial_metadata to a virtual host.
func initialMetadata(values map[string]string) func(envoytest.Tree) {
	return func(host envoytest.Tree) {
		list := []any{}
		for key, value := range values {
			list = append(list, envoytest.Tree{"key": key, "value": value})
		}
		perFilter(host, procFilter, envoytest.Tree{"@type": procPerRoute, "overrides": envoytest.Tree{"grpc_initial_metadata": list}})
	}
}

func both(a, b func(envoytest.Tree)) func(envoytest.Tree) {
	return func(host envoytest.Tree) { a(host); b(host) }
}

// tuningCase is a route of Envoy's configuration and what becomes of a call.
type tuningCase struct {
	name    string
	edit    func(host envoytest.Tree)
	class   string // of the token; default critical, whose pool is free
	scope   string
	status  int
	reason  string
	variant string        // where admitted
	waited  time.Duration // at least, and less than the class's own 8 s
	channel string        // of a refused override, with what the operator is told
	told    []string
}

// channelCases are the same values by each channel that a form has.
func channelCases(channel string, set func(map[string]string) func(envoytest.Tree)) []tuningCase {
	one := func(key, value string) func(envoytest.Tree) { return set(map[string]string{key: value}) }
	bad := func(name, key, value string, allowed ...string) tuningCase {
		return tuningCase{name: name, edit: one(key, value), status: 503, reason: "override_invalid", channel: channel, told: append([]string{key}, allowed...)}
	}
	cases := []tuningCase{
		{name: "class", edit: one("class", "batch"), status: 200, reason: "admitted", variant: "int8"},
		{name: "class above the token's", edit: one("class", "critical"), class: "batch", status: 200, reason: "admitted", variant: "int8"},
		{name: "models with it", edit: one("models", "infer, deepseek-v4"), status: 200, reason: "admitted", variant: "fp16"},
		{name: "models without it", edit: one("models", "infer"), status: 404, reason: "model_unknown"},
		{name: "maxWait", edit: one("maxWait", "50ms"), class: "standard", status: 503, reason: "expired_drop", waited: 50 * time.Millisecond},
		{name: "profile without a queue", edit: one("profile", "edge"), class: "standard", status: 503, reason: "queue_full"},
		{name: "function not held", edit: one("function", "special"), status: 403, reason: "scope_function"},
		{name: "function held", edit: one("function", "special"), scope: "llm_service chat_completion special", status: 200, reason: "admitted", variant: "fp16"},
		{name: "function in place of the API's", edit: one("function", "special"), scope: "llm_service special", status: 403, reason: "scope_function"},
		bad("loosening", "maxWait", "1h", "8s"),
		bad("unknown class", "class", "vip", "vip", "critical, standard or batch"),
		bad("unknown profile", "profile", "nobody", "nobody", "edge, trial"),
		bad("unknown model", "models", "gpt-9", "gpt-9", "deepseek-v4, infer"),
		bad("no duration", "maxWait", "100", "100"),
		bad("no scope", "function", "a b", "a b"),
	}
	for i := range cases {
		cases[i].name = channel + ": " + cases[i].name
	}
	return cases
}

// unknownKey is a key that is not on the list, where weir sees the whole map.
func unknownKey(channel string, edit func(envoytest.Tree)) tuningCase {
	return tuningCase{name: channel + ": unknown key", edit: edit, status: 503, reason: "override_invalid", channel: channel,
		told: []string{"klass", "profile, function, class, maxWait, models"}}
}

func tuningCases(form string) []tuningCase {
	metadata := func(m map[string]string) func(envoytest.Tree) { return routeMetadata(treeOf(m)) }
	initial := func(m map[string]string) func(envoytest.Tree) {
		prefixed := map[string]string{}
		for k, v := range m {
			prefixed["weir-"+strings.ToLower(k)] = v
		}
		return both(metadata(nil), initialMetadata(prefixed))
	}
	cases := []tuningCase{
		{name: "nothing set", edit: func(envoytest.Tree) {}, status: 200, reason: "admitted", variant: "fp16"},
		{name: "two channels, the narrowest", edit: both(initial(map[string]string{"class": "batch"}), metadata(map[string]string{"class": "standard"})),
			status: 200, reason: "admitted", variant: "int8"},
		{name: "two channels, the narrowest, turned", edit: both(initial(map[string]string{"class": "standard"}), metadata(map[string]string{"class": "batch"})),
			status: 200, reason: "admitted", variant: "int8"},
		{name: "two channels that select different profiles", edit: both(initial(map[string]string{"profile": "trial"}), metadata(map[string]string{"profile": "edge"})),
			status: 503, reason: "override_invalid", channel: "grpc_initial_metadata", told: []string{"profile", "edge", "trial"}},
		{name: "two channels that name different functions", edit: initialMetadata(map[string]string{"weir-function": "special"}), // the example's route says chat_completion
			status: 503, reason: "override_invalid", channel: "grpc_initial_metadata", told: []string{"function", "special", "chat_completion"}},
		unknownKey("grpc_initial_metadata", initialMetadata(map[string]string{"weir-klass": "batch"})),
		{name: "a list for a string", edit: routeMetadata(envoytest.Tree{"models": []any{"infer"}}), status: 503, reason: "override_invalid", channel: "route_metadata", told: []string{"models"}},
		{name: "profile in shadow", edit: metadata(map[string]string{"profile": "trial"}), class: "standard", status: 200, reason: "admitted", variant: "fp16-dyn"}, // nobody waits for the seat that is taken
	}
	cases = append(cases, channelCases("route_metadata", metadata)...)
	cases = append(cases, channelCases("grpc_initial_metadata", initial)...)
	if form == "one-filter.yaml" { // of route metadata ext_proc gets the listed keys alone
		return append(cases, tuningCase{name: "route_metadata: unknown key", edit: metadata(map[string]string{"klass": "batch"}), status: 200, reason: "admitted", variant: "fp16"})
	}
	cases = append(cases, channelCases("context_extensions", func(m map[string]string) func(envoytest.Tree) { return both(metadata(nil), extensions(treeOf(m))) })...)
	return append(cases,
		unknownKey("context_extensions", extensions(envoytest.Tree{"klass": "batch"})),
		unknownKey("route_metadata", metadata(map[string]string{"klass": "batch"})),
		tuningCase{name: "a number for a string", edit: routeMetadata(envoytest.Tree{"class": 2}), status: 503, reason: "override_invalid", channel: "route_metadata", told: []string{"class", "quoted string"}})
}

func treeOf(m map[string]string) envoytest.Tree {
	out := envoytest.Tree{}
	for k, v := range m {
		out[k] = v
	}
	return out
}

// TestTuningFromEnvoyYAML (E2): values in Envoy's own YAML change what weir
// does, narrow only, and are refused loudly where they make no sense.
func TestTuningFromEnvoyYAML(t *testing.T) {
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		for _, form := range []string{"two-filters.yaml", "one-filter.yaml"} {
			t.Run(form, func(t *testing.T) {
				cases := tuningCases(form)
				w := newWorld(t, b, setup{example: form, policy: tuned, envoy: func(tree envoytest.Tree) {
					changes := map[string]func(envoytest.Tree){}
					for i, c := range cases {
						changes[hostOf(i)] = c.edit
					}
					hosts(tree, changes)
				}})
				leave := w.occupy("standard") // the only seat of chat-dyn
				for i, c := range cases {
					t.Run(c.name, func(t *testing.T) { w.tune(t, hostOf(i), c) })
				}
				leave()
				w.idle(10 * time.Second)
				w.sound()
			})
		}
	})
}

func hostOf(i int) string { return fmt.Sprintf("case-%d.example", i) }

// tune calls a case's host and holds the answer, the metric and explain
// against it.
func (w *world) tune(t *testing.T, host string, c tuningCase) {
	want := claims{"class": "critical"}
	if c.class != "" {
		want["class"] = c.class
	}
	if c.scope != "" {
		want["scope"] = c.scope
	}
	before := w.metric("weir_override_rejected_total", `channel="`+c.channel+`"`)
	req := w.request(t.Context(), http.MethodPost, "/v1/chat/completions", chatBody(2, false), "Authorization", "Bearer "+w.token(want))
	req.Host = host
	a := w.do(req)
	if a.code != c.status || a.header.Get("x-weir-reason") != c.reason || a.header.Get("x-weir-variant") != c.variant {
		t.Fatalf("%d %s %s (%v), want %d %s %s: %s", a.code, a.header.Get("x-weir-reason"), a.header.Get("x-weir-variant"), a.err, c.status, c.reason, c.variant, a.body)
	}
	var seen struct {
		Reason, Detail string
		Waited         float64 `json:"waited_ms"`
	}
	w.adminJSON("/debug/explain?request="+a.header.Get("x-weir-request-id"), &seen)
	if seen.Reason != c.reason {
		t.Errorf("explain says %+v", seen)
	}
	if waited := time.Duration(seen.Waited * float64(time.Millisecond)); waited < c.waited || waited >= 8*time.Second {
		t.Errorf("waited %v, want %v at least and less than the class's 8s", waited, c.waited)
	}
	if c.channel == "" {
		return
	}
	if n := w.metric("weir_override_rejected_total", `channel="`+c.channel+`"`); n != before+1 {
		t.Errorf("weir_override_rejected_total of %s rose by %v, want 1", c.channel, n-before)
	}
	for _, part := range append(c.told, c.channel) {
		if !strings.Contains(seen.Detail, part) {
			t.Errorf("explain does not name %s: %q", part, seen.Detail)
		}
		if strings.Contains(a.body, part) {
			t.Errorf("the caller is told %s: %s", part, a.body)
		}
	}
	envoytest.Eventually(t, 10*time.Second, "a line in the log", func() bool { return strings.Contains(w.weir.Log(), "route override rejected") })
}
