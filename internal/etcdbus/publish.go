package etcdbus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/internal/buswire"
	"github.com/weirproxy/weir/internal/nopanic"
)

// lease is one that words of one TTL are put on.
type lease struct {
	id   clientv3.LeaseID
	last time.Time // when the last word may be put on it: it then still lasts TTL
}

// standing is a word that this bus put.
type standing struct {
	word     string
	seq      uint64
	revision int64 // of the key
	over     time.Time
	lease    clientv3.LeaseID
}

const (
	maxLeases = 16 // TTLs whose leases are kept for the next word
	swaps     = 8  // attempts at one key while others write it
	batch     = 64 // words put back by one transaction; etcd takes 128
)

var errAnswer = errors.New("an answer has an unknown form")

// Publish implements breaker.Bus. It returns after two seconds at most.
func (b *Bus) Publish(ctx context.Context, o breaker.Opinion) error {
	if b.life.Err() != nil {
		return breaker.ErrClosed
	}
	word, err := buswire.Encode(o)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	defer context.AfterFunc(b.life, cancel)()
	newer, err := b.publish(ctx, o, string(word))
	switch {
	case err == nil && newer:
		b.count.published.Add(1)
		return nil
	case err == nil:
		b.count.older.Add(1)
		return nil
	case b.life.Err() != nil:
		return breaker.ErrClosed
	}
	b.count.failed.Add(1)
	return fmt.Errorf("etcdbus: publish: %w", err)
}

func (b *Bus) publish(ctx context.Context, o breaker.Opinion, word string) (newer bool, err error) {
	defer nopanic.Catch(&err)
	c, err := b.connect(ctx)
	if err != nil {
		return false, err
	}
	on, err := b.lease(ctx, c, o.TTL)
	if err != nil {
		return false, err
	}
	newer, err = b.swap(ctx, c, o, word, on)
	if !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return newer, err
	}
	b.count.leases.Add(1)
	lost := on
	b.forget(o.TTL, lost)
	if on, err = b.lease(ctx, c, o.TTL); err != nil {
		return false, err
	}
	if newer, err = b.swap(ctx, c, o, word, on); err != nil {
		return false, err
	}
	return newer, b.putBack(ctx, c, lost)
}

// lease finds or makes a lease that lasts ttl from now on at least.
func (b *Bus) lease(ctx context.Context, c *clientv3.Client, ttl time.Duration) (clientv3.LeaseID, error) {
	if err := b.take(ctx); err != nil {
		return 0, err
	}
	defer b.give()
	now := time.Now()
	if l, ok := b.leases[ttl]; ok && !now.After(l.last) {
		return l.id, nil
	}
	seconds := int64((ttl + ttl/4 + time.Second - 1) / time.Second)
	granted, err := c.Grant(ctx, seconds)
	if err != nil {
		return 0, err
	}
	for t, l := range b.leases {
		if now.After(l.last) {
			delete(b.leases, t)
		}
	}
	if len(b.leases) < maxLeases {
		b.leases[ttl] = lease{granted.ID, now.Add(time.Duration(seconds)*time.Second - ttl)}
	}
	b.sweep(now)
	return granted.ID, nil
}

// sweep forgets own words that are over.
func (b *Bus) sweep(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for key, s := range b.own {
		if now.After(s.over) {
			delete(b.own, key)
		}
	}
}

// forget takes a lease that was lost out of use.
func (b *Bus) forget(ttl time.Duration, id clientv3.LeaseID) {
	<-b.turn
	defer b.give()
	if b.leases[ttl].id == id {
		delete(b.leases, ttl)
	}
}

// swap puts a word in the place of what it is newer than.
func (b *Bus) swap(ctx context.Context, c *clientv3.Client, o breaker.Opinion, word string, on clientv3.LeaseID) (newer bool, err error) {
	key := b.key(o.Key())
	var revision int64 // 0 = nothing lies there: where something does, it is looked at
	b.mu.Lock()
	if last := b.own[key]; last.seq < o.Seq {
		revision = last.revision
	}
	b.mu.Unlock()
	for range swaps {
		now := time.Now()
		done, err := c.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", revision)).
			Then(clientv3.OpPut(key, word, clientv3.WithLease(on))).Else(clientv3.OpGet(key)).Commit()
		if err != nil {
			return false, err
		}
		if done.Succeeded {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.own[key] = standing{word, o.Seq, done.Header.GetRevision(), now.Add(o.TTL), on}
			return true, nil
		}
		revision = 0
		if len(done.Responses) != 1 {
			return false, errAnswer
		}
		for _, kv := range done.Responses[0].GetResponseRange().GetKvs() {
			revision = kv.ModRevision
			old, err := buswire.Decode(kv.Value)
			if err == nil && kv.Lease != 0 && b.key(old.Key()) == key && old.Seq >= o.Seq {
				return false, nil
			}
		}
	}
	return false, fmt.Errorf("others write %s all the time", key)
}

// putBack puts own words that went with a lost lease on one that lasts as long
// as the longest of them.
func (b *Bus) putBack(ctx context.Context, c *clientv3.Client, lost clientv3.LeaseID) error {
	now := time.Now()
	var left time.Duration
	gone := make(map[string]standing)
	b.mu.Lock()
	for key, s := range b.own {
		if s.lease == lost && now.Before(s.over) {
			gone[key] = s
			left = max(left, s.over.Sub(now))
		}
	}
	b.mu.Unlock()
	if len(gone) == 0 {
		return nil
	}
	granted, err := c.Grant(ctx, int64((left+time.Second-1)/time.Second))
	if err != nil {
		return err
	}
	var ops []clientv3.Op
	for key, s := range gone {
		absent := clientv3.Compare(clientv3.CreateRevision(key), "=", 0)
		ops = append(ops, clientv3.OpTxn([]clientv3.Cmp{absent}, []clientv3.Op{clientv3.OpPut(key, s.word, clientv3.WithLease(granted.ID))}, nil))
		if len(ops) == batch {
			if _, err := c.Txn(ctx).Then(ops...).Commit(); err != nil {
				return err
			}
			ops = ops[:0]
		}
	}
	_, err = c.Txn(ctx).Then(ops...).Commit()
	return err
}
