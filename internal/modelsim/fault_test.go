package modelsim_test

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/modelsim"
)

const (
	chatPath   = "/v1/chat/completions"
	streamBody = `{"model":"m",` + hello + `,"max_tokens":8,"stream":true,"stream_options":{"include_usage":true}}`
	jsonBody   = `{"model":"m",` + hello + `,"max_tokens":8}`
)

var (
	served  = modelsim.Count{Started: 1, Finished: 1, Prompt: helloTokens, Output: 8, Delivered: 8}
	failed  = modelsim.Count{Started: 1, Failed: 1}
	aborted = modelsim.Count{Started: 1, Aborted: 1}
)

// answer is what a client saw.
type answer struct {
	status int
	header http.Header
	body   string
	err    error // of the request or the body
}

func (r *rig) try(body, fault string) answer {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 10*time.Second)
	defer cancel()
	resp, err := r.post(ctx, chatPath, body, modelsim.FaultHeader, fault)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(b), err}
}

func TestFaults(t *testing.T) {
	tests := []struct {
		fault string
		body  string
		want  modelsim.Count
		check func(a answer) bool
	}{
		{"status=503", jsonBody, failed, func(a answer) bool {
			return a.status == 503 && strings.Contains(a.body, `"code":503`) && strings.Contains(a.body, "server_error")
		}},
		{"status=429", streamBody, failed, func(a answer) bool { return a.status == 429 && strings.Contains(a.body, "invalid_request_error") }},
		{"reset", jsonBody, aborted, func(a answer) bool { return a.status == 0 && a.err != nil }},
		{"late-headers=30ms", jsonBody, served, func(a answer) bool { return a.status == 200 }},
		{"slow=2ms", streamBody, served, func(a answer) bool { return a.status == 200 && strings.HasSuffix(a.body, "data: [DONE]\n\n") }},
		{"no-usage", streamBody, served, func(a answer) bool { return !strings.Contains(a.body, "usage") && strings.Contains(a.body, "[DONE]") }},
		{"no-usage", jsonBody, served, func(a answer) bool { return !strings.Contains(a.body, "usage") }},
		{"no-length", jsonBody, served, func(a answer) bool {
			return a.header.Get("Content-Length") == "" && strings.Contains(a.body, `"total_tokens":13`)
		}},
		{"", jsonBody, served, func(a answer) bool { return a.header.Get("Content-Length") != "" }},
		{"gzip", jsonBody, served, func(a answer) bool { return strings.Contains(unzip(a), `"total_tokens":13`) }},
		{"gzip", streamBody, served, func(a answer) bool { return strings.HasSuffix(unzip(a), "data: [DONE]\n\n") }},
		{"goaway", jsonBody, served, func(a answer) bool { return a.status == 200 }},
		{"error-in-stream", jsonBody, modelsim.Count{Started: 1, Failed: 1, Prompt: helloTokens, Output: 8}, func(a answer) bool {
			return a.status == 200 && strings.HasPrefix(a.body, `{"error":`)
		}},
		{"gzip, slow=1ms", streamBody, served, func(a answer) bool { return strings.Contains(unzip(a), "[DONE]") }},
	}
	for _, tt := range tests {
		t.Run(tt.fault, func(t *testing.T) {
			r := start(t, modelsim.Config{})
			if a := r.try(tt.body, tt.fault); !tt.check(a) {
				t.Errorf("answer = %+v", a)
			}
			if got := r.idle(); got.Count != tt.want {
				t.Errorf("totals = %+v, want %+v", got.Count, tt.want)
			}
		})
	}
}

