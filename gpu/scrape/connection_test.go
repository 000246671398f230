package scrape

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/policy"
)

// raw serves connections by hand: each is given to the function with its
// number from 1 on, and closed when it returns.
func raw(t *testing.T, conn func(n int, c net.Conn, r *bufio.Reader)) (s *Source, conns *atomic.Int32) {
	t.Helper()
	listen, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	conns = new(atomic.Int32)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := listen.Accept()
			if err != nil {
				return
			}
			n := int(conns.Add(1))
			go func() { conn(n, c, bufio.NewReader(c)); _ = c.Close() }()
		}
	}()
	t.Cleanup(func() { _ = listen.Close(); <-done })
	s, err = New("node", policy.TelemetrySource{Kind: policy.KindVLLM, URL: "http://" + listen.Addr().String() + "/metrics"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s, conns
}

// asked reads a request; false = the other side is gone.
func asked(r *bufio.Reader) bool {
	_, err := http.ReadRequest(r)
	return err == nil
}

func waits(waiting int) string {
	return whole(fmt.Sprintf("vllm:num_requests_waiting %d\n", waiting))
}

func whole(text string) string {
	return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s", len(text), text)
}

// A connection serves the next look only if nothing of the last answer can be
// taken for the next one; one that the server gave up is replaced at once.
func TestConnectionIsKeptOrNot(t *testing.T) {
	good := waits(7)
	tests := map[string]struct {
		answers []string // of the first connection, "" = closed instead; others say the good page
		want    []string // what each look gives: "" = the page, else a part of the error
		conns   int32
	}{
		"kept":                           {[]string{good, good, good}, []string{"", "", ""}, 1},
		"chunks":                         {[]string{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1c\r\nvllm:num_requests_waiting 7\n\r\n0\r\n\r\n", good}, []string{"", ""}, 1},
		"closed while idle":              {[]string{good, ""}, []string{"", ""}, 2},
		"the idle time is over":          {[]string{good, "HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"}, []string{"", "status 408", ""}, 2},
		"says that it closes":            {[]string{strings.Replace(good, "\r\n", "\r\nConnection: close\r\n", 1)}, []string{"", ""}, 2},
		"HTTP/1.0":                       {[]string{"HTTP/1.0 200 OK\r\n\r\nvllm:num_requests_waiting 7\n"}, []string{"", ""}, 2},
		"more than its length":           {[]string{good + waits(99)}, []string{"", ""}, 2},
		"an error with a text":           {[]string{"HTTP/1.1 500 No\r\nContent-Length: 3\r\n\r\nno\n"}, []string{"status 500", ""}, 2},
		"an error without one":           {[]string{"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n", good}, []string{"status 500", ""}, 1},
		"that it goes on, first":         {[]string{"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + good, good}, []string{"", ""}, 1},
		"that it goes on, often":         {[]string{strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 6) + good}, []string{"", ""}, 2},
		"another protocol":               {[]string{"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n"}, []string{"status 101", ""}, 2},
		"not HTTP":                       {[]string{"SSH-2.0-OpenSSH_9.6\r\n\r\n"}, []string{"malformed", ""}, 2},
		"a header without end":           {[]string{"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", maxHeader)}, []string{"65536 bytes", ""}, 2},
		"closed instead of the first":    {[]string{""}, []string{"EOF", ""}, 2},
		"closed in the middle of a head": {[]string{good, "HTTP/1.1 200"}, []string{"", "EOF", ""}, 2},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s, conns := raw(t, func(n int, c net.Conn, r *bufio.Reader) {
				for i := 0; asked(r); i++ {
					switch {
					case n > 1:
						_, _ = c.Write([]byte(good))
					case i >= len(tt.answers) || tt.answers[i] == "":
						return
					default:
						_, _ = c.Write([]byte(tt.answers[i]))
						if strings.HasPrefix(tt.answers[i], "HTTP/1.0") || strings.HasSuffix(tt.answers[i], "200") {
							return
						}
					}
				}
			})
			for i, want := range tt.want {
				got, err := s.Sample(t.Context())
				switch {
				case want == "" && (err != nil || got.Waiting != gpu.Some(7)):
					t.Errorf("look %d = %+v, %v; want the page", i, got.Waiting, err)
				case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
					t.Errorf("look %d = %+v, %v; want an error with %q", i, got.Waiting, err, want)
				}
			}
			if n := conns.Load(); n != tt.conns {
				t.Errorf("%d connections, want %d", n, tt.conns)
			}
		})
	}
}

// What comes too late is never the answer of the next look.
func TestLateAnswer(t *testing.T) {
	for name, begin := range map[string]func(context.Context) (context.Context, context.CancelFunc){
		"deadline": func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 30*time.Millisecond)
		},
		"cancelled": func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(30*time.Millisecond, cancel)
			return ctx, cancel
		},
	} {
		t.Run(name, func(t *testing.T) {
			late := make(chan struct{})
			defer close(late)
			s, conns := raw(t, func(n int, c net.Conn, r *bufio.Reader) {
				for asked(r) {
					if n == 1 {
						<-late
					}
					_, _ = c.Write([]byte(waits(10 * n)))
				}
			})
			ctx, cancel := begin(t.Context())
			defer cancel()
			got, err := s.Sample(ctx)
			<-ctx.Done() // the connection's deadline may strike a moment before
			if !errors.Is(err, ctx.Err()) {
				t.Errorf("Sample = %+v, %v; want %v", got.Waiting, err, ctx.Err())
			}
			for range 2 {
				if got, err := s.Sample(t.Context()); err != nil || got.Waiting != gpu.Some(20) {
					t.Errorf("next Sample = %+v, %v; want the second connection's page", got.Waiting, err)
				}
			}
			if n := conns.Load(); n != 2 {
				t.Errorf("%d connections, want 2", n)
			}
		})
	}
}

// What goes out: the address's user where there is no token, and no token that
// would end its line.
func TestCredentials(t *testing.T) {
	seen := make(chan string, 1)
	s := serve(t, policy.KindVLLM, func(w http.ResponseWriter, r *http.Request) {
		seen <- r.Host + " " + r.RequestURI + " " + r.Header.Get("Authorization")
		text("vllm:num_requests_waiting 7\n")(w, r)
	})
	host := s.client.request.URL.Host
	for _, tt := range []struct{ user, token, want string }{
		{"", "", ""}, {"", "t0ken", "Bearer t0ken"}, {"u:p@", "", "Basic dTpw"}, {"u:p@", "t0ken", "Bearer t0ken"}, {"", "t0\r\nX-Other: ken", "control"},
	} {
		source := policy.TelemetrySource{Kind: policy.KindVLLM, URL: "http://" + tt.user + host + "/metrics?a=b#c"}
		if tt.token != "" {
			source.Token = policy.NewSecret("", tt.token)
		}
		s, err := New("node", source, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.Sample(t.Context())
		_ = s.Close()
		if tt.want == "control" {
			if err == nil || !strings.Contains(err.Error(), "token") || strings.Contains(err.Error(), "ken\"") {
				t.Errorf("token %q: %v", tt.token, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if got, want := <-seen, host+" /metrics?a=b "+tt.want; got != want {
			t.Errorf("sent %q, want %q", got, want)
		}
	}
}
