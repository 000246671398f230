package redisclient

import (
	"bytes"
	"strconv"
)

// ask is what a command asks for, as far as its reply is looked at.
type ask uint8

const (
	anything  ask = iota // any one reply
	master               // SENTINEL GET-MASTER-ADDR-BY-NAME: two texts
	sentinels            // SENTINEL SENTINELS: addresses
	slots                // CLUSTER SLOTS
	channels             // SUBSCRIBE and the like: messages from now on
)

// requests reads what the client library writes, which is arrays of texts, and
// knows what each command asks for. Of its arguments it keeps the beginning of
// the first two.
type requests struct {
	head  []byte // of a header or of an argument's beginning, while cut by a Write
	args  int    // of the command, still to come
	want  int    // bytes of an argument to be kept, still to come
	skip  int    // bytes of an argument still to come after those, its end included
	first bool   // the next argument is the command's name
	name  string // of the command, where the next argument says more
	hello int    // protocol that a HELLO asked for
}

const longestName = 64 // bytes of an argument that are looked at

// write goes through bytes to be written and calls asked once for each
// command that begins in them.
func (r *requests) write(p []byte, asked func(ask)) {
	for len(p) > 0 {
		switch {
		case r.want > 0:
			n := min(r.want, len(p))
			r.head, r.want, p = append(r.head, p[:n]...), r.want-n, p[n:]
			if r.want == 0 {
				r.argument(asked)
			}
		case r.skip > 0:
			n := min(r.skip, len(p))
			r.skip, p = r.skip-n, p[n:]
		default:
			end := bytes.IndexByte(p, '\n') + 1
			if end == 0 {
				r.head = append(r.head, p...)
				return
			}
			r.head, p = append(r.head, p[:end]...), p[end:]
			r.header(asked)
		}
	}
}

// header takes the header that head holds.
func (r *requests) header(asked func(ask)) {
	line := bytes.TrimRight(r.head, "\r\n")
	kind, n := byte(0), 0
	if len(line) > 0 {
		kind = line[0]
		n, _ = strconv.Atoi(string(line[1:]))
	}
	r.head = r.head[:0]
	switch kind {
	case '*':
		r.args, r.first, r.name = n, true, ""
	case '$':
		r.args--
		r.skip = max(n, 0) + 2
		if !r.first && r.name == "" {
			return // an argument that says nothing
		}
		r.want = min(max(n, 0), longestName)
		if r.skip -= r.want; r.want == 0 {
			r.argument(asked)
		}
	}
}

// argument takes one of the first two arguments of a command, which head holds.
func (r *requests) argument(asked func(ask)) {
	text, name := string(bytes.ToLower(r.head)), r.name
	r.head, r.name = r.head[:0], ""
	if r.first {
		r.first = false
		switch text {
		case "sentinel", "cluster", "hello":
			if r.args > 0 { // the next one says which
				r.name = text
				return
			}
		case "subscribe", "psubscribe", "ssubscribe", "unsubscribe", "punsubscribe", "sunsubscribe":
			asked(channels)
			return
		}
		asked(anything)
		return
	}
	switch name + " " + text {
	case "sentinel get-master-addr-by-name":
		asked(master)
	case "sentinel sentinels":
		asked(sentinels)
	case "cluster slots":
		asked(slots)
	case "hello 3":
		r.hello = 3
		asked(anything)
	default:
		asked(anything)
	}
}
