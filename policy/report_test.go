package policy

import (
	"errors"
	"strings"
	"testing"
)

const reportText = minimal + `
tiers: [{name: gold, weight: 2}]
tenants: [{match: {tenant: acme}, tier: gold, class: standard}, {match: {tenant: "bad*"}, block: true}, {match: {tenant: few}, models: [n]}]
apis:
  - {path: /v1/chat/completions, kind: openai.chat, function: chat_completion}
  - {path: "/v1/files/{name...}", kind: opaque, cost: 50}
  - {path: /v1/models, kind: openai.models}
quotas:
  - {name: all, limits: [{requests: 100, per: 1s}]}
  - {name: per-tenant, match: {tenant: "*"}, by: [tenant, model], limits: [{requests: 600, per: 1m}, {concurrency: 20}]}
  - {name: batch, match: {class: batch}, limits: [{tokens: 5, per: 1h}]}
profiles: {edge: {queue: {length: {max: 0}}, quotas: []}}
`

func reportPolicy(t *testing.T) *Policy {
	t.Helper()
	text := strings.Replace(reportText, "pools: [p]}]", "pools: [p]}, {name: n, aliases: [\"n-*\"], pools: [p, low]}]", 1)
	text = strings.Replace(text, "seats: {requests: 4}}]", "seats: {requests: 4}}, {name: low, variant: int8, seats: {requests: 8, tokens: 1000}}]", 1)
	return load(t, "w.yaml", text)
}

func contains(t *testing.T, got string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(got, want) {
			t.Errorf("missing %q in\n%s", want, got)
		}
	}
}

func TestReport(t *testing.T) {
	p := reportPolicy(t)
	got := Report(p)
	contains(t, got,
		"# policy "+p.Hash+", mode enforce\n",
		"#   POST    /v1/chat/completions         openai.chat        needs llm_service and chat_completion\n",
		"#   POST    /v1/files/{name...}          opaque             needs llm_service, charged 50 tokens\n",
		"#   n (n-*)\n#     critical  p (fp16, 4 seats)\n#     standard  p (fp16, 4 seats)\n#     batch     low (int8, 8 seats, 1000 tokens)\n",
		"#   critical  weight 3, waits 200ms, then 503\n",
		"#   standard  weight 2, waits 500ms, then a free seat of the next pool down, else 429\n",
		"#   batch     weight 1, waits 1s, then the retry queue for 5s, then 429\n",
		"#   acme                 tier gold (weight 2), no class above standard\n",
		"#   bad*                 every call is refused\n",
		"#   tier gold            weight 2\n#   tier silver          weight 1\n#   tier bronze          weight 1\n",
		"#   per-tenant           for tenant *, a counter for each tenant and model: 600 requests/1m, 20 concurrency\n",
		"# profile edge: what differs\n",
		"#   queue.length.max: 0\n",
		"#   quotas: []\n",
		"#   model m: class batch asks for int8, no pool has it: p (fp16) is used, the next higher precision\n",
		"#   model m: class standard degrades when its wait is over, but no pool is below fp16: it gets 429 then\n",
	)
	if !same(p, load(t, "w.yaml", got)) {
		t.Error("the report does not load as the same policy")
	}
}

