package redisclient

import (
	"bytes"
	"strings"
)

// The bounds of what the client library keeps for longer than a reply.
const (
	maxSentinels = 64      // addresses that Sentinels name, over a client's life
	maxSlots     = 1 << 20 // bytes of a Cluster's slots, of which the library may hold hundreds
)

// value is one element of a reply, without its length: arrays stand before
// what is in them.
type value struct {
	kind byte
	text string
}

func (v value) isText() bool { return v.kind == '$' || v.kind == '+' }

// values lists up to most elements of a whole reply that a scanner has seen.
func values(reply []byte, most int) []value {
	var out []value
	for at := 0; at < len(reply) && len(out) < most; {
		end := at + bytes.IndexByte(reply[at:], '\n') + 1
		v := value{kind: reply[at], text: string(reply[at+1 : end-2])}
		switch v.kind {
		case '$', '!', '=':
			if n, _ := count(reply[at:end-2], maxReply, "bytes"); n < 0 {
				v.kind = '_'
			} else {
				v.text, end = string(reply[end:end+n]), end+n+2
			}
		}
		out = append(out, v)
		at = end
	}
	return out
}

// fits says what is wrong with a whole reply to a command. The client library
// takes the form of some replies for granted, also in goroutines of its own,
// where its panic would end the process: these are looked at here.
func (k *keeper) fits(a ask, reply []byte) error {
	switch a {
	case channels:
		return fitsChannels(reply)
	case master:
		v := values(reply, 4)
		if v[0].kind == '-' || v[0].kind == '_' || v[0].kind == '*' && v[0].text == "-1" {
			return nil
		}
		if len(v) != 3 || v[0].kind != '*' || !v[1].isText() || !v[2].isText() {
			return violation("an address of the master that is none: %.80q", reply)
		}
	case sentinels:
		return k.fitsSentinels(reply)
	case slots:
		if len(reply) > maxSlots {
			return violation("slots of %d bytes, at most %d are read", len(reply), maxSlots)
		}
	}
	return nil
}

// fitsChannels holds what comes on a connection that listens to channels
// against the forms of https://redis.io/docs/latest/develop/pubsub/.
func fitsChannels(reply []byte) error {
	v := values(reply, 6)
	if v[0].kind != '*' && v[0].kind != '>' {
		if v[0].isText() || v[0].kind == '-' { // of a PING, or why it may not listen
			return nil
		}
		return violation("on a channel: %.80q", reply)
	}
	var want string
	if len(v) > 1 && v[1].isText() {
		switch v[1].text {
		case "subscribe", "unsubscribe", "psubscribe", "punsubscribe", "ssubscribe", "sunsubscribe":
			want = "t?:" // the channel may be missing
		case "message", "smessage":
			want = "ttt"
		case "pmessage":
			want = "tttt"
		case "pong":
			want = "tt"
		}
	}
	ok := want != "" && len(v) == len(want)+1
	for i := 0; ok && i < len(want); i++ {
		switch got := v[i+1]; want[i] {
		case 't':
			ok = got.isText()
		case '?':
			ok = got.isText() || got.kind == '_'
		default:
			ok = got.kind == want[i]
		}
	}
	// Of a fail-over the library takes five words for granted.
	if ok && v[1].text == "message" && v[2].text == "+switch-master" {
		ok = strings.Count(v[3].text, " ") >= 4
	}
	if !ok {
		return violation("on a channel: %.80q", reply)
	}
	return nil
}

// fitsSentinels bounds the addresses that the library learns from Sentinels
// and never forgets.
func (k *keeper) fitsSentinels(reply []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var ip string
	all := values(reply, maxElements)
	for i := 1; i < len(all); i++ {
		switch all[i-1].text {
		case "ip":
			ip = all[i].text
		case "port":
			if len(k.sentinels) < maxSentinels {
				k.sentinels[ip+" "+all[i].text] = true
			} else if !k.sentinels[ip+" "+all[i].text] {
				return violation("more than %d Sentinels", maxSentinels)
			}
		}
	}
	return nil
}
