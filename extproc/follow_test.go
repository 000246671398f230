package extproc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/weirproxy/weir/policy"
)

// bytesOnWire are frames over bytes.
type bytesOnWire struct{ *bytes.Reader }

func (b bytesOnWire) ReadMessageHeader(header []byte) error {
	_, err := io.ReadFull(b.Reader, header)
	return err
}

func (b bytesOnWire) Read(n int) (mem.BufferSlice, error) {
	data := make([]byte, n)
	if _, err := io.ReadFull(b.Reader, data); err != nil {
		return nil, io.EOF
	}
	return mem.BufferSlice{mem.SliceBuffer(data)}, nil
}

func (bytesOnWire) WriteStatus(*status.Status) error { return nil }

// A held stream's messages are read as RecvMsg reads them, within its bounds.
func TestMessagesWhileHeld(t *testing.T) {
	p := rules(func(p *policy.Policy) { p.Server.MaxBody = 1 << 20 })
	good := marshal(t, reqTrailers())
	framed := func(compressed byte, length int, data []byte) []byte {
		b := binary.BigEndian.AppendUint32([]byte{compressed}, uint32(length)) //nolint:gosec // of a test
		return append(b, data...)
	}
	for name, c := range map[string]struct {
		wire []byte
		want error
	}{
		"whole":                {framed(0, len(good), good), nil},
		"the end":              {nil, io.EOF},
		"the end in a header":  {[]byte{0, 0, 0}, status.Error(codes.Internal, "")},
		"the end in a message": {framed(0, len(good), nil), status.Error(codes.Internal, "")},
		"compressed":           {framed(1, len(good), good), status.Error(codes.Unimplemented, "")},
		"beyond the bound":     {framed(0, int(p.Server.MaxMessage())+1, good), status.Error(codes.ResourceExhausted, "")},
	} {
		st := &stream{server: &Server{}, frames: bytesOnWire{bytes.NewReader(c.wire)}}
		st.talk.policy = p
		err := st.next()
		if status.Code(err) != status.Code(c.want) || errors.Is(err, io.EOF) != errors.Is(c.want, io.EOF) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if err == nil && st.in.phase != requestTrailers {
			t.Errorf("%s: read as %v", name, st.in.phase)
		}
	}
}
