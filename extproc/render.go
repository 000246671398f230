package extproc

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
	"time"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/policy"
)

// Names of the headers that weir writes.
const (
	headerReason    = "x-weir-reason"
	headerRequestID = "x-weir-request-id"
	headerVariant   = "x-weir-variant"
	headerNotice    = "x-weir-notice"
	headerPool      = "x-weir-pool"
	headerTenant    = "x-weir-tenant"
	headerClass     = "x-weir-class"
	headerWaited    = "x-weir-waited-ms"
)

// decisionNamespace is the dynamic metadata that access logs read.
const decisionNamespace = "weir.decision"

// scene is what a refusal's rendering depends on beside the decision.
type scene struct {
	now       time.Time
	id        string // of the request; may be empty
	grpc      bool   // the caller speaks gRPC
	hint      policy.RetryAfter
	challenge string // www-authenticate; "" = none
	param     string // the field at fault, for the OpenAI shape; "" = null
}

// render makes the local answer of a refusal. Status, type, code and words
// are the reason table's; nothing is chosen here. The decision's RetryAfter
// is final (jitter is in it): it is only written down.
func render(d *admission.Decision, s *scene) *immediate {
	row := d.Reason.Row()
	im := &immediate{status: row.HTTP, grpc: -1, details: "weir_" + row.Name}
	im.header = append(make([]field, 0, 12),
		field{headerReason, row.Name},
		field{"x-envoy-ratelimited", "true"})
	if s.id != "" {
		im.header = append(im.header, field{headerRequestID, s.id})
	}
	if d.Waited > 0 {
		im.header = append(im.header, field{headerWaited, milliseconds(d.Waited)})
	}
	if s.challenge != "" {
		im.header = append(im.header, field{"www-authenticate", s.challenge})
	}
	im.header = appendHint(im.header, d, s)
	im.header = appendQuota(im.header, d.Quota)
	message := row.Message
	if d.Detail != "" && d.Detail != message {
		message += " " + d.Detail
	}
	if s.grpc {
		im.grpc = row.GRPC
		im.body = []byte(grpcMessage(message))
		return im
	}
	im.header = append(im.header, field{"content-type", "application/json"})
	im.body = errorBody(message, row.Type, row.Code, s.param)
	return im
}

// appendHint writes Q7: whole seconds rounded up, exact milliseconds, the
// instant, and gRPC's push-back. Where no retry helps, clients are told so; the
// wait stands beside it where there is one, for who asks later by its own will.
func appendHint(h []field, d *admission.Decision, s *scene) []field {
	if d.RetryAfter <= 0 {
		if d.Reason.Row().Advice != admission.AdviceNone || d.Reason == admission.Internal {
			return h
		}
		if s.grpc {
			return append(h, field{headerPushback, stop})
		}
		return append(h, field{headerShouldRetry, never})
	}
	at := s.now.Add(d.RetryAfter)
	reset := at.Unix()
	if at.Nanosecond() > 0 {
		reset++
	}
	h = append(h,
		field{headerRetryAfter, retryAfter(d.RetryAfter, s.hint.Fractional)},
		field{headerRetryMS, milliseconds(d.RetryAfter)},
		field{"x-ratelimit-reset", strconv.FormatInt(reset, 10)})
	switch {
	case s.grpc:
		h = append(h, field{headerPushback, pushbackValue(d.RetryAfter, d.NoRetry)})
	case d.NoRetry:
		h = append(h, field{headerShouldRetry, never})
	}
	return h
}

// retryAfter is RFC 9110's whole number of seconds, from 1; with fractional
// the source's literal form (1.5).
func retryAfter(d time.Duration, fractional bool) string {
	if fractional {
		return strconv.FormatFloat(math.Ceil(d.Seconds()*1000)/1000, 'f', -1, 64)
	}
	return strconv.FormatInt(max(1, int64((d+time.Second-1)/time.Second)), 10)
}

// milliseconds is exact to the microsecond.
func milliseconds(d time.Duration) string {
	return strconv.FormatFloat(float64(d.Round(time.Microsecond))/float64(time.Millisecond), 'f', -1, 64)
}

// appendQuota writes the tightest limit by the names that OpenAI's clients
// know: x-ratelimit-limit-requests and so on, resets as durations.
func appendQuota(h []field, q *admission.QuotaView) []field {
	if q == nil {
		return h
	}
	unit := ""
	switch q.Limit.Unit {
	case policy.Requests:
		unit = "requests"
	case policy.Tokens, policy.InputTokens, policy.OutputTokens:
		unit = "tokens"
	case policy.Concurrency:
		unit = "concurrency"
	default:
		return h
	}
	h = append(h,
		field{"x-ratelimit-limit-" + unit, strconv.FormatInt(q.Limit.Max, 10)},
		field{"x-ratelimit-remaining-" + unit, strconv.FormatInt(max(0, q.Remaining), 10)})
	if q.Limit.Unit == policy.Concurrency {
		return h // ends with a request, not at a time
	}
	return append(h, field{"x-ratelimit-reset-" + unit, q.Reset.Round(time.Millisecond).String()})
}

// errorBody is the shape of OpenAI's errors, without a newline at its end.
func errorBody(message, typ, code, param string) []byte {
	var out struct {
		Error struct {
			Message string  `json:"message"`
			Type    string  `json:"type"`
			Param   *string `json:"param"`
			Code    string  `json:"code"`
		} `json:"error"`
	}
	out.Error.Message, out.Error.Type, out.Error.Code = message, typ, code
	if param != "" {
		out.Error.Param = &param
	}
	return encodeJSON(out)
}

func encodeJSON(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil { // only types that cannot fail are given
		return []byte("{}")
	}
	return bytes.TrimRight(b.Bytes(), "\n")
}

// grpcMessage is short and plain: Envoy percent-encodes it into a header.
func grpcMessage(s string) string {
	const longest = 512
	if len(s) > longest {
		s = s[:longest]
	}
	return printable(s)
}

// record is the decision as dynamic metadata for access logs.
func record(r *admission.Request, d *admission.Decision) namespace {
	f := make([]datum, 0, 14)
	f = append(f, text("reason", d.Reason.String()), text("action", d.Action.String()))
	if r != nil {
		f = append(f, text("id", r.ID), text("class", r.Class.String()))
		if r.Identity != nil && r.Identity.Tenant != "" {
			f = append(f, text("tenant", r.Identity.Tenant))
		}
		if r.Model != "" {
			f = append(f, text("model", r.Model))
		}
		if r.Session != "" {
			f = append(f, truth("session", true))
		}
		if d.Policy == "" && r.Policy != nil {
			f = append(f, text("policy", r.Policy.ID()))
		}
	}
	if d.Policy != "" {
		f = append(f, text("policy", d.Policy))
	}
	if d.Pool != "" {
		f = append(f, text("pool", d.Pool), text("variant", string(d.Variant)))
	}
	f = append(f, number("waited_ms", float64(d.Waited)/float64(time.Millisecond)))
	if d.Degraded {
		f = append(f, truth("degraded", true))
	}
	if d.Shadow {
		f = append(f, truth("shadow", true), text("intended", d.Intended.String()))
	}
	return namespace{name: decisionNamespace, fields: f}
}

// formatNumber writes an attribute's number as Envoy would: no exponent.
func formatNumber(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }
