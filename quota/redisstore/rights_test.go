package redisstore_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota/redisstore"
)

const aclSecret = "s3cret-of-the-user"

// documentedUser is one of the ACL lines of docs/policy.md, as arguments of a
// server, for a prefix.
func documentedUser(t *testing.T, has, prefix string) []string {
	t.Helper()
	text, err := os.ReadFile("../../docs/policy.md")
	must(t, err)
	for _, line := range regexp.MustCompile(`(?m)^    user (weir on .*)$`).FindAllStringSubmatch(string(text), -1) {
		if strings.Contains(line[1], has) {
			return strings.Fields(strings.NewReplacer("SECRET", aclSecret, "weir:*", prefix+":*").Replace(line[1]))
		}
	}
	t.Fatal("docs/policy.md has no such line")
	return nil
}

func asUser(config policy.Redis) policy.Redis {
	config.Username, config.Password = "weir", policy.NewSecret("", aclSecret)
	return config
}

// logged is a log that can be read while it is written.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// The documented user may do all that the store does, and is denied nothing on
// the way: on a single server, on each node of a cluster, behind a sentinel
// that has users of its own. TestOnRedis and TestOnCluster are that user too.
func TestDocumentedRights(t *testing.T) {
	user := append([]string{"--user"}, documentedUser(t, "+evalsha", "t*")...)
	t.Run("single", func(t *testing.T) {
		t.Parallel()
		r := startRedis(t, user...)
		conform(t, asUser(policy.Redis{Addresses: []string{r.addr}}))
		denied(t, r)
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		servers, addrs := startCluster(t, user...)
		conform(t, asUser(policy.Redis{Addresses: addrs}))
		denied(t, servers...)
	})
	t.Run("sentinel", func(t *testing.T) {
		t.Parallel()
		master := startRedis(t, user...)
		conf := filepath.Join(t.TempDir(), "sentinel.conf")
		sentinelUser := strings.Join(documentedUser(t, "+sentinel|", "t*"), " ")
		must(t, os.WriteFile(conf, []byte("sentinel monitor weirs 127.0.0.1 "+port(master.addr)+" 1\n"+
			"user "+strings.ReplaceAll(sentinelUser, aclSecret, "of-the-sentinels")+"\nuser default on >boss ~* &* +@all\n"), 0o600))
		sentinel := startSentinel(t, conf)
		config := asUser(policy.Redis{Addresses: []string{sentinel.addr}, Master: "weirs", SentinelUsername: "weir",
			SentinelPassword: policy.NewSecret("", "of-the-sentinels")})
		conform(t, config)
		denied(t, master)
		config.SentinelPassword = policy.NewSecret("", "guess")
		s := patient(t, config)
		eventually(t, "a wrong password of the sentinel is seen", func() bool { return s.Stats().Away })
		if st := s.Stats(); st.Reason != redisstore.ReasonAuth {
			t.Errorf("a wrong password of the sentinel: reason %v, want auth", st.Reason)
		}
	})
}

// conform does what the suite does not reach: the store's own clock, renewals.
func conform(t *testing.T, config policy.Redis) {
	t.Helper()
	config.Prefix = "t"
	s := patient(t, config)
	fill(t, s, "acme", 20, 10)
	fill(t, s, "globex", 20, 10)
	began := time.Now()
	eventually(t, "units are renewed", func() bool {
		if n := units(t, s, "acme"); n != 10 {
			t.Fatalf("%d units count, want 10", n)
		}
		return time.Since(began) > redisstore.UnitLife+time.Second
	})
	if st := s.Stats(); st.Away || st.Outages != 0 || st.Local["error"] != 0 {
		t.Errorf("%+v, want no outage", st)
	}
}

// denied fails for anything that a server denied our user.
func denied(t *testing.T, servers ...*server) {
	t.Helper()
	for _, r := range servers {
		log, err := r.client(t).Do(ctx, "ACL", "LOG").Slice()
		must(t, err)
		for _, entry := range log {
			t.Errorf("denied: %v", entry)
		}
	}
}

// scriptCommands are the commands that a decision needs.
const scriptCommands = "get set del pttl pexpire time hget hgetall hset hdel zadd zrem zscore zcount zrange zremrangebyscore"

