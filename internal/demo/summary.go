package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"
)

// summary prints the end table, holds weir's ledger against the pools' own
// count, and fails where a promise was broken.
func (v *show) summary(ctx context.Context) error {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer stop()
	v.say("\n%s", header)
	var charged, broken int64
	var all row
	for _, c := range v.callers {
		n, err := v.charged(ctx, c.group.Tenant)
		if err != nil {
			return err
		}
		charged += n
		r := c.tally.read()
		v.say("%s", tableRow(c, n))
		all.returned += r.returned
		all.returnedOK += r.returnedOK
		all.admitted += r.admitted
		if r.bad > 0 {
			broken += int64(r.bad)
			v.say("  %s: %d requests ended in another way: %s", c.group.Class, r.bad, r.lastBad)
		}
	}
	fp16, int8 := v.fp16.Totals(), v.int8.Totals()
	pool := fp16.Prompt + fp16.Output + int8.Prompt + int8.Output
	v.say("\nqueued: admitted after a wait; tokens: charged by weir, the measuring at the start included.")
	for _, c := range v.callers {
		r := c.tally.read()
		first := r.sent - r.returned
		v.say("%s: %.0f %% of %d requests admitted at the first try.", c.group.Class, 100*float64(r.admitted-r.returnedOK)/float64(max(1, first)), first)
	}
	v.say("Tokens: weir charged %d, the pools counted %d.", charged, pool)
	if all.returned > 0 {
		v.say("Refused callers who came back at their hint: %d, of whom %d got in at once.", all.returned, all.returnedOK)
	}
	if charged != pool {
		return fmt.Errorf("weir charged %d tokens, the pools counted %d: they should be the same", charged, pool)
	}
	if broken > 0 {
		return fmt.Errorf("%d requests got neither an answer nor a true refusal", broken)
	}
	v.say("Every request got an answer or a refusal with a hint; nothing was lost. Try DEMO_HOLD=1 make demo.\n")
	return nil
}

// charged reads a tenant's token counter from weir, once nothing runs.
func (s *stage) charged(ctx context.Context, tenant string) (int64, error) {
	body, err := get(ctx, s.admin, "http://weir/debug/quotas?tenant="+url.QueryEscape(tenant))
	if err != nil {
		return 0, err
	}
	var out struct {
		Counters []struct {
			Unit string `json:"unit"`
			Used int64  `json:"used"`
		} `json:"counters"`
	}
	if err := json.Unmarshal(body, &out); err != nil {
		return 0, fmt.Errorf("/debug/quotas: %w", err)
	}
	var n int64
	for _, c := range out.Counters {
		if c.Unit == "tokens" {
			n += c.Used
		}
	}
	return n, nil
}

// waiting asks weir how many requests wait now; 0 when it does not say.
func (s *stage) waiting(ctx context.Context) int {
	body, err := get(ctx, s.admin, "http://weir/debug/queue")
	if err != nil {
		return 0
	}
	var out struct {
		Waiting int `json:"waiting"`
	}
	if json.Unmarshal(body, &out) != nil {
		return 0
	}
	return out.Waiting
}

func unixClient(path string) *http.Client {
	return &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		},
	}}
}

// get is the body of a 200 answer.
func get(ctx context.Context, c *http.Client, u string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u, http.NoBody)
	if err != nil {
		return nil, err
	}
	res, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", u, res.Status)
	}
	return body, nil
}

// listenerAddress asks an Envoy where its first listener listens.
func listenerAddress(ctx context.Context, c *http.Client) (string, error) {
	body, err := get(ctx, c, "http://envoy/listeners?format=json")
	if err != nil {
		return "", err
	}
	var out struct {
		Statuses []struct {
			Local struct {
				Socket struct {
					Address string `json:"address"`
					Port    int    `json:"port_value"`
				} `json:"socket_address"`
			} `json:"local_address"`
		} `json:"listener_statuses"`
	}
	if err := json.Unmarshal(body, &out); err != nil {
		return "", fmt.Errorf("/listeners: %w", err)
	}
	if len(out.Statuses) == 0 {
		return "", errors.New("envoy has no listener")
	}
	s := out.Statuses[0].Local.Socket
	return fmt.Sprintf("%s:%d", s.Address, s.Port), nil
}

func tail(b []byte, n int) []byte { return b[max(0, len(b)-n):] }
