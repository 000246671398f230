package redisstore_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota/redisstore"
)

// What is wrong with Redis at the start is seen before the first request: an
// outage with its reason, and one line that says what it is.
func TestAwayAtTheStart(t *testing.T) {
	r, second := startRedis(t, "--requirepass", aclSecret), startRedis(t)
	hung := startProxy(t, second.addr)
	hung.mode.Store(hang)
	password := policy.NewSecret("", aclSecret)
	for name, tt := range map[string]struct {
		config  policy.Redis
		reasons string
		line    string
	}{
		"down":             {policy.Redis{Addresses: []string{freePort(t)}}, "connection", "refused"},
		"hung":             {policy.Redis{Addresses: []string{hung.addr}}, "timeout", ""},
		"no password":      {policy.Redis{Addresses: []string{r.addr}}, "auth", "NOAUTH"},
		"wrong password":   {policy.Redis{Addresses: []string{r.addr}, Password: policy.NewSecret("", "guess")}, "auth", "WRONGPASS"},
		"no such database": {policy.Redis{Addresses: []string{r.addr}, Password: password, DB: 99}, "protocol", "DB index"},
		"no cluster":       {policy.Redis{Addresses: []string{second.addr, freePort(t)}}, "protocol connection clusterdown", ""},
		"no sentinel":      {policy.Redis{Addresses: []string{second.addr}, Master: "weirs"}, "protocol connection", ""},
	} {
		t.Run(name, func(t *testing.T) {
			log := &logged{}
			s := open(t, tt.config, redisstore.Options{Log: slog.New(slog.NewTextHandler(log, nil))})
			eventually(t, "it is away", func() bool { return s.Stats().Away })
			if st := s.Stats(); !strings.Contains(tt.reasons, st.Reason.String()) || st.Outages != 1 {
				t.Errorf("%+v, want reason %s and one outage", st, tt.reasons)
			}
			if v := reserve(t, s, "a", claim("acme", 1, tokens(10, time.Hour))); !v.Allowed || !v.Local {
				t.Errorf("%+v, want a local decision", v)
			}
			must(t, s.Close())
			if lines := log.String(); strings.Count(lines, "\n") != 1 || !strings.Contains(lines, "redis is away") || !strings.Contains(lines, tt.line) {
				t.Errorf("the log, want one line about %s:\n%s", tt.line, lines)
			}
		})
	}
}
