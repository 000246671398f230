package extproc

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
	"github.com/weirproxy/weir/quota/memstore"
)

// Choices and prompts are reserved, wherever the body names them: what a call
// holds while it runs is of the size of what it is charged at its end (T8).
func TestChoicesAreReserved(t *testing.T) {
	const each = 1000 // tokens of an answer
	for _, c := range []struct {
		name, path, ask string
		choices         int64
	}{
		{"n", "/v1/chat/completions", `"messages":[{"content":"hello"}],"n":128`, 128},
		{"in sampling_params", "/v1/chat/completions", `"messages":[{"content":"hello"}],"sampling_params":{"n":64}`, 64},
		{"beams", "/v1/chat/completions", `"messages":[{"content":"hello"}],"extra_body":{"num_beams":16}`, 16},
		{"prompts", "/v1/completions", `"prompt":["a","b","c","d","e"],"n":8`, 40},
		{"to the cap", "/v1/chat/completions", `"messages":[{"content":"hello"}],"n":4,"max_tokens":1000,"ignore_eos":1`, 4},
		{"token ids", "/v1/completions", `"prompt":[[1,2],[3,4],[5]],"best_of":8`, 24},
	} {
		store := memstore.New(memstore.Options{})
		p := rules(func(p *policy.Policy) {
			p.Quotas = []policy.QuotaRule{{Name: "all", By: []string{"tenant"}, Match: policy.Match{Tenant: "*"}, Limits: []policy.Limit{{Unit: policy.Tokens, Max: 1 << 40, Per: time.Hour}}}}
			for i := range p.Pools {
				p.Pools[i].Seats.Tokens = 0
			}
		})
		d := admission.New(admission.Options{Policy: p, Store: store, Rand: rand.New(rand.NewPCG(1, 2))})
		h := openWith(t, nil, p, func(o *Options) { o.Desk = NewDesk(d) })
		t.Cleanup(d.Close)
		before, reserved := int64(0), int64(0)
		for i := range 40 {
			e := h.call()
			e.send(post(caller(), c.path, "content-type", "application/json"))
			e.want("request_headers")
			e.send(reqBody(`{"model":"deepseek-v4",`+c.ask+`}`, true))
			e.want("request_body")
			held := tokens(t, store) - before
			e.send(answered("200", via, false, "content-type", "application/json"))
			e.want("response_headers")
			e.send(chunk(manyAnswers(c.choices, each), true))
			e.want("response_body")
			_ = e.hangUp(true)
			h.ended()
			after := tokens(t, store)
			charged := after - before
			before = after
			if charged != 9+c.choices*each {
				t.Fatalf("%s: charged %d, want %d", c.name, charged, 9+c.choices*each)
			}
			if i < 20 {
				reserved += held
			}
			first := int64(512)
			if c.name == "to the cap" {
				first = each
			}
			if held < c.choices*first || i >= 20 && (held < charged || float64(held) > 1.1*float64(charged)) {
				t.Errorf("%s: call %d held %d, charged %d", c.name, i, held, charged)
			}
		}
		if charged := 20 * c.choices * each; 2*reserved < charged {
			t.Errorf("%s: 20 calls reserved %d and were charged %d", c.name, reserved, charged)
		}
	}
}

func manyAnswers(choices, each int64) string {
	one := `{"message":{"content":"word"},"finish_reason":"stop"}`
	return fmt.Sprintf(`{"choices":[%s%s],"usage":{"prompt_tokens":9,"completion_tokens":%d,"total_tokens":%d}}`,
		one, strings.Repeat(","+one, int(choices)-1), choices*each, 9+choices*each)
}

func tokens(t *testing.T, store quota.Store) int64 {
	t.Helper()
	list, err := store.Usage(context.Background(), time.Now(), "acme")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range list {
		if c.Limit.Unit == policy.Tokens {
			return c.Used
		}
	}
	return 0
}

// What the policy does not allow, and what engines cannot take, is refused by
// field; a limit is not passed beside other names of it.
func TestBodiesThatAskForTooMuch(t *testing.T) {
	for _, c := range []struct {
		ask    string
		scopes string
		reason admission.Reason
		field  string
	}{
		{`"n":129`, "", admission.BodyField, "n"},
		{`"n":0`, "", admission.BodyField, "n"},
		{`"n":"3"`, "", admission.BodyField, "n"},
		{`"n":1000000000`, "", admission.BodyField, "n"},
		{`"generationConfig":{"candidateCount":500}`, "", admission.BodyField, "generationConfig.candidateCount"},
		{`"num_return_sequences":1.5`, "", admission.BodyField, "num_return_sequences"},
		{`"max_new_tokens":5000`, "max_tokens<=100 n=1", admission.ParameterDenied, "max_new_tokens"},
		{`"sampling_params":{"max_tokens":5000}`, "max_tokens<=100 n=1", admission.ParameterDenied, "sampling_params.max_tokens"},
		{`"min_tokens":5000,"max_tokens":100`, "max_tokens<=100 n=1", admission.ParameterDenied, "min_tokens"},
		{`"extra_body":{"num_return_sequences":2}`, "max_tokens<=100 n=1", admission.ParameterDenied, "extra_body.num_return_sequences"},
		{`"maxOutputTokens":101`, "max_tokens<=100 n=1", admission.ParameterDenied, "maxOutputTokens"},
		{`"Max-Tokens":1`, "max_tokens<=100 n=1", admission.ParameterDenied, "Max-Tokens"},
	} {
		id := caller()
		if c.scopes != "" {
			id.Params = params(strings.Fields(c.scopes)...)
		}
		h := open(t, newTestDesk())
		e := h.call()
		e.send(chatHeadOf(id))
		e.want("request_headers")
		e.send(reqBody(`{"model":"deepseek-v4","messages":[],`+c.ask+`}`, true))
		checkRefusal(t, e.next(), c.reason, c.field)
		_ = e.hangUp(true)
		h.ended()
	}
}
