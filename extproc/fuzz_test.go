package extproc

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/proto"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/policy"
)

// script is what a byte of the fuzzer's input sends.
func script() []*extprocv3.ProcessingRequest {
	stream := `{"model":"deepseek-v4","stream":true,"messages":[{"role":"user","content":"x"}]}`
	return []*extprocv3.ProcessingRequest{
		chatHead(), chatHead(), grpcHead(), grpcHead("grpc-timeout", "1S"),
		head(caller(), true, ":method", "GET", ":path", "/health"),
		head(caller(), true, ":method", "GET", ":path", "/v1/models"),
		head(nil, false, ":method", "POST", ":path", "/v1/chat/completions"),
		post(caller(), "/v1/audio/transcriptions"),
		reqBody(chatBody, true), reqBody(stream, true), reqBody(stream, false), reqBody("{", true), reqBody("", true),
		reqTrailers(),
		answered("200", via, false, "content-type", "text/event-stream"), answered("200", via, false, "content-type", "application/json"),
		answered("200", via, true), answered("503", via, true), answered("200", "", false),
		answered("503", "no_healthy_upstream", false), answered("504", "stream_idle_timeout", true), answered("200", via, true, "grpc-status", "14"),
		chunk("data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\nda", false), chunk("ta: [DONE]\n\n", false), chunk("", true), chunk("\x1f\x8b\xff", true),
		trailers("grpc-status", "0"), trailers("grpc-status", "8"),
	}
}

// Bytes behind the script's messages.
const (
	grant = 200 + iota
	deny
	react
)

// run plays one sequence against a conversation, without a wire, and checks
// what must hold whatever comes.
type run struct {
	t        testing.TB
	desk     *testDesk
	talk     conversation
	now      time.Time
	asked    []phase // unanswered messages, in order
	judged   bool
	last     bool // an immediate answer was given
	override map[phase]bool
}

func newRun(t testing.TB, d *testDesk, p *policy.Policy) *run {
	r := &run{t: t, desk: d, now: at, override: map[phase]bool{}}
	r.talk.o = &Options{Desk: d, Policy: func() *policy.Policy { return p }}
	r.talk.ctx = context.Background()
	return r
}

// hear checks the replies that the last event left.
func (r *run) hear() {
	for i := range r.talk.out {
		m := &r.talk.out[i]
		if r.last {
			r.t.Fatalf("%v behind an immediate answer", m.phase)
		}
		at := -1
		for j, p := range r.asked {
			if p == m.phase {
				at = j
				break
			}
		}
		if at < 0 {
			r.t.Fatalf("a reply to %v, unanswered are %v", m.phase, r.asked)
		}
		if m.timeout > 0 {
			if r.override[m.phase] || !m.phase.request() {
				r.t.Fatalf("a second override, or one for %v", m.phase)
			}
			r.override[m.phase] = true
			continue
		}
		if at > 0 && m.phase.request() {
			r.t.Fatalf("a reply to %v goes ahead of %v", m.phase, r.asked[0])
		}
		r.asked = append(r.asked[:at:at], r.asked[at+1:]...)
		r.last = m.immediate != nil
		r.judged = r.judged || r.last || len(m.metadata) > 0 || !m.phase.request() || r.talk.state == aside // its first message came late
		if out := unmarshal(r.t, encode(m)); out.GetResponse() == nil {
			r.t.Fatalf("a reply without a kind to %v", m.phase)
		}
	}
	r.talk.out = r.talk.out[:0]
}

// play runs the sequence to its end.
func (r *run) play(data []byte, messages []*extprocv3.ProcessingRequest) {
	for _, b := range data {
		r.now = r.now.Add(time.Millisecond)
		var err error
		switch v := r.desk.last(); {
		case b < 200:
			m, bad := decode(marshal(r.t, messages[int(b)%len(messages)]))
			if bad != nil {
				r.t.Fatal(bad)
			}
			if !r.last {
				r.asked = append(r.asked, m.phase)
			}
			err = r.talk.receive(r.now, &m)
		case v == nil:
		case b == grant:
			v.settle(admission.Admitted)
		case b == deny:
			v.settle(admission.ExpiredDrop)
		default:
			if r.talk.state == held && !r.talk.visit.Waiting() {
				r.talk.decide(r.now)
			}
		}
		r.hear()
		if err != nil {
			break
		}
	}
	err := r.talk.ended(false, false)
	if (err == nil) != r.judged {
		r.t.Fatalf("the end is %v, judged %v", err, r.judged)
	}
	if again := r.talk.ended(false, false); (again == nil) != (err == nil) {
		r.t.Fatalf("a second end is %v, the first was %v", again, err)
	}
	r.desk.even(r.t)
	if n := len(r.desk.ends); n > 1 {
		r.t.Fatalf("%d ends", n)
	}
}

// desks are the words that a fuzzed desk has.
func fuzzDesk(b byte) *testDesk {
	switch b % 4 {
	case 0:
		return newTestDesk(verdict{wait: true})
	case 1:
		return newTestDesk(verdict{reason: admission.QueueFull})
	case 2:
		return newTestDesk(verdict{reason: admission.DegradedExpiry})
	}
	return newTestDesk()
}

func FuzzConversation(f *testing.F) {
	f.Add([]byte{0, 0, 8, 200, 202, 14, 22, 23, 24})
	f.Add([]byte{0, 2, 20})
	f.Add([]byte{3, 0, 9, 14, 22, 22, 26})
	f.Add([]byte{0, 2, 10, 12, 200, 20, 202})
	f.Add([]byte{3, 14, 24})
	p, messages := rules(), script()
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) == 0 || len(data) > 64 {
			return
		}
		newRun(t, fuzzDesk(data[0]), p).play(data[1:], messages)
	})
}

// TestRandomConversations plays seeded sequences that lean on the usual
// order, so that every state is left in every way.
func TestRandomConversations(t *testing.T) {
	p, messages := rules(), script()
	rng := rand.New(rand.NewPCG(1, 2))
	usual := [][]byte{{0, 8, 14, 22, 23, 24}, {2, 200, 202, 15, 26}, {0, 9, 202, 19, 24}, {7, 10, 202, 16}, {4, 12, 14, 24}}
	n := 20000
	if testing.Short() {
		n = 2000
	}
	for range n {
		data := append([]byte(nil), usual[rng.IntN(len(usual))]...)
		for range rng.IntN(3) {
			i, b := rng.IntN(len(data)+1), byte(rng.IntN(len(messages)))
			if rng.IntN(3) == 0 {
				b = byte(grant + rng.IntN(3))
			}
			data = append(data[:i:i], append([]byte{b}, data[i:]...)...)
		}
		data = data[:rng.IntN(len(data)+1)]
		newRun(t, fuzzDesk(byte(rng.IntN(4))), p).play(data, messages)
	}
}

// FuzzDecode: no bytes on the wire make a stream panic or reply twice, and
// what protobuf can read is read alike.
func FuzzDecode(f *testing.F) {
	for _, m := range script() {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	p := rules()
	f.Fuzz(func(t *testing.T, data []byte) {
		readAlike(t, data)
		m, err := decode(data)
		if err != nil {
			return
		}
		r := newRun(t, newTestDesk(), p)
		r.asked = []phase{m.phase}
		_ = r.talk.receive(at, &m)
		r.hear()
		_ = r.talk.ended(false, false)
		r.desk.even(t)
	})
}

// request reports whether p belongs to the request's direction.
func (p phase) request() bool { return p >= requestHeaders && p <= requestTrailers }
