package redisbus

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/internal/buswire"
)

// record is what the scripts know of a word.
type record struct {
	over int64 // ms of the server's clock
	seq  uint64
}

// parse reads "over seq word" and holds the three against each other.
func parse(text string) (record, breaker.Opinion, error) {
	over, rest, ok := strings.Cut(text, " ")
	seq, word, ok2 := strings.Cut(rest, " ")
	if !ok || !ok2 {
		return record{}, breaker.Opinion{}, errRecord
	}
	o, err := buswire.Decode([]byte(word))
	if err != nil {
		return record{}, o, err
	}
	ms, ok := number(over)
	if !ok || seq != strconv.FormatUint(o.Seq, 10) {
		return record{}, o, errRecord
	}
	return record{ms, o.Seq}, o, nil
}

var errRecord = errors.New("not a record")

func number(text string) (int64, bool) {
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil && n >= 0
}

// take gives a record to the listener, unless it is garbage, over, or older
// than what was heard of its key. name is the field it stands in, "" of an
// entry of the stream. What was heard is repeated only after a gap.
func (l *listener) take(ctx context.Context, now int64, name, text string, again bool) {
	r, o, err := parse(text)
	if err == nil && (name != "" && name != field(o.Key()) || r.over > now+keyLife.Milliseconds()) {
		err = errRecord
	}
	switch {
	case ctx.Err() != nil:
		return
	case errors.Is(err, buswire.ErrVersion):
		l.bus.count.versions.Add(1)
		return
	case err != nil:
		l.bus.count.garbage.Add(1)
		return
	case r.over <= now:
		return
	}
	name = field(o.Key())
	// By the server's clock, as its script decides: an older word counts once
	// the newer one is over.
	old, known := l.last[name]
	switch {
	case known && r.over-millis(o.TTL) < old.over && (r.seq < old.seq || r.seq == old.seq && !again):
		return
	case !known && len(l.last) >= 2*maxWords:
		l.bus.count.garbage.Add(1)
		return
	}
	l.last[name] = r
	o.TTL = min(o.TTL, time.Duration(r.over-now)*time.Millisecond)
	l.bus.count.heard.Add(1)
	l.heard(o)
}

// sweep forgets, once a minute, what is over.
func (l *listener) sweep(now int64) {
	if since := now - l.swept; since >= 0 && since < time.Minute.Milliseconds() {
		return
	}
	l.swept = now
	for name, r := range l.last {
		if r.over <= now {
			delete(l.last, name)
		}
	}
}
