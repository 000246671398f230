package extproc

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/policy"
)

// A body near the limit goes on whole, at its own length, within the limit and
// as JSON, or is refused: whatever a key demands, a pool takes and weir asks.
func TestEditedBodiesStayWithinTheLimit(t *testing.T) {
	const most = 600
	for _, kept := range []policy.BodyPriority{policy.RemovePriority, policy.KeepPriority} {
		for _, scopes := range []string{"", "max_tokens<=16", "max_tokens<=16 n=1 priority=3"} {
			for pool, told := range map[string][2]bool{"none": {}, "this one": {false, true}, "another": {true, false}} {
				for _, start := range []string{`"stream":true,`, `"stream":true,"priority":-5,"nvext":{"priority":1},`, ``} {
					p := rules(func(p *policy.Policy) {
						p.Server.MaxBody, p.Body.Priority = most, kept
						for i, takes := range told {
							if takes {
								p.Pools[i].Priority = policy.VLLMPriority
							}
						}
					})
					name := fmt.Sprintf("kept %d, scopes %q, told %s, %s", kept, scopes, pool, start)
					h := openWith(t, newTestDesk(), p)
					for size := most - 150; size <= most; size += 3 {
						body := `{"model":"deepseek-v4",` + start + `"messages":[{"role":"user","content":"`
						body += strings.Repeat("x", size-len(body)-4) + `"}]}`
						id := caller()
						id.Params = params(strings.Fields(scopes)...)
						e := h.call()
						e.send(withMetadata(chatHead("content-length", strconv.Itoa(len(body)), "accept-encoding", "br, gzip"), id.Fields()))
						e.want("request_headers")
						e.send(reqBody(body, true))
						r := e.next()
						_ = e.hangUp(true)
						h.ended()
						if im := r.GetImmediateResponse(); im != nil {
							if got := int(im.GetStatus().GetCode()); got != admission.BodyTooLarge.Row().HTTP && got != admission.ParameterDenied.Row().HTTP {
								t.Fatalf("%s, %d bytes: status %d: %s", name, size, got, im.GetBody())
							}
							continue
						}
						set, _ := mutations(r)
						out := common(r).GetBodyMutation().GetBody()
						if out == nil {
							if set["content-length"] != "" {
								t.Fatalf("%s, %d bytes: a length without a body", name, size)
							}
							continue
						}
						if len(out) > most || set["content-length"] != strconv.Itoa(len(out)) || !json.Valid(out) {
							t.Fatalf("%s: %d bytes became %d, content-length %s: %s", name, size, len(out), set["content-length"], out)
						}
						if hides := strings.Contains(string(out), "include_usage"); hides != (set["accept-encoding"] == "identity") {
							t.Fatalf("%s: asks for usage %v, accept-encoding %q", name, hides, set["accept-encoding"])
						}
					}
				}
			}
		}
	}
}
