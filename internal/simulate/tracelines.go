package simulate

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// csvParser reads the header and gives a reader of the lines. A field may not
// span lines. fields names a column of ours by another of the file's.
func csvParser(header []byte, fields map[string]string) (func([]byte, *rawCall) error, error) {
	text := strings.TrimPrefix(strings.TrimRight(string(header), "\r\n"), "\ufeff")
	names, err := splitCSV(text)
	if err != nil {
		return nil, err
	}
	for i := range names {
		names[i] = strings.ToLower(strings.TrimSpace(names[i]))
	}
	public := publicColumns(slices.Contains(names, "request tokens"))
	for i := range names {
		if ours, ok := public[names[i]]; ok && !saidByFields(fields, names[i]) {
			names[i] = ours
		}
		for ours, theirs := range fields {
			if strings.EqualFold(theirs, names[i]) {
				names[i] = ours
			}
		}
		switch {
		case names[i] == "":
			continue // of a public trace, and nothing for us
		case !slices.Contains(columns(), names[i]):
			return nil, fmt.Errorf("unknown column %.64q: leave it out, or say by fields which it is; the columns are %s", names[i], strings.Join(columns(), ", "))
		case slices.Contains(names[:i], names[i]):
			return nil, fmt.Errorf("column %s is there twice", names[i])
		}
	}
	if !slices.Contains(names, "at") {
		return nil, errors.New("column at is missing")
	}
	return func(line []byte, raw *rawCall) error {
		values, err := splitCSV(strings.TrimRight(string(line), "\r\n"))
		if err != nil {
			return err
		}
		if len(values) != len(names) {
			return fmt.Errorf("has %d fields, the header has %d", len(values), len(names))
		}
		for i, v := range values {
			if names[i] == "" {
				continue
			}
			if err := raw.set(names[i], strings.TrimSpace(v)); err != nil {
				return err
			}
		}
		return nil
	}, nil
}

// publicColumns are names of the public LLM traces, by ours: Azure's
// (TIMESTAMP,ContextTokens,GeneratedTokens) and BurstGPT's (Timestamp,Model,Request
// tokens,Response tokens,Total tokens,Log Type, later with Session ID and Elapsed
// time). "" has nothing for us: a model of BurstGPT's is none of the policy's.
func publicColumns(burst bool) map[string]string {
	m := map[string]string{
		"timestamp": "at", "contexttokens": "prompt_tokens", "generatedtokens": "output_tokens",
		"request tokens": "prompt_tokens", "response tokens": "output_tokens",
		"total tokens": "", "log type": "", "session id": "", "elapsed time": "",
	}
	if burst {
		m["model"] = ""
	}
	return m
}

// saidByFields reports whether fields names a column of the file.
func saidByFields(fields map[string]string, column string) bool {
	for _, theirs := range fields {
		if strings.EqualFold(theirs, column) {
			return true
		}
	}
	return false
}

func splitCSV(line string) ([]string, error) {
	if !strings.Contains(line, `"`) {
		return strings.Split(line, ","), nil
	}
	values, err := csv.NewReader(strings.NewReader(line)).Read()
	var wrong *csv.ParseError
	if errors.As(err, &wrong) { // its line numbers are not the file's
		return nil, wrong.Err
	}
	return values, err
}

// accessLogFields is where a column stands in Envoy's JSON access log as the
// examples write it; of several the first one there counts. A path's steps
// are divided by dots.
func accessLogFields() map[string][]string {
	return map[string][]string{
		"at":            {"start", "start_time"},
		"tenant":        {"decision.tenant"},
		"class":         {"decision.class"},
		"tier":          {"decision.tier"},
		"model":         {"decision.model"},
		"stream":        {"decision.stream"},
		"prompt_tokens": {"decision.prompt_tokens"},
		"output_tokens": {"decision.output_tokens"},
		"max_tokens":    {"decision.max_tokens"},
		"bytes":         {"bytes", "bytes_received"},
		"method":        {"method"},
		"code":          {"code", "response_code"},
	}
}

// accessLogParser gives a reader of lines that are one JSON object each.
func accessLogParser(fields map[string]string) func([]byte, *rawCall) error {
	where := accessLogFields()
	for column, path := range fields {
		where[column] = []string{path}
	}
	return func(line []byte, raw *rawCall) error {
		var object map[string]any
		if err := json.Unmarshal(line, &object); err != nil {
			return fmt.Errorf("is not a JSON object: %w", err)
		}
		mooncake(object)
		for _, column := range columns() {
			text := ""
			for _, path := range where[column] {
				if text = dig(object, path); text != "" {
					break
				}
			}
			if err := raw.set(column, text); err != nil {
				return err
			}
		}
		return nil
	}
}

// mooncake renames the values of a line of Mooncake's traces, whose timestamp is
// in milliseconds: {"timestamp": 27482, "input_length": 6955, "output_length": 52, ...}.
func mooncake(object map[string]any) {
	ms, ok := object["timestamp"].(float64)
	if _, known := object["input_length"].(float64); !ok || !known {
		return
	}
	object["start"] = ms / 1000
	object["decision.prompt_tokens"], object["decision.output_tokens"] = object["input_length"], object["output_length"]
}

// dig is the plain value at a dotted path, as text; "" for none. A key with
// dots in it is found too.
func dig(object map[string]any, path string) string {
	if v, ok := object[path]; ok {
		return plainText(v)
	}
	for i := range len(path) {
		if path[i] != '.' {
			continue
		}
		if inner, ok := object[path[:i]].(map[string]any); ok {
			if text := dig(inner, path[i+1:]); text != "" {
				return text
			}
		}
	}
	return ""
}

func plainText(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	case bool:
		return strconv.FormatBool(v)
	}
	return ""
}
