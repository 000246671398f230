package body

import (
	"unicode"
	"unicode/utf8"

	"github.com/weirproxy/weir/identity"
	"github.com/weirproxy/weir/policy"
)

// One parameter has many names: OpenAI's, vLLM's, SGLang's, TGI's, Ollama's,
// llama.cpp's, TensorRT-LLM's, Gemini's, Anthropic's, Cohere's, Bedrock's. A
// scope on one binds all of them; docs/policy.md lists them.
var (
	capNames = []string{
		"max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens", "max_length", "max_gen_len",
		"max_tokens_to_sample", "max_tokens_to_generate", "maximum_tokens", "max_token_count", "maxTokens", "maxOutputTokens", "maxNewTokens", "maxTokenCount",
		"num_predict", "n_predict", "request_output_len",
	}
	minNames = []string{
		"min_tokens", "min_new_tokens", "min_length", "min_output_tokens", "minimum_tokens", "minTokens", "minNewTokens", "minOutputTokens",
	}
	choiceNames = []string{
		"n", "best_of", "num_return_sequences", "num_beams", "beam_width", "num_generations", "num_completions", "n_cmpl",
		"candidate_count", "candidateCount", "numResults",
	}
	// containerNames are objects whose members engines read as parameters.
	containerNames = []string{
		"extra_body", "sampling_params", "samplingParams", "sampling_parameters", "parameters", "options",
		"generation_config", "generationConfig", "inferenceConfig", "textGenerationConfig", "model_kwargs",
		"nvext", "agent_hints", "vllm_xargs", "debug_config",
	}
	// contentNames are values whose members are the caller's content or schemas,
	// never parameters.
	contentNames = []string{
		"messages", "prompt", "prompt_embeds", "tools", "functions", "function_call", "tool_choice",
		"response_format", "responseSchema", "responseJsonSchema", "json_schema", "schema", "format", "grammar",
		"guided_json", "guided_grammar", "guided_choice", "structured_outputs", "metadata", "documents", "logit_bias",
		"prediction", "chat_template_kwargs", "mm_processor_kwargs",
	}
	// inputNames are the caller's content; where one is an object, APIs that
	// wrap a call in it read parameters there.
	inputNames = []string{"input", "inputs"}
	// eosNames have the model go on to its cap.
	eosNames = []string{"ignore_eos", "ban_eos_token"}
)

// Priority is read by name too; vLLM and SGLang know it.
const Priority = "priority"

// role is what a name means to engines.
type role uint8

const (
	noRole role = iota
	roleCap
	roleMin
	roleChoices
	roleEOS
	rolePriority
	roleContainer
	roleContent
	roleInput
)

// roles gives the role of each name; spellings that of each name of a
// parameter in its plain form (see plainForm).
var roles, spellings = tables()

func tables() (exact, plain map[string]role) {
	exact, plain = make(map[string]role), make(map[string]role)
	for r, names := range map[role][]string{
		roleCap: capNames, roleMin: minNames, roleChoices: choiceNames, roleEOS: eosNames, rolePriority: {Priority},
		roleContainer: containerNames, roleContent: contentNames,
		roleInput: inputNames,
	} {
		for _, name := range names {
			exact[name] = r
			if r == roleCap || r == roleMin || r == roleChoices {
				var form [maxForm]byte
				plain[string(plainForm([]byte(name), form[:0]))] = r
			}
		}
	}
	return exact, plain
}

// maxForm bounds a plain form in bytes: no name of a parameter is longer.
const maxForm = 72

// plainForm appends a name without what spellings differ in: case by Unicode's
// folding, and the marks between words. It is empty for a name that is too
// long for a parameter.
func plainForm(name, to []byte) []byte {
	for len(name) > 0 {
		r, size := rune(name[0]), 1
		if r >= utf8.RuneSelf {
			r, size = utf8.DecodeRune(name)
			r = unicode.ToLower(unicode.ToUpper(r))
		} else if 'A' <= r && r <= 'Z' {
			r += 'a' - 'A'
		}
		name = name[size:]
		switch r {
		case '_', '-', '.', ' ', ':', '/':
			continue
		}
		if len(to)+utf8.UTFMax > maxForm {
			return to[:0]
		}
		to = utf8.AppendRune(to, r)
	}
	return to
}

// family is a scope's field with the names that it binds.
type family struct {
	field string
	form  string // the field's plain form
	camel string // the field in camel case
	role  role   // noRole: the field alone
	alone bool   // the role's other names are not bound
	mins  bool   // an upper bound on output, which holds for a demanded least too
}

// familyOf lists what a scope binds: all names of the output cap, and for an
// upper bound those of its least; of choices for an upper bound, and for an
// exact n.
func familyOf(p *identity.Param) family {
	var form [maxForm]byte
	f := family{field: p.Field, role: roles[p.Field], camel: camel(p.Field)}
	f.form = string(plainForm([]byte(p.Field), form[:0]))
	switch f.role {
	case roleCap:
		f.mins = p.Op != identity.AtLeast
	case roleMin:
	case roleChoices:
		f.alone = p.Op != identity.AtMost && (p.Op != identity.Equal || p.Field != "n")
	default:
		f.role = noRole
	}
	return f
}

// spelling is how a name relates to a family.
type spelling uint8

const (
	stranger spelling = iota
	member
	misspelt // another spelling of a member, which no engine is known to read
)

func (f *family) binds(r role) bool {
	return r != noRole && !f.alone && (r == f.role || f.mins && r == roleMin)
}

// spells says whether a name is bound: its role, and its plain form.
func (f *family) spells(name []byte, r role, form []byte) spelling {
	switch {
	case string(name) == f.field || f.binds(r):
		return member
	case len(form) == 0:
		return stranger
	case string(form) == f.form:
		if string(name) == f.camel {
			return member
		}
		return misspelt
	case f.binds(spellings[string(form)]):
		return misspelt
	}
	return stranger
}

// has reports whether an edit of a field is one of the family's.
func (f *family) has(field string) bool {
	return field == f.field || f.binds(roles[field]) && roles[field] == f.role
}

// camel is a name in camel case: topP for top_p.
func camel(name string) string {
	out, up := make([]byte, 0, len(name)), false
	for i := range len(name) {
		c := name[i]
		if c == '_' || c == '-' {
			up = true
			continue
		}
		if up && 'a' <= c && c <= 'z' {
			c -= 'a' - 'A'
		}
		up = false
		out = append(out, c)
	}
	return string(out)
}

// reads reports whether the API of a kind takes a field's value from a member
// of this name, at the top of the body or in an object of containerNames, so
// that it counts as sent.
func (f *family) reads(kind policy.Kind, name string, top bool) bool {
	switch {
	case kind != policy.OpenAIChat && kind != policy.OpenAICompletions && kind != policy.OpenAIEmbeddings:
		return f.binds(roles[name]) && roles[name] == f.role || name == f.field
	case f.role == roleCap:
		return top && (name == "max_tokens" || name == "max_completion_tokens")
	}
	return top && name == f.field
}

func isCap(field string) bool { return roles[field] == roleCap }