// A right that is missing at the start is an outage of reason auth and is
// named; once it is granted Redis decides.
func TestMissingRightsAreNamed(t *testing.T) {
	r := startRedis(t)
	admin := r.client(t)
	for _, command := range append(strings.Fields(scriptCommands), "eval evalsha", "key", "key to write", "key to read") {
		t.Run(command, func(t *testing.T) {
			rules := []any{"ACL", "SETUSER", "weir", "reset", "on", ">" + aclSecret, "~weir:*", "&*", "+@all"}
			lacks := "+" + command
			switch command {
			case "key":
				rules[6], lacks = "~other:*", "~weir:*"
			case "key to write":
				rules[6], lacks = "%R~weir:*", "~weir:*"
			case "key to read":
				rules[6], lacks = "%W~weir:*", "~weir:*"
			case "eval evalsha":
				rules, lacks = append(rules, "-eval", "-evalsha"), "eval"
			default:
				rules = append(rules, "-"+command)
			}
			must(t, admin.Do(ctx, rules...).Err())
			log := &logged{}
			s := open(t, asUser(policy.Redis{Addresses: []string{r.addr}, Timeout: 5 * time.Second, RetryAfterOutage: 20 * time.Millisecond}),
				redisstore.Options{Log: slog.New(slog.NewTextHandler(log, nil))})
			eventually(t, "it is away", func() bool { return s.Stats().Away })
			if st := s.Stats(); st.Reason != redisstore.ReasonAuth {
				t.Errorf("reason %v, want auth", st.Reason)
			}
			eventually(t, "the log names it", func() bool { return strings.Contains(log.String(), lacks) })
			must(t, admin.Do(ctx, "ACL", "SETUSER", "weir", "~weir:*", "+@all").Err())
			awaitReturn(t, s)
		})
	}
	checkLifetimes(t, admin)
}

// A right that is taken away under load: each script is cut where it needs
// it. That is an outage of reason auth, the log names the right, and when it
// is granted again every call is charged once.
func TestRightsTakenAway(t *testing.T) {
	r := startRedis(t)
	admin := r.client(t)
	must(t, admin.Do(ctx, "ACL", "SETUSER", "weir", "reset", "on", ">"+aclSecret, "~weir:*", "&*", "+@all").Err())
	log := &logged{}
	s := open(t, asUser(policy.Redis{Addresses: []string{r.addr}, Timeout: 5 * time.Second, RetryAfterOutage: 20 * time.Millisecond}),
		redisstore.Options{Log: slog.New(slog.NewTextHandler(log, nil))})
	l := startLoad(t, s, "acme", tokens(1e9, time.Hour), policy.Limit{Unit: policy.Concurrency, Max: 1000})
	l.after(t, 20)
	for _, command := range strings.Fields(scriptCommands) {
		if command == "hdel" || command == "zscore" || command == "zrange" { // of one path alone, which may not be met
			continue
		}
		must(t, admin.Do(ctx, "ACL", "SETUSER", "weir", "-"+command).Err())
		l.after(t, 20)
		eventually(t, command+" is missed", func() bool { return s.Stats().Away })
		if st := s.Stats(); st.Reason != redisstore.ReasonAuth {
			t.Errorf("%s: reason %v, want auth", command, st.Reason)
		}
		eventually(t, "the log names "+command, func() bool { return strings.Contains(log.String(), "+"+command) })
		must(t, admin.Do(ctx, "ACL", "SETUSER", "weir", "+@all").Err())
		eventually(t, "Redis decides again", func() bool { return !s.Stats().Away })
		l.after(t, 20)
	}
	l.end()
	awaitReturn(t, s)
	if got := used(t, s, "acme"); got != l.charged.Load() {
		t.Errorf("Redis counts %d, want %d, over %d outages", got, l.charged.Load(), s.Stats().Outages)
	}
	if st := s.Stats(); st.Dropped != 0 {
		t.Errorf("%+v, want nothing dropped", st)
	}
	if n := units(t, s, "acme"); n != 0 {
		t.Errorf("%d units count, want none", n)
	}
	checkLifetimes(t, admin)
}
