package etcdbus

import (
	"context"
	"errors"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/internal/buswire"
	"github.com/weirproxy/weir/internal/nopanic"
)

const (
	beat     = time.Second // between questions whether the watch is there
	misses   = 3           // of them without an answer: it is lost
	page     = 100         // keys read by one call
	maxKeys  = 200_000     // read at all
	maxAsked = 64          // leases whose end is asked for when reading what stands
)

// Listen implements breaker.Bus.
func (b *Bus) Listen(ctx context.Context, heard func(breaker.Opinion), down func(error)) {
	l := &listener{bus: b, heard: heard, last: make(map[string]said)}
	pause := buswire.NewBackoff(b.options.Seed + b.listeners.Add(1))
	b.count.lost.Listen(ctx, b.life, "etcdbus", pause, func(ctx context.Context, ready func()) error {
		err := l.session(ctx, ready)
		if errors.Is(err, errBehind) {
			b.count.rereads.Add(1)
			return buswire.ErrAgain
		}
		return err
	}, down)
}

// listener is one Listen.
type listener struct {
	bus   *Bus
	heard func(breaker.Opinion)
	last  map[string]said // by key in etcd
	swept time.Time
}

// said is what was heard of a key.
type said struct {
	seq  uint64
	over time.Time
}

var (
	errBehind = errors.New("the watch fell behind a compaction")
	errSilent = fmt.Errorf("the watch is silent for %d s", misses*int(beat/time.Second))
)

// session listens until the connection is lost, which is the error, or
// errBehind. ready is called once it has given all that stands.
func (l *listener) session(ctx context.Context, ready func()) error {
	c, err := l.bus.connect(ctx)
	if err != nil {
		return err
	}
	revision, err := l.standing(ctx, c)
	if errors.Is(err, rpctypes.ErrCompacted) {
		return errBehind
	}
	if err != nil {
		return err
	}
	w, err := l.watch(ctx, c, revision+1)
	if err != nil {
		return err
	}
	defer w.end()
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for missed, created := 0, false; ; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-w.broken:
			return err
		case r := <-w.words:
			missed = 0
			if r.Created {
				created = true
				ready()
			} else if !created && !r.Canceled && r.CompactRevision == 0 {
				return errAnswer
			}
			if err := l.events(ctx, r); err != nil {
				return err
			}
		case <-tick.C:
			if missed++; missed > misses {
				return errSilent
			}
			if err := w.stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}}); err != nil {
				return err
			}
		}
	}
}

// standing gives all that stands at one revision, and that revision.
func (l *listener) standing(ctx context.Context, c *clientv3.Client) (revision int64, err error) {
	from, end := l.bus.prefix, clientv3.GetPrefixRangeEnd(l.bus.prefix)
	left := make(map[int64]time.Duration)
	for read := 0; read < maxKeys; {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		answer, err := c.Get(call, from, clientv3.WithRange(end), clientv3.WithLimit(page), clientv3.WithRev(revision))
		cancel()
		if err != nil {
			return 0, err
		}
		if revision == 0 {
			revision = answer.Header.GetRevision()
		}
		if last := len(answer.Kvs) - 1; revision <= 0 || last >= page || last >= 0 && string(answer.Kvs[last].Key) < from {
			return 0, errAnswer
		}
		for _, kv := range answer.Kvs {
			l.take(ctx, kv, l.left(ctx, c, left, kv.Lease), true)
		}
		if read += len(answer.Kvs); !answer.More || len(answer.Kvs) == 0 {
			break
		}
		from = string(answer.Kvs[len(answer.Kvs)-1].Key) + "\x00"
	}
	return revision, ctx.Err()
}

// left is how long a lease lasts, to the next second; MaxTTL where it is not
// known, 0 where it is over.
func (l *listener) left(ctx context.Context, c *clientv3.Client, known map[int64]time.Duration, id int64) time.Duration {
	if d, ok := known[id]; ok {
		return d
	}
	d := breaker.MaxTTL
	if id != 0 && len(known) < maxAsked {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		if answer, err := c.TimeToLive(call, clientv3.LeaseID(id)); err == nil {
			d = time.Duration(answer.TTL+1) * time.Second // -1 is over
		}
		known[id] = d
	}
	return d
}

// events gives what a watch tells.
func (l *listener) events(ctx context.Context, r *pb.WatchResponse) error {
	switch {
	case r.CompactRevision != 0:
		return errBehind
	case r.Canceled:
		return fmt.Errorf("the watch was ended: %s", r.CancelReason)
	}
	for _, e := range r.Events {
		if e.Type == mvccpb.Event_DELETE {
			delete(l.last, string(e.GetKv().GetKey()))
			continue
		}
		if e.Kv == nil {
			l.bus.count.garbage.Add(1)
			continue
		}
		l.take(ctx, e.Kv, breaker.MaxTTL, false)
	}
	l.sweep(time.Now())
	return nil
}

// take gives a value to the listener, unless it is garbage, over, or older
// than what was heard of its key: behind a server that came back from a backup.
func (l *listener) take(ctx context.Context, kv *mvccpb.KeyValue, left time.Duration, again bool) {
	o, err := buswire.Decode(kv.Value)
	switch {
	case ctx.Err() != nil || left <= 0:
		return
	case errors.Is(err, buswire.ErrVersion):
		l.bus.count.versions.Add(1)
		return
	case err != nil || kv.Lease == 0 || l.bus.key(o.Key()) != string(kv.Key):
		l.bus.count.garbage.Add(1)
		return
	}
	now := time.Now()
	old, known := l.last[string(kv.Key)]
	switch {
	case known && now.Before(old.over) && (o.Seq < old.seq || o.Seq == old.seq && !again):
		return
	case !known && len(l.last) >= maxKeys:
		l.bus.count.garbage.Add(1)
		return
	}
	o.TTL = min(o.TTL, left)
	l.last[string(kv.Key)] = said{o.Seq, now.Add(o.TTL)}
	l.bus.count.heard.Add(1)
	l.heard(o)
}

// sweep forgets, once a minute, what is over.
func (l *listener) sweep(now time.Time) {
	if now.Sub(l.swept) < time.Minute {
		return
	}
	l.swept = now
	for key, s := range l.last {
		if now.After(s.over) {
			delete(l.last, key)
		}
	}
}

// watch is one stream of events.
type watch struct {
	stream pb.Watch_WatchClient
	words  chan *pb.WatchResponse
	broken chan error
	end    func() // waits until nothing of it runs
}

// watch starts one of the prefix, from a revision on. Its first response is
// that it was created.
func (l *listener) watch(ctx context.Context, c *clientv3.Client, revision int64) (*watch, error) {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := pb.NewWatchClient(c.ActiveConnection()).Watch(clientv3.WithRequireLeader(ctx))
	if err == nil {
		err = stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{
			Key: []byte(l.bus.prefix), RangeEnd: []byte(clientv3.GetPrefixRangeEnd(l.bus.prefix)), StartRevision: revision,
			Fragment: true, // large answers come in parts, each of whole events
		}}})
	}
	if err != nil {
		cancel()
		return nil, err
	}
	w := &watch{stream: stream, words: make(chan *pb.WatchResponse), broken: make(chan error, 1)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.broken <- w.read(ctx)
	}()
	w.end = func() { cancel(); <-done }
	return w, nil
}

func (w *watch) read(ctx context.Context) (err error) {
	defer nopanic.Catch(&err)
	for {
		r, err := w.stream.Recv()
		if err != nil {
			return err
		}
		select {
		case w.words <- r:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