func TestExplain(t *testing.T) {
	p := reportPolicy(t)
	for _, tt := range []struct {
		name string
		s    Sample
		want []string
	}{
		{"chat", Sample{Tenant: "acme", Class: "critical", Path: "/v1/chat/completions?x=1", Model: "n-7"}, []string{
			"policy    " + p.Hash + ", no profile\n",
			"api       POST /v1/chat/completions, kind openai.chat, needs scope llm_service and chat_completion\n",
			"tenant    acme, tier gold of weight 2 (tenants[0])\n",
			"class     standard, lowered from critical by tenants[0], mode enforce\n",
			"model     n\n",
			"pools     p (fp16, 4 seats), in place of fp16-dyn\n",
			"waits     500ms, then a free seat of the next pool down, else 429\n",
			"held      500ms at most; Envoy must wait 1s\n",
			"quota     all, counter of all: 100 requests/1s\n",
			"quota     per-tenant, counter tenant=acme,model=n: 600 requests/1m, 20 concurrency\n",
		}},
		{"route", Sample{Tenant: "x", Class: "critical", Path: "/v1/chat/completions", Model: "n", Overrides: map[string]string{"class": "batch", "maxWait": "300ms", "function": "f"}}, []string{
			"needs scope llm_service and f and chat_completion\n",
			"tenant    x, tier silver of weight 1 (from the token)\n",
			"class     batch, lowered from critical by the route, mode enforce\n",
			"pools     low (int8, 8 seats, 1000 tokens)\n",
			"waits     300ms, then the retry queue for 5s, then 429\n",
			"held      5.3s at most; Envoy must wait 5.8s\n",
			"quota     batch, counter of all: 5 tokens/1h\n",
		}},
		{"profile", Sample{Tenant: "x", Path: "/v1/chat/completions", Model: "n", Overrides: map[string]string{"profile": "edge"}}, []string{
			", profile edge\n", "waits     not at all: queue.length.max is 0\n", "quota     no rule binds\n"}},
		{"blocked", Sample{Tenant: "bad1", Path: "/v1/chat/completions", Model: "n"}, []string{"refused   tenant bad1 is blocked by tenants[1]\n"}},
		{"tenant's models", Sample{Tenant: "few", Path: "/v1/chat/completions", Model: "m"}, []string{"refused   the tenant is not allowed model m\n"}},
		{"route's models", Sample{Tenant: "x", Path: "/v1/chat/completions", Model: "m", Overrides: map[string]string{"models": "n"}}, []string{"refused   the route does not allow model m\n"}},
		{"no model", Sample{Tenant: "x", Path: "/v1/chat/completions"}, []string{"refused   the sample names no model\n"}},
		{"unknown model", Sample{Tenant: "x", Path: "/v1/chat/completions", Model: "gpt"}, []string{"refused   no model \"gpt\"; the models are m, n\n"}},
		{"unknown path", Sample{Tenant: "x", Path: "/v2"}, []string{"refused   no API takes POST /v2\n"}},
		{"path", Sample{Tenant: "x", Path: "/v1//chat"}, []string{"refused   path \"/v1//chat\" can be spelt in more than one way\n"}},
		{"opaque", Sample{Tenant: "x", Path: "/v1/files/a/b"}, []string{"api       POST /v1/files/{name...}, kind opaque", "model     m\n"}},
		{"models", Sample{Tenant: "x", Method: "GET", Path: "/v1/models"}, []string{"desk      none: kind openai.models passes with identity alone\n"}},
	} {
		got, err := ReportSample(p, tt.s)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		contains(t, got, tt.want...)
	}
	for _, bad := range []Sample{
		{Tenant: "x", Path: "/", Class: "vip"},
		{Tenant: "x", Path: "/", Overrides: map[string]string{"priority": "1"}},
		{Tenant: "x", Path: "/", Overrides: map[string]string{"profile": "none"}},
	} {
		var errs Errors
		if _, err := Explain(p, bad); !errors.As(err, &errs) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

func TestParseSample(t *testing.T) {
	s, err := ParseSample("s.json", []byte(`{"tenant": "a", "class": "batch", "tier": "gold", "user": "u", "key": "k",
		"method": "GET", "path": "/x", "model": "m", "overrides": {"class": "batch"}}`))
	if err != nil || s.Tenant != "a" || s.Path != "/x" || s.Overrides["class"] != "batch" || s.Key != "k" || s.Method != "GET" {
		t.Errorf("%+v %v", s, err)
	}
	for text, want := range map[string]string{
		``:                                      "s.json:1:1: is not JSON: EOF",
		`[]`:                                    "must be a JSON object",
		`{"tenant": "a"}`:                       "path: is missing",
		`{"tenant": "a", "path": "/x"`:          "is not JSON",
		`{"tenant": "a", "path": "/x"} {}`:      "holds more than one JSON value",
		`{"tenant": 5, "path": "/x"}`:           `tenant: must be a string (got "5")`,
		`{"Tenant": "a", "path": "/x"}`:         "Tenant: unknown key; the keys are class, key, method, model, path, tenant, tier, user, overrides",
		`{"tenant":"a","tenant":"b"}`:           "tenant: is written twice",
		`{"path":"/","overrides":{"a":1}}`:      "overrides.a: must be a string",
		`{"overrides": "x"}`:                    "overrides: must be a JSON object",
		`{"overrides":{"a":"1","a":"2"}}`:       "overrides.a: is written twice",
		"{\n\"tenant\": \"a\",\n\"extra\": {}}": "s.json:3:8: extra: unknown key",
		"{\"tenant\": \"\xff\"}":                "is not UTF-8",
		`{"tenant": "` + strings.Repeat("a", maxSample) + `"}`: "at most 65536 are read",
	} {
		_, err := ParseSample("s.json", []byte(text))
		var errs Errors
		if !errors.As(err, &errs) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: got %v, want %s", text, err, want)
		}
	}
}

func FuzzParseSample(f *testing.F) {
	f.Add([]byte(`{"tenant": "a", "path": "/x", "overrides": {"class": "batch"}}`))
	f.Add([]byte(`{"tenant": null}`))
	p := Default()
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := ParseSample("s", data)
		if err != nil {
			return
		}
		if s.Tenant == "" || s.Path == "" {
			t.Fatalf("%+v", s)
		}
		_, _ = Explain(p, s)
	})
}
