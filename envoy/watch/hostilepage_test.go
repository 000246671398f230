package watch

import (
	"bytes"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/envoytest"
	"github.com/weirproxy/weir/policy"
)

// Whatever an admin address answers: a look ends in its time, keeps no large
// buffer, and is a miss.
func TestHostileAdmin(t *testing.T) {
	for name, page := range envoytest.Pages() {
		t.Run(name, func(t *testing.T) {
			var kept bytes.Buffer
			before, began := envoytest.Allocated(), time.Now()
			if err := lookAt(t, envoytest.StartParrot(t, page).Addr, &kept); err == nil {
				t.Error("want a miss")
			}
			if took := time.Since(began); took > 3*time.Second {
				t.Errorf("took %v", took)
			}
			if got := int(envoytest.Allocated() - before); got > envoytest.AllocFactor*5*maxAnswer { // a buffer that doubles
				t.Errorf("%d MiB allocated", got>>20)
			}
			if kept.Cap() > keepPage {
				t.Errorf("%d MiB kept", kept.Cap()>>20)
			}
		})
	}
}

func lookAt(t testing.TB, addr string, page *bytes.Buffer) error {
	var got basin
	var log lines
	p := NewPoller(got.take, log.log(), 1)
	defer p.Close()
	admin := policy.EnvoyAdmin{Node: "e", URL: "http://" + addr}
	p.Configure(streetPolicy(false, nil))
	base, rt := adminTransport(admin)
	target := &pollTarget{key: pollKey{admin, 100 * time.Millisecond}, base: base, client: client(rt)}
	defer target.client.CloseIdleConnections()
	return p.look(t.Context(), target, newTable(nil), page)
}

// A panic while an answer is read is a miss.
func TestPanicOfALook(t *testing.T) {
	p := NewPoller(nil, new(lines).log(), 1)
	defer p.Close()
	if err := p.look(t.Context(), &pollTarget{}, nil, nil); err == nil {
		t.Error("want the panic")
	}
}

// FuzzAdmin: any bytes in answer to a look.
func FuzzAdmin(f *testing.F) {
	for _, page := range envoytest.Pages() {
		if len(page) < 1000 {
			f.Add(page)
		}
	}
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Length: 36\r\n\r\ncluster.chat.upstream_cx_active: 12\n\n"))
	f.Fuzz(func(t *testing.T, page []byte) {
		if len(page) > 1<<16 {
			return
		}
		began := time.Now()
		_ = lookAt(t, envoytest.StartParrot(t, page).Addr, new(bytes.Buffer))
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("took %v", took)
		}
	})
}
