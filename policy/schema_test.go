package policy

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write examples/policies/weir.schema.json anew")

const schemaFile = "../examples/policies/weir.schema.json"

// schemaOf is the JSON Schema of a shape; docs describe the keys.
func schemaOf(s shape, path string, docs map[string]documented) map[string]any {
	out := make(map[string]any)
	if d, ok := docs[path]; ok {
		out["description"] = describe(d)
	}
	set := func(kv map[string]any) map[string]any {
		for k, v := range kv {
			out[k] = v
		}
		return out
	}
	switch s.kind {
	case "object":
		return set(objectSchema(s, path, docs))
	case "list":
		set(map[string]any{"type": "array", "items": schemaOf(*s.item, path+"[]", docs)})
		if s.minItems > 0 {
			out["minItems"] = s.minItems
		}
		if s.unique {
			out["uniqueItems"] = true
		}
		return set(map[string]any{"maxItems": s.maxItems})
	case "map":
		if s.item.kind == "object" {
			out["propertyNames"] = map[string]any{"pattern": scopeName.String()}
		}
		return set(map[string]any{"type": "object", "maxProperties": s.maxItems, "additionalProperties": schemaOf(*s.item, "", nil)})
	case "enum":
		return set(map[string]any{"enum": s.enum})
	case "integer", "number":
		return set(map[string]any{"type": s.kind, "minimum": s.min, "maximum": s.max})
	}
	return set(textSchema(s))
}

func objectSchema(s shape, path string, docs map[string]documented) map[string]any {
	properties := make(map[string]any)
	var required []string
	for _, f := range s.fields {
		properties[f.key] = schemaOf(f.shape, strings.TrimPrefix(path+"."+f.key, "."), docs)
		if f.required {
			required = append(required, f.key)
		}
	}
	out := map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
	if required != nil {
		out["required"] = required
	}
	if s.one != nil {
		var one []any
		for _, k := range s.one {
			one = append(one, map[string]any{"required": []string{k}})
		}
		out["oneOf"] = one
	}
	if s.notBoth != nil {
		out["not"] = map[string]any{"required": s.notBoth}
	}
	return out
}

// textSchema is for values that are written as text, and booleans.
func textSchema(s shape) map[string]any {
	switch s.kind {
	case "boolean":
		return map[string]any{"type": "boolean"}
	case "ratio":
		share := map[string]any{"type": "number", "minimum": 0, "maximum": s.max}
		if !s.zero {
			share = map[string]any{"type": "number", "exclusiveMinimum": 0, "maximum": s.max}
		}
		return map[string]any{"anyOf": []any{share, map[string]any{"type": "string", "pattern": `^(100(\.0+)?|[0-9]{1,2}(\.[0-9]+)?)%$`}}}
	case "duration":
		span := map[string]any{"type": "string", "pattern": `^0$|^([0-9]+(\.[0-9]*)?(ms|us|µs|ns|s|m|h))+$`}
		if !s.zero {
			span["pattern"] = `^([0-9]+(\.[0-9]*)?(ms|us|µs|ns|s|m|h))+$`
			return span
		}
		return map[string]any{"anyOf": []any{span, map[string]any{"const": 0}}}
	case "bytes":
		return map[string]any{"type": "string", "pattern": byteSize.String()}
	}
	out := map[string]any{"type": "string", "minLength": s.min, "maxLength": s.max}
	if s.pattern != "" {
		out["pattern"] = s.pattern
	}
	return out
}

// describe is the tooltip of an editor.
func describe(d documented) string {
	text := strings.ReplaceAll(strings.ReplaceAll(d.meaning, "`", ""), `\|`, "|")
	if d.bounds != "" {
		text += " Bounds: " + d.bounds + "."
	}
	if d.defaults != "required" {
		text += " Default: " + strings.ReplaceAll(d.defaults, "`", "") + "."
	}
	if d.id != "" {
		text += " (" + d.id + ")"
	}
	return text
}

// The published schema says what the reader reads.
func TestSchemaIsFresh(t *testing.T) {
	schema := schemaOf(sections().shape, "", readReference(t))
	schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	schema["title"] = "weir.yaml"
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(schema); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(schemaFile, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, b.Bytes()) {
		t.Error("weir.schema.json is not what the reader reads; write it anew: go test ./policy -run TestSchemaIsFresh -update")
	}
}

func compileSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	s, err := c.Compile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// validate sees a file as an editor does; an error of the YAML itself counts.
func validate(t *testing.T, s *jsonschema.Schema, data []byte) error {
	t.Helper()
	asJSON, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return err
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(asJSON))
	if err != nil {
		return err
	}
	return s.Validate(value)
}

func TestSchemaTakesPolicies(t *testing.T) {
	s := compileSchema(t)
	for name, data := range examples(t) {
		if err := validate(t, s, data); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		p, err := Load(name, data, WithoutSecrets())
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err := validate(t, s, p.Dump()); err != nil {
			t.Errorf("dump of %s: %v", name, err)
		}
	}
}

// The schema refuses every bad file, but those whose fault lies in how values
// go together ("# semantic").
func TestSchemaRefusesBadFiles(t *testing.T) {
	s := compileSchema(t)
	structural := 0
	for _, f := range badFiles(t) {
		err := validate(t, s, f.data)
		switch {
		case err == nil && !f.semantic:
			t.Errorf("%s: the schema takes it", f.name)
		case err != nil && !f.semantic:
			structural++
		}
	}
	if structural < 45 {
		t.Errorf("only %d files are refused by the schema", structural)
	}
}

// examples are the policies that are published.
func examples(t *testing.T) map[string][]byte {
	t.Helper()
	out := map[string][]byte{"minimal": []byte(minimal), "full": []byte(full)}
	for _, name := range []string{"default.yaml", "source.yaml"} {
		data, err := os.ReadFile("../examples/policies/" + name)
		if err != nil {
			t.Fatal(err)
		}
		out[name] = data
	}
	return out
}
