package redisstore_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"go.uber.org/goleak"

	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
	"github.com/weirproxy/weir/quota/redisstore"
	"github.com/weirproxy/weir/quota/storetest"
)

func TestMain(m *testing.M) {
	redisstore.LogTo(slog.New(slog.DiscardHandler))
	// A client that met many dial errors has a goroutine of its own that looks
	// once a second whether it was closed; nothing waits for it.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

// patient is a store whose decisions wait long enough for a busy machine, so
// that tests of counting never meet an outage.
func patient(t *testing.T, config policy.Redis) *redisstore.Store {
	t.Helper()
	config.Timeout = 30 * time.Second
	return open(t, config, redisstore.Options{})
}

func open(t *testing.T, config policy.Redis, o redisstore.Options) *redisstore.Store {
	t.Helper()
	s, err := redisstore.New(config, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestOnMiniredis(t *testing.T) {
	storetest.Run(t, func(t *testing.T) quota.Store {
		return patient(t, policy.Redis{Addresses: []string{miniredis.RunT(t).Addr()}})
	})
}

func TestOnRedis(t *testing.T) {
	r := startRedis(t, append([]string{"--user"}, documentedUser(t, "+evalsha", "t*")...)...)
	n := 0
	storetest.Run(t, func(t *testing.T) quota.Store {
		n++
		return patient(t, asUser(policy.Redis{Addresses: []string{r.addr}, Prefix: fmt.Sprint("t", n)}))
	})
	denied(t, r)
}

func TestConfigurationErrors(t *testing.T) {
	for _, tt := range []struct {
		config policy.Redis
		want   string
	}{
		{policy.Redis{}, "addresses"},
		{policy.Redis{Addresses: []string{"a:1"}, Prefix: "x{y"}, "prefix"},
		{policy.Redis{Addresses: []string{"a:1"}, TLS: true, CA: "/does/not/exist"}, "ca"},
		{policy.Redis{Addresses: []string{"a:1"}, TLS: true, Cert: "/does/not/exist"}, "cert"},
	} {
		s, err := redisstore.New(tt.config, redisstore.Options{})
		if err == nil {
			s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("New(%+v): %v, want an error about %s", tt.config, err, tt.want)
		}
	}
}
