package modelsim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
)

// maxBody bounds one request body.
const maxBody = 32 << 20

// request is what the simulator reads of a call.
type request struct {
	Model     string          `json:"model"`
	Messages  []message       `json:"messages"`
	Prompt    json.RawMessage `json:"prompt"`
	Input     json.RawMessage `json:"input"`
	Stream    bool            `json:"stream"`
	Options   *streamOptions  `json:"stream_options"`
	MaxTokens *int            `json:"max_tokens"`
	MaxOutput *int            `json:"max_completion_tokens"`
	N         *int            `json:"n"`

	prompts []int // tokens of each prompt
	natural int   // OutputHeader; 0 = not set
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
	Continuous   bool `json:"continuous_usage_stats"`
}

type message struct {
	Content json.RawMessage `json:"content"`
}

// bytesPerToken is the simulator's tokenizer: four bytes of text a token,
// rounded up for each text, and messageTokens more for each message.
const (
	bytesPerToken = 4
	messageTokens = 3
)

// textTokens counts the tokens of a text.
func textTokens(s string) int { return (len(s) + bytesPerToken - 1) / bytesPerToken }

// decode reads the body of a call.
func decode(r *http.Request) (*request, error) {
	body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, maxBody))
	if err != nil {
		return nil, fmt.Errorf("body: %w", err)
	}
	q := new(request)
	if err := json.Unmarshal(body, q); err != nil {
		return nil, fmt.Errorf("body is no valid request: %w", err)
	}
	if v := r.Header.Get(OutputHeader); v != "" {
		if q.natural, err = strconv.Atoi(v); err != nil || q.natural < 1 {
			return nil, fmt.Errorf("%s must be a number of tokens >= 1, got %q", OutputHeader, v)
		}
	}
	return q, nil
}

// cap is the limit of output tokens the caller set; 0 = none.
func (q *request) cap() (int, error) {
	for _, v := range []*int{q.MaxOutput, q.MaxTokens} {
		if v == nil {
			continue
		}
		if *v < 1 {
			return 0, fmt.Errorf("max_tokens must be at least 1, got %d", *v)
		}
		return *v, nil
	}
	return 0, nil
}

// choices is n, 1..128.
func (q *request) choices() (int, error) {
	if q.N == nil {
		return 1, nil
	}
	if *q.N < 1 || *q.N > 128 {
		return 0, fmt.Errorf("n must be in 1..128, got %d", *q.N)
	}
	return *q.N, nil
}

// chatTokens counts the prompt of a chat: the text parts of all messages.
func chatTokens(messages []message) (int, error) {
	if len(messages) == 0 {
		return 0, errors.New("messages must not be empty")
	}
	total := 0
	for i, m := range messages {
		n, err := contentTokens(m.Content)
		if err != nil {
			return 0, fmt.Errorf("messages[%d].content: %w", i, err)
		}
		total += n + messageTokens
	}
	return total, nil
}

func contentTokens(raw json.RawMessage) (int, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return 0, nil
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return textTokens(text), nil
	}
	var parts []struct {
		Text string `json:"text"`
	}
	if err := json.Unmarshal(raw, &parts); err != nil {
		return 0, errors.New("neither a string nor a list of parts")
	}
	total := 0
	for _, p := range parts {
		total += textTokens(p.Text)
	}
	return total, nil
}

// promptTokens counts each prompt of a completion or embedding: a string, a
// list of strings, a list of token ids, or a list of such lists.
func promptTokens(field string, raw json.RawMessage) ([]int, error) {
	var text string
	if json.Unmarshal(raw, &text) == nil && len(raw) > 0 && raw[0] == '"' {
		return []int{textTokens(text)}, nil
	}
	var list []json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil || len(list) == 0 {
		return nil, fmt.Errorf("%s must be a string or a list that is not empty", field)
	}
	if _, err := strconv.Atoi(string(list[0])); err == nil {
		return []int{len(list)}, nil
	}
	counts := make([]int, len(list))
	for i, item := range list {
		var ids []int
		switch {
		case json.Unmarshal(item, &text) == nil:
			counts[i] = textTokens(text)
		case json.Unmarshal(item, &ids) == nil:
			counts[i] = len(ids)
		default:
			return nil, fmt.Errorf("%s[%d] is neither text nor tokens", field, i)
		}
	}
	return counts, nil
}
