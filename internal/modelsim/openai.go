package modelsim

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// api is what differs between chat and plain completions.
type api struct {
	chat   bool
	prefix string // of ids
	object string
	chunk  string // object of a chunk
}

var (
	chatAPI = api{chat: true, prefix: "chatcmpl", object: "chat.completion", chunk: "chat.completion.chunk"}
	textAPI = api{prefix: "cmpl", object: "text_completion", chunk: "text_completion"}
)

type usage struct {
	Prompt     int  `json:"prompt_tokens"`
	Completion *int `json:"completion_tokens,omitempty"`
	Total      int  `json:"total_tokens"`
}

type delta struct {
	Role    string  `json:"role,omitempty"`
	Content *string `json:"content,omitempty"`
}

type choice struct {
	Index   int     `json:"index"`
	Delta   *delta  `json:"delta,omitempty"`
	Message *delta  `json:"message,omitempty"`
	Text    *string `json:"text,omitempty"`
	Logs    *string `json:"logprobs"`
	Finish  *string `json:"finish_reason"`
}

type completion struct {
	ID      string          `json:"id"`
	Object  string          `json:"object"`
	Created int64           `json:"created"`
	Model   string          `json:"model"`
	Choices []choice        `json:"choices"`
	Usage   json.RawMessage `json:"usage,omitempty"`
}

func (s *Sim) serveChat(w http.ResponseWriter, r *http.Request) {
	s.serve(w, r, func(q *request) error {
		n, err := chatTokens(q.Messages)
		q.prompts = []int{n}
		return err
	}, func(c *call, p *reply, q *request) error { return c.complete(p, q, chatAPI) })
}

func (s *Sim) serveCompletions(w http.ResponseWriter, r *http.Request) {
	s.serve(w, r, func(q *request) (err error) {
		q.prompts, err = promptTokens("prompt", q.Prompt)
		return err
	}, func(c *call, p *reply, q *request) error { return c.complete(p, q, textAPI) })
}

func (s *Sim) serveEmbeddings(w http.ResponseWriter, r *http.Request) {
	s.serve(w, r, func(q *request) (err error) {
		q.prompts, err = promptTokens("input", q.Input)
		return err
	}, (*call).embed)
}

// serve is the frame of every call of a model: body, model, faults before the
// answer, and the books.
func (s *Sim) serve(w http.ResponseWriter, r *http.Request, count func(*request) error, answer func(*call, *reply, *request) error) {
	f, err := s.faults.pick(r)
	if err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	c := s.begin(r.Context(), r.Header.Get(TenantHeader), f)
	defer c.leave()
	c.report = r.Header.Get(reportHeader + "-Format")
	p := newReply(w, f, s.cfg.Variant)
	// The body first: net/http notices a client's end only after it.
	q, status, err := s.accept(r, count)
	if err != nil {
		c.refuse(p, status, err.Error())
		return
	}
	if c.pause(f.late) != nil {
		return
	}
	switch {
	case f.hang:
		<-c.ctx.Done()
		return
	case f.reset:
		p.reset()
	case f.status != 0:
		c.refuse(p, f.status, "failed on command")
		return
	}
	switch err := answer(c, p, q); {
	case errors.Is(err, errReset):
		p.reset()
	case err != nil:
		s.cfg.Log.Debug("answer ended early", "id", c.number, "error", err)
	}
}

// accept reads and checks the body of a call.
func (s *Sim) accept(r *http.Request, count func(*request) error) (*request, int, error) {
	q, err := decode(r)
	if err == nil {
		err = count(q)
	}
	if err != nil {
		return nil, http.StatusBadRequest, err
	}
	if q.Model == "" {
		q.Model = s.models()[0]
	}
	if len(s.cfg.Models) > 0 && !slices.Contains(s.cfg.Models, q.Model) {
		return nil, http.StatusNotFound, fmt.Errorf("the model %q does not exist", q.Model)
	}
	return q, 0, nil
}

// refuse answers with an error.
func (c *call) refuse(p *reply, status int, text string) {
	// A failure to send is booked by end; there is nobody left to tell.
	_ = c.end(Count{Failed: 1}, func() error { return p.whole(status, errorBody(status, text), c.fault) })
}

