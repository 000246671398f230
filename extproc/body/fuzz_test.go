package body

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/weirproxy/weir/identity"
	"github.com/weirproxy/weir/policy"
)

func seeds(f *testing.F) {
	files, err := filepath.Glob("testdata/*.*")
	if err != nil || len(files) == 0 {
		f.Fatal("no fixtures", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	for _, s := range []string{`{"\u006dodel":"a","a":[{"b":1e5,"b\u0000":"\ud83d\udea2"}]}`, `{"a":-0.0E-7}`, `{}`, `{"a":{"a":[]}} `} {
		f.Add([]byte(s))
	}
}

// oracle reads the document with another strict parser and measures it.
func oracle(data []byte) (ok bool) {
	dec := jsontext.NewDecoder(bytes.NewReader(data), jsontext.AllowDuplicateNames(false), jsontext.AllowInvalidUTF8(false))
	if dec.PeekKind() != '{' {
		return false
	}
	for first := true; first || dec.StackDepth() > 0; first = false {
		if _, err := dec.ReadToken(); err != nil {
			return false
		}
		if dec.StackDepth() > MaxDepth {
			return false
		}
	}
	_, err := dec.ReadToken()
	return err == io.EOF
}

// Parse of an unknown kind accepts what the oracle accepts, but for a model's
// name and its twins.
func FuzzParseOracle(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		_, err := Parse(policy.JSON, data)
		valid := oracle(data)
		switch {
		case err == nil && !valid:
			t.Errorf("accepted %q", data)
		case err != nil && valid && err.Field == "":
			t.Errorf("refused %q: %v", data, err)
		case err != nil && valid && err.Field != "model" && !strings.Contains(err.Msg, "only by case"):
			t.Errorf("refused %q: %v", data, err)
		}
	})
}

// Rewrite of a parsed body parses to the edited values and changes nothing
// else; without edits it is the same bytes.
func FuzzRewrite(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, kind := range []policy.Kind{policy.OpenAIChat, policy.OpenAICompletions, policy.OpenAIEmbeddings, policy.JSON} {
			b, err := Parse(kind, data)
			if err != nil {
				if err.Status != 400 || err.Msg == "" {
					t.Fatalf("error %+v", err)
				}
				continue
			}
			if !bytes.Equal(b.Rewrite(), data) {
				t.Fatal("changed without an edit")
			}
			scoped(t, b)
			edits := []Edit{SetInt("max_tokens", 7), SetString("model", "real \"model\""), SetBool("stream", true)}
			if kind != policy.JSON {
				edits = append(edits, IncludeUsage())
			}
			out := b.Rewrite(edits...)
			c, err := Parse(kind, out)
			if err != nil {
				t.Fatalf("%q became %q: %v", data, out, err)
			}
			if c.Model != "real \"model\"" || !c.Stream || kind != policy.JSON && (c.Usage != UsageAsked || c.caps.maxTokens != 7) {
				t.Fatalf("%q became %q: %+v", data, out, c)
			}
			if c.MaxOut != b.WorkAfter(edits).MaxOut {
				t.Fatalf("WorkAfter = %d, parsed %d", b.WorkAfter(edits).MaxOut, c.MaxOut)
			}
			sameBut(t, data, out)
			unprioritised(t, b, edits)
			if kind != policy.JSON && c.PromptBytes != b.PromptBytes {
				t.Fatalf("prompt of %d bytes became %d", b.PromptBytes, c.PromptBytes)
			}
		}
	})
}

// scoped holds the body against scopes (K1): what passes, with its edits,
// passes again without any, and only what was not sent was set.
func scoped(t *testing.T, b *Body) {
	t.Helper()
	params := []identity.Param{
		{Field: "max_tokens", Op: identity.AtMost, Bound: 100},
		{Field: "temperature", Op: identity.AtMost, Bound: 0.5},
		{Field: "n", Op: identity.Equal, Enum: []string{"1"}},
	}
	edits, err := b.CheckParams(params, true, policy.RefuseUnknown)
	if err != nil {
		return
	}
	for _, e := range edits {
		if at := b.lookup(e.Field()); !at.none() && string(b.data[at.lo:at.hi]) != "null" {
			t.Fatalf("%q: %s was sent and is set", b.data, e.Field())
		}
	}
	out := b.Rewrite(edits...)
	c, err := Parse(b.Kind, out)
	if err != nil {
		t.Fatalf("%q became %q: %v", b.data, out, err)
	}
	if more, err := c.CheckParams(params, false, policy.RefuseUnknown); err != nil || len(more) > 0 {
		t.Fatalf("%q: %v %v", out, more, err)
	}
	if c.MaxOut > 100*c.Prompts {
		t.Fatalf("%q: MaxOut = %d", out, c.MaxOut)
	}
}

// unprioritised takes the caller's priority out, beside other edits.
func unprioritised(t *testing.T, b *Body, edits []Edit) {
	t.Helper()
	cuts, err := b.WithoutPriority()
	if err != nil {
		return
	}
	for _, all := range [][]Edit{cuts, append(edits, cuts...)} {
		out := b.Rewrite(all...)
		c, err := Parse(b.Kind, out)
		if err != nil {
			t.Fatalf("%q became %q: %v", b.data, out, err)
		}
		if more, err := c.WithoutPriority(); err != nil || len(more) > 0 {
			t.Fatalf("%q became %q, with %v %v", b.data, out, more, err)
		}
	}
}

// sameBut compares two documents without the edited fields.
func sameBut(t *testing.T, before, after []byte) {
	t.Helper()
	x, y := map[string]json.RawMessage{}, map[string]json.RawMessage{}
	if json.Unmarshal(before, &x) != nil || json.Unmarshal(after, &y) != nil {
		t.Fatalf("%q or %q is not JSON", before, after)
	}
	for _, k := range []string{"max_tokens", "model", "stream", "stream_options"} {
		delete(x, k)
		delete(y, k)
	}
	if len(x) != len(y) {
		t.Fatalf("%q became %q", before, after)
	}
	for k := range x {
		if !bytes.Equal(x[k], y[k]) {
			t.Fatalf("%s: %q became %q", k, x[k], y[k])
		}
	}
}