func unzip(a answer) string {
	if a.header.Get("Content-Encoding") != "gzip" {
		return "not compressed"
	}
	z, err := gzip.NewReader(strings.NewReader(a.body))
	if err != nil {
		return err.Error()
	}
	b, err := io.ReadAll(z)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// Faults in the middle: four of eight tokens are delivered, the rest is lost.
func TestFaultsMidway(t *testing.T) {
	tests := []struct {
		fault   string
		failed  int64
		aborted int64
		check   func(a answer, list []string) bool
	}{
		{"cut", 0, 1, func(a answer, list []string) bool { return a.err == nil && len(list) == 4 }},
		{"reset-mid", 0, 1, func(a answer, list []string) bool { return a.err != nil && len(list) <= 4 }},
		{"error-in-stream", 1, 0, func(a answer, list []string) bool {
			return a.err == nil && len(list) == 6 && strings.HasPrefix(list[4], `{"error":`) && list[5] == "[DONE]"
		}},
	}
	for _, tt := range tests {
		t.Run(tt.fault, func(t *testing.T) {
			r := start(t, modelsim.Config{})
			a := r.try(streamBody, tt.fault)
			if !tt.check(a, events(a.body)) {
				t.Errorf("answer = %+v", a)
			}
			got := r.idle()
			if got.Delivered != 4 || got.Prompt != helloTokens || got.Failed != tt.failed || got.Aborted != tt.aborted || got.Finished != 0 {
				t.Errorf("totals = %+v", got.Count)
			}
			if l := r.Load(); l.Running != 0 || l.KVUsed != 0 {
				t.Errorf("load = %+v", l)
			}
		})
	}
}

// A JSON answer that is cut breaks its promise of length.
func TestCutJSON(t *testing.T) {
	r := start(t, modelsim.Config{})
	if a := r.try(jsonBody, "cut"); !errors.Is(a.err, io.ErrUnexpectedEOF) {
		t.Errorf("answer = %+v, want an unexpected end", a)
	}
	if got := r.idle(); got.Aborted != 1 || got.Finished != 0 || got.Delivered != 0 {
		t.Errorf("totals = %+v", got.Count)
	}
}

// hang answers nothing until the client goes.
func TestHang(t *testing.T) {
	r := start(t, modelsim.Config{})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	resp, err := r.post(ctx, chatPath, jsonBody, modelsim.FaultHeader, "hang")
	if err == nil {
		resp.Body.Close()
		t.Fatalf("status %d, want none", resp.StatusCode)
	}
	if got := r.idle(); got.Count != aborted {
		t.Errorf("totals = %+v, want %+v", got.Count, aborted)
	}
}

func TestUnknownFault(t *testing.T) {
	r := start(t, modelsim.Config{})
	for _, f := range []string{"explode", "status=200", "status=x", "slow=fast", "slow=-1s", "late-headers=2h", "reset=1", "=", "hang,explode"} {
		if a := r.try(jsonBody, f); a.status != 400 || !strings.Contains(a.body, "fault") {
			t.Errorf("fault %q: %+v, want 400", f, a)
		}
	}
	if got := r.Totals(); got.Started != 0 {
		t.Errorf("totals = %+v, want none", got.Count)
	}
}

func (r *rig) rule(body string) int {
	r.t.Helper()
	resp, text := r.must("/sim/fault", body)
	r.t.Log(text)
	return resp.StatusCode
}

// A rule hits requests that ask for nothing themselves.
func TestFaultRule(t *testing.T) {
	statuses := func(r *rig, n int) (bad int) {
		for range n {
			if a := r.try(jsonBody, ""); a.status == 503 {
				bad++
			}
		}
		return bad
	}
	t.Run("next", func(t *testing.T) {
		r := start(t, modelsim.Config{})
		if s := r.rule(`{"fault":"status=503","next":3}`); s != 200 {
			t.Fatalf("status %d", s)
		}
		if bad := statuses(r, 6); bad != 3 {
			t.Errorf("%d failed, want 3", bad)
		}
	})
	t.Run("rate", func(t *testing.T) {
		r := start(t, modelsim.Config{Seed: 7})
		if err := r.SetFault(modelsim.FaultRule{Fault: "status=503", Rate: 0.5}); err != nil {
			t.Fatal(err)
		}
		if bad := statuses(r, 100); bad < 25 || bad > 75 {
			t.Errorf("%d of 100 failed, want about 50", bad)
		}
		r.ClearFault()
		if bad := statuses(r, 5); bad != 0 {
			t.Errorf("%d failed after the rule was cleared", bad)
		}
	})
	t.Run("path, and the request's own fault first", func(t *testing.T) {
		r := start(t, modelsim.Config{})
		r.rule(`{"fault":"status=503","path":"/v1/embeddings"}`)
		if bad := statuses(r, 2); bad != 0 {
			t.Errorf("%d of another path failed", bad)
		}
		r.rule(`{"fault":"status=503"}`)
		if a := r.try(jsonBody, "status=500"); a.status != 500 {
			t.Errorf("status %d, want the request's own 500", a.status)
		}
	})
	t.Run("refused", func(t *testing.T) {
		r := start(t, modelsim.Config{})
		for _, body := range []string{`{`, `{"fault":"explode"}`, `{"fault":"reset","rate":2}`, `{"fault":"reset","next":-1}`, `{"faults":"reset"}`} {
			if s := r.rule(body); s != 400 {
				t.Errorf("rule %s: status %d, want 400", body, s)
			}
		}
	})
}
