package redisbus

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/internal/buswire"
	"github.com/weirproxy/weir/internal/nopanic"
	"github.com/weirproxy/weir/internal/redisclient"
)

// Listen implements breaker.Bus. Where Redis hangs it returns up to two seconds
// after ctx has ended.
func (b *Bus) Listen(ctx context.Context, heard func(breaker.Opinion), down func(error)) {
	l := &listener{bus: b, heard: heard, last: make(map[string]record)}
	pause := buswire.NewBackoff(b.options.Seed + b.listeners.Add(1))
	b.count.lost.Listen(ctx, b.life, "redisbus", pause, l.session, down)
}

// listener is one Listen.
type listener struct {
	bus    *Bus
	heard  func(breaker.Opinion)
	cursor string            // id of the last entry read; "" = the stream was empty
	last   map[string]record // by field: what was heard, until it is over
	swept  int64             // ms of the server's clock
}

// session listens until the connection is lost, which is the error. ready is
// called once it has given all that stands.
func (l *listener) session(ctx context.Context, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := l.tryRights(ctx); err != nil {
		return err
	}
	bell, err := l.subscribe(ctx)
	if err != nil {
		return err
	}
	defer bell.end()
	if err := l.standing(ctx); err != nil {
		return err
	}
	ready()
	poll := time.NewTicker(bell.poll)
	defer poll.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-bell.broken:
			return err
		case <-bell.rings:
		case <-poll.C:
		}
		if err := l.catchUp(ctx); err != nil {
			return err
		}
	}
}

// rights are the commands that the scripts run, beside SET and DEL.
const rights redisclient.Rights = `
	time
	type @
	exists @
	pexpire @ 60000
	hget @ 0
	hset @ 0 0
	hdel @ 0
	hlen @
	hscan @ 0
	zadd @ XX 0 0
	zrem @ 0
	zrangebyscore @ -inf +inf LIMIT 0 1
	xadd @ MAXLEN ~ 1 * w x
	xrange @ - + COUNT 1
	xrevrange @ + - COUNT 1
`

// tryRights names what this user may not do before a word is to be said.
func (l *listener) tryRights(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return rights.Try(ctx, l.bus.client, l.bus.prefix, l.bus.probe)
}

// catchUp gives what the stream holds after the cursor.
func (l *listener) catchUp(ctx context.Context) error {
	for {
		n, whole, err := l.since(ctx)
		if err == nil && !whole {
			l.bus.count.rereads.Add(1)
			err = l.standing(ctx)
		}
		if err != nil || n < part || ctx.Err() != nil {
			return err
		}
	}
}

// since gives one part of the stream. Not whole: the cursor's entry is gone.
func (l *listener) since(ctx context.Context) (n int, whole bool, err error) {
	call, cancel := context.WithTimeout(ctx, callTimeout)
	answer, err := sinceScript.Run(call, l.bus.client, []string{l.bus.stream}, l.cursor, part).Slice()
	cancel()
	if err != nil {
		return 0, false, err
	}
	now, ok := clockOf(answer, 3)
	state, ok2 := at[int64](answer, 1)
	entries, ok3 := at[[]any](answer, 2)
	if !ok || !ok2 || !ok3 {
		return 0, false, errAnswer
	}
	for _, e := range entries {
		entry, _ := e.([]any)
		id, ok := at[string](entry, 0)
		pairs, ok2 := at[[]any](entry, 1)
		if !ok || !ok2 {
			return 0, false, errAnswer
		}
		l.cursor = id
		name, _ := at[string](pairs, 0)
		text, ok := at[string](pairs, 1)
		if !ok || name != "w" || len(pairs) != 2 {
			l.bus.count.garbage.Add(1)
			continue
		}
		l.take(ctx, now, "", text, false)
	}
	l.sweep(now)
	return len(entries), state == 1, nil
}

// standing gives all words that stand and sets the cursor to the stream's end
// before them, so that what is said meanwhile is in the stream.
func (l *listener) standing(ctx context.Context) error {
	scan, read := "0", 0
	for first := true; ; first = false {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		answer, err := standingScript.Run(call, l.bus.client, []string{l.bus.words, l.bus.stream}, scan, part).Slice()
		cancel()
		if err != nil {
			return err
		}
		now, ok := clockOf(answer, 4)
		last, ok2 := at[string](answer, 1)
		next, ok3 := at[string](answer, 2)
		pairs, ok4 := at[[]any](answer, 3)
		if !ok || !ok2 || !ok3 || !ok4 || len(pairs)%2 != 0 {
			return errAnswer
		}
		if first {
			l.cursor = last
		}
		for i := 0; i < len(pairs); i += 2 {
			name, _ := pairs[i].(string)
			text, _ := pairs[i+1].(string)
			l.take(ctx, now, name, text, true)
		}
		read += len(pairs) / 2
		if scan = next; scan == "0" || read > 2*maxWords { // the hash is bounded, unless others write there
			l.sweep(now)
			return ctx.Err()
		}
	}
}

var errAnswer = errors.New("a script's answer has an unknown form")

// clockOf checks the length of an answer and gives its first element.
func clockOf(answer []any, n int) (ms int64, ok bool) {
	text, ok := at[string](answer, 0)
	if !ok || len(answer) != n {
		return 0, false
	}
	return number(text)
}

func at[T any](list []any, i int) (v T, ok bool) {
	if i >= len(list) {
		return v, false
	}
	v, ok = list[i].(T)
	return v, ok
}

// bell rings when something was said.
type bell struct {
	rings  chan struct{} // holds one ring
	broken chan error
	poll   time.Duration // how often to look without a ring
	end    func()        // waits until nothing of it runs
}

// listenFor is how long a bell may be silent before it is asked whether it is
// there, and how long it has to answer.
const listenFor = 3 * time.Second

// subscribe hangs up a bell. Where the user may not, there is none.
func (l *listener) subscribe(ctx context.Context) (*bell, error) {
	sub := l.bus.client.Subscribe(ctx, l.bus.bell)
	_, err := sub.ReceiveTimeout(ctx, callTimeout)
	b := &bell{rings: make(chan struct{}, 1), broken: make(chan error, 1), poll: quietPoll}
	if err != nil && strings.HasPrefix(err.Error(), "NOPERM") {
		_ = sub.Close()
		l.bus.count.deaf.Add(1)
		b.poll, b.end = deafPoll, func() { l.bus.count.deaf.Add(-1) }
		return b, nil
	}
	if err != nil {
		_ = sub.Close()
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.broken <- b.listen(ctx, sub)
	}()
	b.end = func() {
		cancel()
		_ = sub.Close() // ends a Receive
		<-done
	}
	return b, nil
}

// listen rings until the connection is broken or silent.
func (b *bell) listen(ctx context.Context, sub *redis.PubSub) (err error) {
	defer nopanic.Catch(&err)
	for asked := false; ; {
		_, err := sub.ReceiveTimeout(ctx, listenFor)
		var silent interface{ Timeout() bool }
		switch {
		case err == nil:
			asked = false
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &silent) && silent.Timeout() && !asked:
			asked = true
			if err := sub.Ping(ctx); err != nil {
				return err
			}
			continue
		default:
			return err
		}
		select {
		case b.rings <- struct{}{}:
		default:
		}
	}
}