// complete runs a chat or a completion.
func (c *call) complete(p *reply, q *request, a api) error {
	limit, err := q.cap()
	n, errN := q.choices()
	if err := errors.Join(err, errN); err != nil {
		c.refuse(p, http.StatusBadRequest, err.Error())
		return nil
	}
	prompt, width := 0, n*len(q.prompts)
	for _, t := range q.prompts {
		prompt += t
	}
	output := c.length(q.natural, limit)
	if err := c.submit(newSequence(prompt, output, width)); err != nil {
		c.refuse(p, http.StatusBadRequest, err.Error())
		return nil
	}
	if q.Stream {
		return c.stream(p, q, a)
	}
	for {
		more, err := c.step()
		if err != nil {
			return err
		}
		if !more {
			return c.json(p, q, a)
		}
	}
}

// head is what every body and chunk begins with.
func (c *call) head(q *request, a api, object string) completion {
	return completion{
		ID:      fmt.Sprintf("%s-%d", a.prefix, c.number),
		Object:  object,
		Created: time.Now().Unix(),
		Model:   q.Model,
		Choices: []choice{},
	}
}

// usage is the count after so many steps, as JSON.
func (c *call) usage(steps int) json.RawMessage {
	out := steps * c.seq.Width
	return encode(usage{Prompt: c.seq.Prompt, Completion: &out, Total: c.seq.Prompt + out})
}

// json answers in one piece.
func (c *call) json(p *reply, q *request, a api) error {
	if c.fault.inStream {
		return c.end(Count{Failed: 1}, func() error {
			return p.whole(http.StatusOK, errorBody(http.StatusInternalServerError, "failed on command"), c.fault)
		})
	}
	body := c.head(q, a, a.object)
	text := c.whole()
	for i := range c.seq.Width {
		ch := choice{Index: i, Finish: &c.finish}
		if a.chat {
			ch.Message = &delta{Role: "assistant", Content: &text}
		} else {
			ch.Text = &text
		}
		body.Choices = append(body.Choices, ch)
	}
	if !c.fault.noUsage {
		body.Usage = c.usage(c.seq.Output)
	}
	if err := c.pause(c.fault.slow); err != nil {
		return err
	}
	c.sim.reportLoad(p.w.Header(), c.report)
	return c.end(Count{Finished: 1, Delivered: int64(c.seq.Output * c.seq.Width)}, func() error {
		return p.whole(http.StatusOK, encode(body), c.fault)
	})
}

// embed runs an embedding.
func (c *call) embed(p *reply, q *request) error {
	prompt := 0
	for _, t := range q.prompts {
		prompt += t
	}
	if err := c.submit(newSequence(prompt, 0, 1)); err != nil {
		c.refuse(p, http.StatusBadRequest, err.Error())
		return nil
	}
	if _, err := c.step(); err != nil {
		return err
	}
	type vector struct {
		Object    string    `json:"object"`
		Index     int       `json:"index"`
		Embedding []float64 `json:"embedding"`
	}
	body := struct {
		ID     string          `json:"id"`
		Object string          `json:"object"`
		Model  string          `json:"model"`
		Data   []vector        `json:"data"`
		Usage  json.RawMessage `json:"usage,omitempty"`
	}{ID: fmt.Sprintf("embd-%d", c.number), Object: "list", Model: q.Model}
	for i, t := range q.prompts {
		body.Data = append(body.Data, vector{"embedding", i, []float64{float64(t), 0.5, -0.5}})
	}
	if !c.fault.noUsage {
		body.Usage = encode(usage{Prompt: prompt, Total: prompt})
	}
	return c.end(Count{Finished: 1}, func() error { return p.whole(http.StatusOK, encode(body), c.fault) })
}

// models are the names listed.
func (s *Sim) models() []string {
	if len(s.cfg.Models) == 0 {
		return []string{"sim"}
	}
	return s.cfg.Models
}

func (s *Sim) serveModels(w http.ResponseWriter, _ *http.Request) {
	type model struct {
		ID      string `json:"id"`
		Object  string `json:"object"`
		Created int64  `json:"created"`
		Owner   string `json:"owned_by"`
	}
	list := []model{}
	for _, name := range s.models() {
		list = append(list, model{name, "model", s.start.Unix(), "modelsim"})
	}
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": list})
}

// errorBody is an error in the shape of an OpenAI-compatible engine.
func errorBody(status int, text string) []byte {
	kind := "invalid_request_error"
	if status >= http.StatusInternalServerError {
		kind = "server_error"
	}
	return encode(map[string]any{"error": map[string]any{
		"message": text, "type": kind, "param": nil, "code": status,
	}})
}

func writeError(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(errorBody(status, text)) // a client that is gone needs no answer
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(encode(v)) // a client that is gone needs no answer
}

// encode is JSON of values that always have one.
func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		return []byte(`{"error":{"message":"not encodable"}}`)
	}
	return b
}
