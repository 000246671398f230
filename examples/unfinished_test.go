package examples_test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/examples"
	"github.com/weirproxy/weir/internal/envoytest"
)

// unfinished is a request whose body stops one byte before its end.
type unfinished struct {
	conn   net.Conn
	code   chan int // of the answer; 0 = the connection ended without one
	reason string
}

// stall sends the headers and all of a body of n bytes but the last.
func (w *world) stall(token string, n int, chunked bool) *unfinished {
	conn, err := net.Dial("tcp", w.envoy.Addr)
	if err != nil {
		w.t.Fatal(err)
	}
	u := &unfinished{conn: conn, code: make(chan int, 1)}
	length := fmt.Sprintf("Content-Length: %d", n)
	if chunked {
		length = "Transfer-Encoding: chunked"
	}
	go func() {
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			u.code <- 0
			return
		}
		u.reason = res.Header.Get("x-weir-reason")
		u.code <- res.StatusCode
	}()
	go func() { // ends when the connection does
		if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: weir\r\nContent-Type: application/json\r\nAuthorization: Bearer %s\r\n%s\r\n\r\n", chatPath, token, length); err != nil {
			return
		}
		if chunked {
			if _, err := fmt.Fprintf(conn, "%x\r\n", n); err != nil {
				return
			}
		}
		piece := []byte(strings.Repeat(" ", 64<<10))
		for left := n - 1; left > 0; left -= len(piece) {
			if _, err := conn.Write(piece[:min(left, len(piece))]); err != nil {
				return
			}
		}
	}()
	return u
}

// TestUnfinishedBodies: a tenant that may have 20 calls at once opens 400 whose
// bodies stop one byte before the largest size. No more than 20 are buffered,
// the others are refused at their headers, Envoy's memory is bounded, and
// another tenant is served all the time. All is given back at each kind of end.
func TestUnfinishedBodies(t *testing.T) {
	const (
		calls, limit = 400, 20
		size         = 4<<20 - 4096 // below the example's buffer limit, with Envoy's own room
		perBody      = 2            // a buffer that grew may have been copied
	)
	policy := strings.Replace(wideQuotas, "per: 1h}, {tokens", fmt.Sprintf("per: 1h}, {concurrency: %d}, {tokens", limit), 1)
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		// What is read before a refusal is bounded by the listener's limit, which bounds bodies as well in the example
		// as it is, and must below 1.37: there the overload manager is what bounds Envoy, by resetting streams.
		type form struct{ narrows, chunked bool }
		forms := []form{{false, false}, {false, true}}
		if b.Minor() >= 37 {
			forms = append(forms, form{true, false}, form{true, true})
		}
		for _, f := range forms {
			narrows, chunked := f.narrows, f.chunked
			most, edit := 5*heap/2>>20, smallHeap // it looks each 20 ms, and a busy worker resets late
			if narrows {
				most, edit = limit*size*perBody>>20+60, narrow
			}
			t.Run(fmt.Sprintf("narrow %v chunked %v", narrows, chunked), func(t *testing.T) {
				w := newWorld(t, b, setup{example: formOf(b), envoy: edit, policy: patience + policy})
				before := w.envoy.Memory(t, "VmRSS")
				bystander := w.load(t, 2, func(int) answer { return w.chat(w.token(claims{"tenant": "other"}), 4, false) })
				token := w.token(nil)
				all := make([]*unfinished, calls)
				var opening sync.WaitGroup
				for i := range all {
					opening.Go(func() { all[i] = w.stall(token, size, chunked) })
				}
				opening.Wait()
				defer func() {
					for _, u := range all {
						u.conn.Close()
					}
				}()
				refused := 0
				envoytest.Eventually(t, 60*time.Second, "all but those that may be awaited are refused", func() bool {
					for _, u := range all {
						select {
						case code := <-u.code:
							refused++
							if code == 0 || code == http.StatusServiceUnavailable && !narrows {
								continue
							}
							if code != http.StatusTooManyRequests || u.reason != "quota_concurrency" {
								t.Fatalf("answered %d %s", code, u.reason)
							}
						default:
						}
					}
					return refused >= calls-limit
				})
				var q struct {
					Running int
					Bodies  int   `json:"awaited_bodies"`
					Bytes   int64 `json:"awaited_bytes"`
				}
				w.adminJSON("/debug/queue", &q)
				if q.Bodies > limit+2 || narrows && (q.Bodies < limit || q.Bytes < limit*size) { // two of the other tenant
					t.Errorf("%d bodies of %d bytes are awaited, want %d", q.Bodies, q.Bytes, limit)
				}
				if n := w.metric("weir_awaited_bodies"); narrows && n < limit {
					t.Errorf("weir_awaited_bodies is %v", n)
				}
				grown := (w.envoy.Memory(t, "VmRSS") - before) >> 10
				if grown > most {
					t.Errorf("envoy grew by %d MiB, want at most %d", grown, most)
				}
				bystander.end()
				if narrows {
					bystander.only(t, http.StatusOK)
				}
				if bystander.count(http.StatusOK) == 0 {
					t.Error("nobody else was served")
				}
				t.Logf("%d of %d refused, envoy grew by %d MiB, another tenant was served %d times", refused, calls, grown, bystander.count(http.StatusOK))
				for _, u := range all {
					u.conn.Close()
				}
				envoytest.Eventually(t, 10*time.Second, "nothing is awaited any more", func() bool {
					return w.metric("weir_awaited_bodies") == 0 && w.metric("weir_awaited_bytes") == 0
				})
				if a := w.chat(token, 4, false); a.code != http.StatusOK {
					t.Errorf("after all left: %d %s", a.code, a.body)
				}
				w.idle(5 * time.Second)
			})
		}
	})
}

// heap is what smallHeap gives Envoy.
const heap = 512 << 20

// smallHeap is the example with an overload manager for a small machine.
func smallHeap(tree envoytest.Tree) {
	unhurried(tree)
	examples.Set(tree, heap, "overload_manager", "resource_monitors", 0, "typed_config", "max_heap_size_bytes")
}

// narrow is the form of the example's buffer limits from 1.37 on.
func narrow(tree envoytest.Tree) {
	unhurried(tree)
	examples.Set(tree, 32768, "static_resources", "listeners", 0, "per_connection_buffer_limit_bytes")
}
