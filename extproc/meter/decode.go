package meter

import (
	"compress/gzip"
	"errors"
	"io"
	"iter"
	"strings"
)

// Bounds of a decoded answer: a small one that stands for a huge one costs
// time, not memory, and is given up.
const (
	maxRatio   = 256       // decoded bytes for each coded one, beyond
	ratioFrom  = 4 << 20   // so many decoded bytes
	maxDecoded = 256 << 20 // at all
	decodeStep = 8 << 10
)

// codings of an answer.
const (
	codingNone = iota
	codingGzip
	codingOther
)

// coding reads a content-encoding list. Only a single gzip, beside any
// number of identity, is decoded.
func coding(list string) int {
	kind := codingNone
	for c := range strings.SplitSeq(list, ",") {
		switch c = strings.ToLower(strings.TrimSpace(c)); {
		case c == "" || c == "identity":
		case (c == "gzip" || c == "x-gzip") && kind == codingNone:
			kind = codingGzip
		default:
			return codingOther
		}
	}
	return kind
}

// decoder turns the pulling gzip reader into one that is pushed: the reader
// runs as a coroutine (iter.Pull) that stops wherever it wants more bytes, so
// it never runs beside its owner and keeps no queue. It holds the reader's
// window (about 40 KiB) until the end of the answer, a failure, or close.
type decoder struct {
	resume func() (struct{}, bool)
	stop   func()
	yield  func(struct{}) bool

	in      []byte // of the chunk being read
	eof     bool
	done    bool // nothing more is read
	failed  bool // not gzip, broken, or too large
	coded   int64
	decoded int64
	to      func([]byte)
}

var errStopped = errors.New("meter: decoder closed")

// newDecoder returns a decoder that hands decoded bytes to the function to.
func newDecoder(to func([]byte)) *decoder { return &decoder{to: to} }

// push decodes the next chunk.
func (d *decoder) push(chunk []byte, end bool) {
	if d.done || (len(chunk) == 0 && !end) {
		return
	}
	if d.resume == nil {
		d.resume, d.stop = iter.Pull(d.run)
	}
	d.coded += int64(len(chunk))
	d.in, d.eof = chunk, end
	if _, more := d.resume(); !more {
		d.close()
	}
	d.in = nil
}

// close ends the coroutine.
func (d *decoder) close() {
	d.done = true
	if d.stop != nil {
		d.stop()
	}
}

// run is the coroutine.
func (d *decoder) run(yield func(struct{}) bool) {
	d.yield = yield
	z, err := gzip.NewReader(d)
	buf := make([]byte, decodeStep)
	for err == nil {
		var n int
		n, err = z.Read(buf)
		d.to(buf[:n])
		d.decoded += int64(n)
		if d.decoded > maxDecoded || d.decoded > ratioFrom && d.decoded/maxRatio > d.coded {
			err = errors.ErrUnsupported
		}
	}
	empty := d.coded == 0 && errors.Is(err, io.EOF)
	d.failed = !errors.Is(err, io.EOF) && !errors.Is(err, errStopped) && !empty && !(d.eof && errors.Is(err, io.ErrUnexpectedEOF))
}

// Read and ReadByte give the reader the bytes of the chunk, and wait for the
// next one when they are used up.
func (d *decoder) Read(p []byte) (int, error) {
	if err := d.wait(); err != nil {
		return 0, err
	}
	n := copy(p, d.in)
	d.in = d.in[n:]
	return n, nil
}

func (d *decoder) ReadByte() (byte, error) {
	if err := d.wait(); err != nil {
		return 0, err
	}
	c := d.in[0]
	d.in = d.in[1:]
	return c, nil
}

func (d *decoder) wait() error {
	for len(d.in) == 0 {
		if d.eof {
			return io.EOF
		}
		if !d.yield(struct{}{}) {
			return errStopped
		}
	}
	return nil
}
